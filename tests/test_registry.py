"""The one door for implementations: what is registered, how it is called, what it must not do."""

import pytest
import torch

import fusebench
from fusebench import ops
from fusebench.ops import registry

OP = ops.OPS["swiglu_ffn"]


@pytest.fixture
def door(monkeypatch):
    """Register under names that no other test sees."""
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))
    count = iter(range(10**6))

    def register(function, **options):
        name = f"{function.__name__.strip('<>')}_{next(door_count)}_{next(count)}"
        fusebench.implementation("swiglu_ffn", name, **{"device": "cpu", **options})(function)
        return name

    return register


door_count = iter(range(10**6))  # torch ops live as long as the process


def args(requires_grad=False, dtype=torch.float32):
    shapes = [(2, 5, 16), (24, 16), (16, 12), (24,), (16,)]
    return [torch.randn(s).mul(0.3).to(dtype).requires_grad_(requires_grad) for s in shapes]


def recompute(*arguments):
    """An implementation that is the reference composition, opaque to the compiler."""
    return OP.reference(*arguments)


def run(name, tensors, **norm):
    return ops.swiglu_ffn(*tensors, residual=tensors[0], impl=name, **norm)


def gradients(call, tensors):
    for t in tensors:
        t.grad = None
    call(tensors).square().sum().backward()
    return [t.grad for t in tensors]


@pytest.mark.parametrize(
    "options", [None, {}, {"dynamic": True}], ids=["eager", "compiled", "dynamic"]
)
@pytest.mark.parametrize("norm", [None, "layernorm", "rmsnorm"])
def test_the_gradient_of_an_implementation_without_one_is_the_references(door, options, norm):
    name = door(recompute, dtypes=[torch.float64])
    tensors = args(requires_grad=True, dtype=torch.float64)

    def call(t):
        return run(name, t, norm=norm)

    if options is not None:
        call = torch.compile(call, fullgraph=True, **options)
    want = gradients(lambda t: run("reference", t, norm=norm), tensors)
    for got, expected in zip(gradients(call, tensors), want):
        torch.testing.assert_close(got, expected)


def test_the_backward_is_said_in_the_metadata(door):
    assert registry.get("swiglu_ffn", door(recompute)).backward == "reference"
    own = door(recompute, backward=lambda g, a, s, n: (None,) * 10)
    assert registry.get("swiglu_ffn", own).backward == "own"


def test_an_own_backward_gets_what_the_forward_saved(door):
    seen = {}

    def saving(*arguments):
        return OP.reference(*arguments), (torch.full((3,), 7.0),)

    def backward(grads, arguments, saved, needs):
        seen["saved"], seen["needs"] = saved[0], needs
        return (grads[0] * 2, *(None,) * 9)

    name, tensors = door(recompute, saving=saving, backward=backward), args()
    x = tensors[0].requires_grad_()
    ops.swiglu_ffn(*tensors, impl=name).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))
    assert torch.equal(seen["saved"], torch.full((3,), 7.0))
    assert seen["needs"][0] and not any(seen["needs"][1:])


def test_no_gradient_no_autograd_function(door):
    name, tensors = door(recompute), args(requires_grad=True)
    with torch.no_grad():
        assert run(name, tensors).grad_fn is None
    assert run(name, [t.detach() for t in tensors]).grad_fn is None
    assert "Differentiable" in type(run(name, tensors).grad_fn).__name__


def test_dtype_device_and_support_are_refused_before_the_call(door):
    only = door(
        recompute,
        dtypes=[torch.float32],
        supports=lambda x, *_: "T is odd" if x.shape[1] % 2 else None,
    )
    with pytest.raises(ValueError, match=r"the dtype is torch.bfloat16"):
        run(only, args(dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="T is odd"):
        run(only, args())
    with pytest.raises(ValueError, match="the device is cpu, expected cuda"):
        run(door(recompute, device="cuda"), args())


def test_packed_is_refused_by_an_implementation_that_packs_nothing(door):
    tensors = args()
    with pytest.raises(ValueError, match="packed was given"):
        ops.swiglu_ffn(*tensors, impl=door(recompute), packed=(tensors[1], tensors[2]))


def test_a_file_of_the_user_is_imported_once(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "import fusebench\n"
        "from fusebench import ops\n"
        "@fusebench.implementation('linear', 'from_file', device='cpu')\n"
        "def linear(*args): return ops.OPS['linear'].reference(*args).clone()\n"
    )
    registry.load_file(file)
    registry.load_file(file)
    x, w = torch.randn(2, 8), torch.randn(4, 8)
    torch.testing.assert_close(ops.linear(x, w, impl="from_file"), x @ w.t())
    assert registry.get("linear", "from_file").source == str(file)
    with pytest.raises(FileNotFoundError, match="no file"):
        registry.load_file(tmp_path / "absent.py")


def test_entry_points_are_loaded_once(monkeypatch):
    loads = []

    class Point:
        value, name = "package:register", "package"

        def load(self):
            loads.append(self.value)

    monkeypatch.setattr(registry, "_LOADED", set())
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    registry.load_entry_points()
    registry.load_entry_points()
    assert loads == ["package:register"]
