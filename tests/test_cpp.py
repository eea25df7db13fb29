"""The C++ kernels under every instruction set this CPU has, packed weights, and their errors."""

import os
import subprocess
import sys

import pytest
import torch

from fusebench.bench import verify
from fusebench.ops import registry
from fusebench.studies.cases import GRID

_C = pytest.importorskip("fusebench._C", reason="fusebench is not built")
SUPPORTED = _C.cpu_info()["isa_supported"]
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture
def isa(request):
    """The instruction set of a test; the one in use before comes back afterwards."""
    before = _C.cpu_info()["isa"]
    _C.use_isa(request.param)
    yield request.param
    _C.use_isa(before)


def _packed(op, arguments):
    """The arguments' weights as the implementation packs them."""
    impl = registry.get(op.name, "cpp")
    return [impl.pack(n, arguments[op.arguments.index(n)]) for n in op.packable]


@pytest.mark.parametrize("isa", SUPPORTED, indirect=True)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["embedding", "qkv_proj", "sdpa", "linear", "swiglu_ffn"])
def test_right_under_every_instruction_set(name, dtype, isa):
    op, impl = registry.get_op(name), registry.get(name, "cpp")
    cases = 0
    with torch.no_grad():
        for case in GRID[name](dtype, "cpu"):
            args = case.make()
            truth, plain = verify.oracle(op.reference, args), op.reference(*args)
            results = {"unpacked": impl.call(*args)}
            if op.packable:
                results["packed"] = impl.packed_call(*args, *_packed(op, args))
            for kind, result in results.items():
                verdict = verify.judge(result, truth, plain)
                assert verdict.ok, f"{isa} {case.name} {kind}: {verdict}"
            cases += 1
    assert cases > 5


@pytest.mark.parametrize("isa", SUPPORTED, indirect=True)
def test_one_thread_and_many_agree(isa):
    """A region's tasks are the same whoever takes them, so the results are the same bits."""
    x, w = torch.randn(150, 320), torch.randn(640, 320) / 18
    down = torch.randn(320, 320) / 18
    args = (x, w, down, None, None, "rmsnorm", None, None, 1e-5, x)
    call, threads = registry.get("swiglu_ffn", "cpp").call, torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(call(*args))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_packed_weight_of_another_kind_is_refused():
    x, w = torch.randn(3, 64), torch.randn(48, 64)
    call = registry.get("linear", "cpp").packed_call
    args = (x, w, None, None, None, None, None, 1e-5)
    pack = torch.ops.fusebench.pack_cpp
    for wrong in (w, pack(w[:32], False), pack(w, True), pack(w.bfloat16(), False).float()):
        with pytest.raises(RuntimeError, match=r"packed_weight .*accepted"):
            call(*args, wrong.reshape(-1))


def test_direct_calls_name_the_argument():
    ops = torch.ops.fusebench
    x, w = torch.randn(2, 8), torch.randn(4, 8)
    with pytest.raises(RuntimeError, match=r"weight has shape \[4, 7\].*accepted"):
        ops.linear_cpp(x, w[:, :7], None, None, None, None, None, 1e-5)
    with pytest.raises(RuntimeError, match="norm is 'batch'"):
        ops.linear_cpp(x, w, None, None, "batch", None, None, 1e-5)
    with pytest.raises(RuntimeError, match=r"tokens holds the id 9; accepted: ids in \[0, 4\)"):
        ops.embedding_cpp(torch.tensor([[1, 9]]), w, None, 0)
    with pytest.raises(RuntimeError, match="another dtype"):
        ops.linear_cpp(x.double(), w.double(), None, None, None, None, None, 1e-5)


@pytest.mark.parametrize("isa", ["mmx", "AVX2"])
def test_an_unknown_instruction_set_is_refused(isa):
    code = "import fusebench; from fusebench import _C; _C.cpu_info()"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "FUSEBENCH_CPU_ISA": isa},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode != 0
    assert f"FUSEBENCH_CPU_ISA: '{isa}' is not an instruction set; accepted: amx" in run.stderr
