"""Calls of the ops for the tests of the CUDA kernels, and the judge of their results."""

from __future__ import annotations

import torch

from fusebench.bench import verify
from fusebench.ops import get_op

BF16, FP16 = torch.bfloat16, torch.float16


def randn(*shape: int, seed: int = 0, scale: float = 1.0, mean: float = 0.0, dtype=BF16):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) * scale + mean).to(dtype)


def run(op: str, *args):
    return getattr(torch.ops.fusebench, f"{op}_cuda")(*args)


def assert_true(op: str, args, result=None) -> None:
    """The result is within twice the error of the reference composition in the same dtype."""
    result = run(op, *args) if result is None else result
    reference = get_op(op).reference
    verdict = verify.judge(result, verify.oracle(reference, args), reference(*args))
    assert verdict.ok, verdict.reason


def linear(m, n, k, norm=None, parts=True, dtype=BF16, mean=0.0):
    def optional(*shape, **how):
        return randn(*shape, dtype=dtype, **how) if parts else None

    return (
        randn(m, k, mean=mean, dtype=dtype), randn(n, k, scale=k**-0.5, dtype=dtype), optional(n),
        optional(m, n, seed=1), norm, optional(k, mean=1.0, scale=0.2) if norm else None,
        optional(k, seed=2) if norm == "layernorm" else None, 1e-5,
    )  # fmt: skip


def qkv_proj(batch, tokens, width, heads, kv_heads, dim, norm="rmsnorm", rope=True, dtype=BF16):
    rows = (heads + 2 * kv_heads) * dim
    angles = torch.outer(torch.arange(tokens).float(), 100.0 ** -torch.linspace(0, 1, dim // 2))
    return (
        randn(batch, tokens, width, dtype=dtype),
        randn(rows, width, scale=width**-0.5, dtype=dtype),
        randn(rows, seed=3, dtype=dtype), heads, kv_heads, norm,
        randn(width, mean=1.0, scale=0.2, dtype=dtype) if norm else None, None, 1e-6,
        angles.cos() if rope else None, angles.sin() if rope else None,
    )  # fmt: skip


def swiglu_ffn(m, width, ffn, norm="layernorm", parts=True, dtype=BF16):
    x, _, b_down, residual, *rest = linear(m, width, width, norm, parts, dtype)
    gate_up = randn(2 * ffn, width, scale=width**-0.5, dtype=dtype)
    down = randn(width, ffn, scale=ffn**-0.5, dtype=dtype)
    return x, gate_up, down, randn(2 * ffn, dtype=dtype) if parts else None, b_down, *rest, residual


def sdpa(batch, heads, kv_heads, tq, tk, dim, causal=True, dtype=BF16):
    return (
        randn(batch, heads, tq, dim, dtype=dtype), randn(batch, kv_heads, tk, dim, dtype=dtype),
        randn(batch, kv_heads, tk, dim, seed=1, dtype=dtype), causal, dim**-0.5,
    )  # fmt: skip


def sdpa_gradients(causal, scale):
    """(q, k, v, grad_out) -> the gradients of the reference composition."""

    def composition(q, k, v, grad):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            out = get_op("sdpa").reference(*leaves, causal, scale)
            return torch.autograd.grad(out, leaves, grad)

    return composition
