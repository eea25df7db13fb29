"""The harness tests itself: every known way to look fast is caught, or made harmless."""

import hashlib
import itertools
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F

from fusebench.bench import guard, statistics, timing, verify
from fusebench.bench import measure as measure_module
from fusebench.bench.contestant import Contestant
from fusebench.bench.measure import Task, measure
from fusebench.bench.settings import Settings

ROWS, WIDTH = 16, 64


class Problem:
    """y = silu(x @ w.T), with the task and an honest contestant for it."""

    def __init__(self, limit=None):
        self.w = torch.randn(WIDTH, WIDTH)
        self.task = Task(
            self.inputs,
            reference=lambda x: F.silu(F.linear(x, self.w)),
            truth=lambda x: F.silu(F.linear(x.double(), self.w.double())),
            device=torch.device("cpu"),
            flops=2.0 * ROWS * WIDTH * WIDTH,
            limit=limit,
            hard=[self.inputs(1, scale=8.0), self.inputs(1, mean=20.0)],
        )

    @staticmethod
    def inputs(index, scale=1.0, mean=0.0):
        random = torch.Generator().manual_seed(index)
        return (torch.randn(ROWS, WIDTH, generator=random) * scale + mean,)

    def right(self, x, w=None):
        return F.silu(F.linear(x, self.w if w is None else w))

    def contestant(self, name, call):
        w = self.w.clone()
        return Contestant(name, lambda x: call(x, w), {"w": w}, {"w": self.w})

    def race(self, cheat, rounds=8):
        entrants = [
            ("honest", lambda: self.contestant("honest", self.right)),
            ("cheat", lambda: self.contestant("cheat", cheat)),
        ]
        race = measure(self.task, entrants, rounds=rounds)
        assert race["honest"].verified, race["honest"].failure
        assert len(race["honest"].samples) == rounds
        return race["cheat"]


@pytest.fixture
def problem():
    return Problem()


def caught(m, *reasons):
    assert not m.verified
    assert m.row()["median_ms"] is None
    assert any(reason in m.failure for reason in reasons), m.failure


def test_an_honest_contestant_passes(problem):
    m = problem.race(problem.right)
    assert m.verified and m.timed and m.failure is None and m.flag is None
    assert 0 <= m.error <= m.error_budget


@pytest.mark.parametrize("key", [id, torch.Tensor.data_ptr], ids=["identity", "pointer"])
def test_remembers_its_result(problem, key):
    """Where memory or objects come again, they hold other numbers."""
    buffer = torch.empty(ROWS, WIDTH)
    original = problem.task.inputs
    object.__setattr__(problem.task, "inputs", lambda i: (buffer.copy_(original(i)[0]),))
    known = {}

    def cheat(x, w):
        if key(x) not in known:
            known[key(x)] = problem.right(x, w)
        return known[key(x)].clone()

    entrants = [("cheat", lambda: problem.contestant("cheat", cheat))]
    caught(measure(problem.task, entrants, rounds=6)["cheat"], "over the budget")


def test_remembers_its_result_by_content_and_gains_nothing(problem):
    known, hits = {}, 0

    def cheat(x, w):
        nonlocal hits
        content = hashlib.sha256(x.numpy().tobytes()).digest()
        hits += content in known
        if content not in known:
            known[content] = problem.right(x, w)
        return known[content].clone()

    assert problem.race(cheat).verified
    assert hits == 0  # no input comes twice


def test_skips_the_work_when_shapes_repeat(problem):
    last = {}

    def cheat(x, w):
        if x.shape not in last:
            last[x.shape] = problem.right(x, w)
        return last[x.shape].clone()

    caught(problem.race(cheat), "over the budget")


@pytest.mark.parametrize("bad", [lambda x: x.mean() > 1, lambda x: x.abs().max() > 8,
                                 lambda x: x[0, 0] > 0], ids=["mean", "large", "sign"])  # fmt: skip
def test_wrong_for_some_inputs_only(problem, bad):
    def cheat(x, w):
        y = problem.right(x, w)
        return y * 1.001 if bad(x) else y

    caught(problem.race(cheat, rounds=20), "over the budget")


def test_right_at_first_and_wrong_later(problem):
    calls = 0

    def cheat(x, w):
        nonlocal calls
        calls += 1
        return problem.right(x, w) if calls < 60 else torch.zeros(ROWS, WIDTH)

    caught(problem.race(cheat), "in a timed call; it passed before timing")


def test_raises_later(problem):
    calls = 0

    def cheat(x, w):
        nonlocal calls
        calls += 1
        if calls > 100:
            raise RuntimeError("out of something")
        return problem.right(x, w)

    m = problem.race(cheat, rounds=20)
    caught(m, "RuntimeError: out of something")


def test_changes_its_inputs(problem):
    def cheat(x, w):
        y = problem.right(x, w)
        x.mul_(0.5)
        return y

    caught(problem.race(cheat), "changed its inputs: input 0")


def test_changes_its_inputs_later(problem):
    calls = 0

    def cheat(x, w):
        nonlocal calls
        calls += 1
        y = problem.right(x, w)
        if calls > 60:
            x.zero_()
        return y

    caught(problem.race(cheat), "changed its inputs: input")


def test_changes_its_weights(problem):
    def cheat(x, w):
        y = problem.right(x, w)
        w[3, 3] = 0
        return y

    caught(problem.race(cheat), "changed its weights: w", "over the budget")


def test_returns_its_input(problem):
    caught(problem.race(lambda x, w: x.copy_(problem.right(x, w))), "memory of its inputs")


def test_returns_memory_it_never_wrote(problem):
    caught(problem.race(lambda x, w: torch.empty(ROWS, WIDTH)), "over the budget", "not finite")


def test_returns_memory_that_still_holds_the_right_answer(problem):
    """The honest contestant's output of the same round, still there: NaN was written over it."""
    before = []

    def honest(x, w):
        y = problem.right(x, w)
        before.append(y)
        return y

    calls = 0

    def cheat(x, w):
        nonlocal calls
        calls += 1
        return problem.right(x, w) if calls < 60 or not before else before[-1].clone()

    entrants = [
        ("honest", lambda: problem.contestant("honest", honest)),
        ("cheat", lambda: problem.contestant("cheat", cheat)),
    ]
    caught(measure(problem.task, entrants, rounds=8)["cheat"], "not finite", "over the budget")


def test_returns_the_same_memory_every_time(problem):
    out = torch.empty(ROWS, WIDTH)
    caught(problem.race(lambda x, w: out.copy_(problem.right(x, w))), "expected new memory")


def test_returns_a_lazy_tensor_subclass(problem):
    class Lazy(torch.Tensor):
        pass

    caught(problem.race(lambda x, w: problem.right(x, w).as_subclass(Lazy)), "returned a Lazy")


def test_computes_in_another_thread(problem):
    def cheat(x, w):
        out = torch.empty(ROWS, WIDTH)

        def work():
            time.sleep(0.005)
            out.copy_(problem.right(x, w))

        threading.Thread(target=work).start()
        return out

    caught(problem.race(cheat), "work goes on in another thread or stream")


@pytest.mark.gpu
def test_computes_on_a_side_stream():
    device = torch.device("cuda")
    w = torch.randn(4096, 4096, device=device)
    side = torch.cuda.Stream()

    def inputs(index):
        random = torch.Generator(device).manual_seed(index)
        return (torch.randn(4096, 4096, generator=random, device=device),)

    def cheat(x):
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            return x @ w

    task = Task(inputs, lambda x: x @ w, lambda x: x.double() @ w.double(), device)
    m = measure(task, [("cheat", lambda: Contestant("cheat", cheat))], rounds=5)["cheat"]
    caught(m, "work goes on in another thread or stream", "over the budget", "not finite")


def test_accumulates_in_lower_precision(problem):
    def cheat(x, w):
        return F.silu(F.linear(x.bfloat16(), w.bfloat16())).float()

    caught(problem.race(cheat), "over the budget")


@pytest.mark.parametrize("module, name", [(time, "perf_counter"), (timing, "now")])
def test_patches_the_timer(problem, module, name):
    original = getattr(module, name)

    def cheat(x, w):
        setattr(module, name, lambda: 0.0)
        return problem.right(x, w)

    try:
        caught(problem.race(cheat), "patched the timer")
        assert getattr(module, name) is original
    finally:
        setattr(module, name, original)


def test_the_clock_is_python_s_own_whoever_was_there_first():
    """A time.perf_counter that was replaced before fusebench was imported times nothing here."""
    code = (
        "import time, types\n"
        "time.perf_counter = lambda: 0.0\n"
        "from fusebench.bench import timing\n"
        "assert isinstance(timing.now, types.BuiltinFunctionType)\n"
        "assert 0 < timing.now() < timing.now()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


JUDGES = [(torch, "equal"), (torch, "allclose"), (verify, "judge"), (statistics, "speedup"),
          (guard, "complete"), (measure_module, "measure"), (torch.Tensor, "double")]  # fmt: skip


@pytest.mark.parametrize("owner, name", JUDGES, ids=lambda x: getattr(x, "__name__", x))
def test_patches_its_judge(problem, owner, name):
    original = getattr(owner, name)

    def cheat(x, w):
        setattr(owner, name, lambda *args, **options: True)
        return problem.right(x, w)

    try:
        failure = problem.race(cheat).failure
        assert f"patched the verification: {owner.__name__}.{name} was replaced" in failure
        assert getattr(owner, name) is original
    finally:
        setattr(owner, name, original)


CHANGES = {
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "grad mode": lambda: torch.set_grad_enabled(True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "flushing of denormals": lambda: torch.set_flush_denormal(True),
    "autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "torch.backends.mkldnn.enabled": lambda: torch._C._set_mkldnn_enabled(False),
    "flash SDPA": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "torch.backends.cudnn.benchmark": lambda: torch._C._set_cudnn_benchmark(True),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("patience", [0, 60], ids=["at once", "while timed"])
def test_changes_a_setting_for_everyone(problem, what, patience):
    if what == "flushing of denormals" and not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush denormals")
    before = Settings().values
    calls = itertools.count()

    def cheat(x, w):
        y = problem.right(x, w)
        if next(calls) >= patience:
            CHANGES[what]()
        return y

    m = problem.race(cheat, rounds=20 + patience)  # so that it comes to change something
    caught(m, f"changed torch's settings for everyone: {what} from ")
    assert Settings().values == before


def test_recognises_the_verification_by_its_inputs(problem):
    """The inputs of the verification are drawn as the timed ones are; hard ones are added."""
    seen = []

    def cheat(x, w):
        seen.append((float(x.mean()), float(x.std())))
        plain = abs(seen[-1][0]) < 0.2 and 0.9 < seen[-1][1] < 1.1
        return problem.right(x, w) if plain else torch.zeros(ROWS, WIDTH)

    caught(problem.race(cheat), "over the budget")
    assert not any(mean == 0 or std == 0 for mean, std in seen)


def test_remembers_its_result_by_pointer_and_version(problem):
    known = {}

    def cheat(x, w):
        key = (x.data_ptr(), x._version)
        if key not in known:
            known[key] = problem.right(x, w)
        return known[key].clone()

    buffer = torch.empty(ROWS, WIDTH)
    original = problem.task.inputs
    # The allocator's habit: the same memory again, in a new tensor of version 0.
    object.__setattr__(
        problem.task, "inputs", lambda i: (torch.from_numpy(buffer.copy_(original(i)[0]).numpy()),)
    )
    entrants = [("cheat", lambda: problem.contestant("cheat", cheat))]
    caught(measure(problem.task, entrants, rounds=6)["cheat"], "over the budget")


def test_computes_in_float16_inside(problem):
    def cheat(x, w):
        return F.silu(F.linear(x.half(), w.half())).float()

    caught(problem.race(cheat), "over the budget")


def test_faster_than_the_machine():
    """Whatever the trick is: what no machine like this can do is flagged, not celebrated."""
    problem = Problem(limit=1e6)  # as if nothing could be faster than 1 MFLOP/s
    m = problem.race(problem.right)
    assert m.flag is not None and "faster than the machine's limit" in m.flag
    assert m.row()["flag"] == m.flag


def test_returns_the_wrong_kind(problem):
    caught(problem.race(lambda x, w: problem.right(x, w)[:-1]), "shape is")
    caught(problem.race(lambda x, w: problem.right(x, w).double()), "dtype is")
    caught(problem.race(lambda x, w: (problem.right(x, w),) * 2), "returned 2 values")
    caught(problem.race(lambda x, w: None), "returned a NoneType")


@pytest.mark.parametrize("patience", [0, 60], ids=["at once", "while timed"])
def test_ends_the_process(problem, patience):
    """SystemExit fails the one that raised it, and leaves the others their race."""
    calls = 0

    def cheat(x, w):
        nonlocal calls
        calls += 1
        if calls > patience:
            raise SystemExit(0)
        return problem.right(x, w)

    caught(problem.race(cheat, rounds=40), "SystemExit")
