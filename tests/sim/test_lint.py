"""The lint finds what goes around the wrappers, and the kernels do not."""

import importlib.util

import pytest
from sim_programs import ROOT

spec = importlib.util.spec_from_file_location("lint_kernels", ROOT / "tools/lint_kernels.py")
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)

BAD = {
    'asm volatile("bar.sync 0;");': "inline assembly",
    "__shared__ float tile[32];": "shared memory by pointer",
    "kernel<<<grid, 32>>>(x);": "without launch",
    "__syncthreads();": "without a wrapper",
    "float v = __expf(x);": "without a wrapper",
    "atomicAdd(p, 1.f);": "atomic without a wrapper",
    "long t = clock64();": "without a wrapper",
    "#include <cuda_fp16.h>": "CUDA header",
    '#include "torch/csrc/stable/tensor.h"': "torch header",
    "uint4 u = *reinterpret_cast<const uint4*>(p);": "use ldg or stg",
    "void f(const float* x, int i) {\n  float v = x[i];\n}": "x: memory read or written directly",
    "void f(T *x, int i) {\n  *x = T();\n}": "x: memory read or written directly",
    "struct E {\n  const T *bias, *more;\n  T get(int i) { return more[i]; }\n};": "more:",
}
GOOD = [
    "// asm and __shared__ in a comment",
    "const float* x = y + 3;",
    "void f(const float* x, int i) {\n  float v = ldg(x + i) * x0;\n}",
    "float v[8];\nload8(p, 8, true, v);\nv[3] = 2 * v[2];",
    '#include "launch.cuh"',
]


@pytest.mark.parametrize("text", BAD)
def test_bad(text: str) -> None:
    found = lint.problems(text)
    assert any(BAD[text] in why for _, why in found), found


@pytest.mark.parametrize("text", GOOD)
def test_good(text: str) -> None:
    assert lint.problems(text) == []


def test_the_kernels_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint.main([]) == 0, capsys.readouterr().out
