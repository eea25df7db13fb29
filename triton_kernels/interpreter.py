"""Repairs Triton's interpreter, which multiplies bfloat16 bits and truncates to bfloat16.

And Triton 3.6's, which cannot count a loop to a run-time bound since NumPy 2.4.

Active only under TRITON_INTERPRET=1. Without it `tl.dot` on bfloat16 operands multiplies the raw
16-bit patterns, and float32 -> bfloat16 rounds towards zero instead of to the nearest even value
(triton-lang/triton#11584), so every bfloat16 test would be comparing the wrong thing.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The bfloat16 bits (uint16) nearest to float32 `values`: ties to even, NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # A carry out of the mantissa is right: it moves to the next power of two, and on to infinity.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    # A NaN's payload may lie in the bits dropped, or the carry may run through it: keep it quiet.
    quiet = (bits >> 16) | np.uint32(0x0040)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bits: exact, also for NaN, infinities and subnormals."""
    return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def install() -> None:
    """Put the repaired conversions, dot and loop bounds into the interpreter. Idempotent."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "_bfloat16_repaired", False):
        return
    handle = interpreter.TensorHandle
    cast_before, fp_to_fp_before = builder.cast_impl, builder.create_fp_to_fp
    dot_before = builder.create_dot

    def repaired(src, dst_type):
        pair = (src.dtype.scalar, dst_type.scalar)
        if pair == (tl.float32, tl.bfloat16):
            return handle(round_to_bfloat16(src.data).reshape(src.data.shape), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return handle(widen_bfloat16(src.data).reshape(src.data.shape), tl.float32)
        return None

    def cast_impl(self, src, dst_type):
        result = repaired(src, dst_type)
        return cast_before(self, src, dst_type) if result is None else result

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        result = repaired(src, dst_type)
        return fp_to_fp_before(self, src, dst_type, rounding_mode) if result is None else result

    def widened(operand):
        if operand.dtype.scalar == tl.bfloat16:
            return handle(widen_bfloat16(operand.data).reshape(operand.data.shape), tl.float32)
        return operand

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        return dot_before(self, widened(a), widened(b), d, input_precision, max_num_imprecise_acc)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.create_dot = create_dot
    builder._bfloat16_repaired = True

    patch_before = interpreter._patch_lang_tensor

    def patch_tensor(tensor, scope):
        patch_before(tensor, scope)
        # A scalar is an array of one element, which int() no longer takes.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor

    run_before = interpreter.GridExecutor.__call__

    def run(self, *args, **kwargs):
        # As on a GPU, infinities and NaN in lanes that a mask discards are no event.
        with np.errstate(all="ignore"):
            return run_before(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = run
