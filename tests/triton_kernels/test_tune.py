"""`fusebench tune` without a GPU: what it tries, what it keeps, and what it writes."""

import json
import random

import pytest
import torch

from fusebench.bench.timing import Turn
from fusebench.studies import tune as study
from fusebench.studies.tune import candidates, merged, tune
from fusebench.triton_kernels import configs, examples

KEY = (0, 16, "short")


class Clock:
    """Says how long a configuration takes: by its block_n, with a little noise."""

    def __init__(self, seconds):
        self.seconds, self.turns = seconds, []
        self.noise = random.Random(0)

    def turn(self, call, batch, kept):
        configuration = call.args[0]
        self.turns.append(configuration)
        seconds = self.seconds[configuration["block_n"]] * self.noise.uniform(0.99, 1.01)
        return Turn(seconds, None, kept, None, None)


@pytest.fixture(autouse=True)
def _one_small_example(monkeypatch):
    def linear(dtype, device):
        make = examples.Make(dtype, device)
        args = (make(40, 32), make(48, 32), make(48), None, *make.norms(32)["layernorm"])
        yield "short", examples.linear, args

    monkeypatch.setitem(examples.EXAMPLES, "linear", linear)


def with_block_n(*values):
    return lambda shipped: [shipped, *({**shipped, "block_n": n} for n in values)]


def run(clock, search, **options):
    return tune("linear", device="cpu", clock=clock, search=search, **options)


def test_the_fastest_is_kept_and_written(tmp_path):
    clock = Clock({32: 3.0, 16: 2.0, 64: 4.0})
    results = run(clock, with_block_n(16, 64), write=tmp_path, rounds=12)
    (row,) = results.rows
    assert (row["table"], row["arch"], row["bits"], row["size"]) == ("linear", *KEY)
    assert row["best"] == {**configs.table("linear")[KEY], "block_n": 16}
    assert row["candidates"] == 3 and row["rejected"] == 0 and len(clock.turns) == 36
    assert row["speedup_vs_shipped"]["low"] > 1.4
    path = tmp_path / "linear.json"
    before = (configs.FOLDER / "linear.json").read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, path.read_text().splitlines()) if a != b]
    assert len(changed) == 1 and changed[0][1] == changed[0][0].replace(
        '"block_n": 32', '"block_n": 16'
    )
    assert "linear" in results.table() and "N16" in results.table()


def test_a_gain_that_is_not_sure_changes_nothing(tmp_path):
    results = run(Clock({32: 3.0, 16: 3.0}), with_block_n(16), write=tmp_path)
    shipped = configs.table("linear")[KEY]
    assert results.rows[0]["best"] == shipped
    assert (tmp_path / "linear.json").read_text() == (configs.FOLDER / "linear.json").read_text()


def test_what_does_not_run_or_is_wrong_is_rejected(monkeypatch):
    real = examples.linear

    def wrong_for_64(*args):
        y = real(*args)
        block_n = configs.row("linear", 0, args[0].dtype, "short")["block_n"]
        return y * 1.1 if block_n == 64 else y

    monkeypatch.setattr(examples, "linear", wrong_for_64)
    clock = Clock({32: 3.0, 24: 1.0, 64: 1.0})  # 24 is not a power of two
    (row,) = run(clock, with_block_n(24, 64)).rows
    assert row["rejected"] == 2 and row["best"]["block_n"] == 32
    assert {c["block_n"] for c in clock.turns} == {32}


@pytest.fixture
def two_sizes(monkeypatch):
    """An example of another size class behind the short one."""

    def linear(dtype, device):
        make = examples.Make(dtype, device)
        for size, rows in (("short", 40), ("decode", 3)):
            yield size, examples.linear, (make(rows, 32), make(48, 32), *[None] * 5, 1e-5)

    monkeypatch.setitem(examples.EXAMPLES, "linear", linear)


class Trouble(Clock):
    """A clock that raises once the row in hand is not the first."""

    def __init__(self, error):
        super().__init__({16: 1.0, 32: 3.0})
        self.error, self.first = error, None

    def turn(self, call, batch, kept):
        size = call.args[0]["block_m"]
        self.first = self.first or size
        if size != self.first:
            raise self.error
        return super().turn(call, batch, kept)


def test_ctrl_c_keeps_the_finished_rows(two_sizes, tmp_path):
    results = run(Trouble(KeyboardInterrupt()), with_block_n(16), write=tmp_path)
    assert results.interrupted and [r["size"] for r in results.rows] == ["decode"]
    changed = json.loads((tmp_path / "linear.json").read_text())
    best = {r["size"]: r["block_n"] for r in changed if (r["arch"], r["bits"]) == (0, 16)}
    assert best["decode"] == 16 and best["short"] == 32
    assert [path.name for path in tmp_path.iterdir()] == ["linear.json"]


def test_a_row_that_fails_is_a_failure_of_its_own(two_sizes, tmp_path):
    results = run(
        Trouble(RuntimeError("out of memory\nand more")), with_block_n(16), write=tmp_path
    )
    assert [r["failure"] for r in results.rows] == [None, "RuntimeError: out of memory"]
    assert results.failed and "failed: RuntimeError: out of memory" in results.table()
    assert len(json.loads((tmp_path / "linear.json").read_text())) == len(configs.table("linear"))


def test_rows_without_a_truth_are_left_alone():
    keys = {key for key, _ in study._jobs("sdpa", torch.bfloat16, "cpu")}
    assert {key[3] for key in keys} == {"d64", "d128"}
    assert {key[0] for key in keys} == {
        "sdpa", "sdpa_decode", "sdpa_backward_dkdv", "sdpa_backward_dq"
    }  # fmt: skip


def test_an_override_ends_with_its_block():
    key = ("linear", *KEY)
    with configs.trial(key, {"block_n": 1}):
        assert configs.row("linear", 0, torch.bfloat16, "short") == {"block_n": 1}
    assert configs.row("linear", 0, torch.bfloat16, "short") == configs.table("linear")[KEY]


def test_candidates_begin_with_the_shipped_and_differ():
    for table in ("linear", "sdpa", "sdpa_decode"):
        for (_, bits, _), shipped in configs.table(table).items():
            found = candidates(shipped)
            assert found[0] == shipped
            assert all(set(c) == set(shipped) for c in found)
            assert len({tuple(c.items()) for c in found}) == len(found)
            assert bits == 32 or len(found) > 5


def test_rows_that_a_table_does_not_have_are_refused():
    with pytest.raises(ValueError, match="linear has no rows"):
        merged("linear", {(70, 16, "short"): {}})


def test_bad_input():
    with pytest.raises(ValueError, match="lineer"):
        tune("lineer")
    with pytest.raises(ValueError, match="dtype is 'float32', expected bfloat16 or float16"):
        tune("linear", dtype="float32")
    with pytest.raises(ValueError, match="rounds is 0"):
        tune("linear", rounds=0)
    with pytest.raises(ValueError, match="size"):
        run(Clock({}), candidates, sizes=["huge"])
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="needs a CUDA GPU"):
            tune("linear")


def test_the_readers_of_an_op_are_its_own_tables():
    jobs = dict(study._jobs("linear", torch.bfloat16, "cpu"))
    assert list(jobs) == [("linear", *KEY)]
