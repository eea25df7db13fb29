"""The repaired interpreter: bfloat16 conversions and products bit for bit as torch has them."""

import numpy as np
import torch
import triton
import triton.language as tl

from fusebench.triton_kernels.interpreter import round_to_bfloat16, widen_bfloat16


def test_every_bfloat16_widens_as_in_torch():
    bits = np.arange(65536, dtype=np.uint16)
    ours = torch.from_numpy(widen_bfloat16(bits).view(np.int32).copy())
    theirs = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).float()
    assert torch.equal(ours, theirs.view(torch.int32))


def test_rounding_is_to_nearest_even_with_infinities_and_nan():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=generator, dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    edges = torch.tensor(
        [0.0, -0.0, 1.00390625, 1.01171875, 3.3961776e38, -3.4e38, float("inf"), -float("inf")]
    )
    x = torch.cat([x, edges])
    ours = torch.from_numpy(round_to_bfloat16(x.numpy()).view(np.int16)).view(torch.bfloat16)
    theirs = x.bfloat16()
    nan = x.isnan()
    assert nan.any() and ours[nan].isnan().all()
    assert torch.equal(ours[~nan].view(torch.int16), theirs[~nan].view(torch.int16))


def test_a_nan_whose_payload_is_dropped_stays_nan():
    x = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], dtype=np.uint32).view(np.float32)
    assert np.isnan(widen_bfloat16(round_to_bfloat16(x))).all()


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)).to(c.dtype.element_ty))


def test_dot_multiplies_values_not_bits():
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    a[0, 0], b[3, 5] = float("nan"), float("inf")
    c = torch.empty(16, 16)
    dot_kernel[(1,)](a, b, c, 16)
    wanted = a.float() @ b.float()
    assert torch.equal(c.isnan(), wanted.isnan())
    finite = wanted.isfinite()
    assert torch.allclose(c[finite], wanted[finite], rtol=1e-5, atol=1e-5)
    out = torch.empty(16, 16, dtype=torch.bfloat16)
    dot_kernel[(1,)](a, b, out, 16)
    assert torch.equal(out[finite], c.bfloat16()[finite])
