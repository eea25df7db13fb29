"""`triton`: the kernels of triton_kernels, on a GPU or, to be checked, in Triton's interpreter.

`triton_recompute` is `triton` with another backward: one that saves less and computes it again.

On a GPU each launcher is a triton_op, so torch.compile sees the kernels. In the interpreter, which
torch.compile cannot look into, it is an opaque op on CPU tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusebench.ops.registry import LIBRARY, Implementation, Op, define, get_op, register

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INSTALLED = importlib.util.find_spec("triton") is not None


def _unavailable() -> str | None:
    if not INSTALLED:
        return "triton is not installed"
    if not INTERPRETED and not torch.cuda.is_available():
        return "no CUDA GPU here; TRITON_INTERPRET=1 runs it in the interpreter on CPU tensors"
    return None


@dataclass(frozen=True)
class Kernels:
    """How an op's launchers `<op>`, `<op>_saving` and `<op>_backward` become torch ops.

    Of `triton_recompute`, `<op>_recompute_saving` and `<op>_recompute_backward` take their places.

    differentiable: the arguments `<op>_backward` returns gradients of, in its order.
    saved: names of what `<op>_saving` returns behind the outputs. Without any, it is not called.
    saved_fakes: their fakes from the op's arguments; None for what this call does not save.
    output_saved: whether the backward gets the output itself too, behind what is saved.
    identity: the argument, if any, whose gradient is the output's own (a residual).
    supports: why a call is refused, or None.
    """

    differentiable: tuple[str, ...]
    saved: tuple[str, ...] = ()
    saved_fakes: Callable[..., tuple[Tensor | None, ...]] = lambda *args: ()
    output_saved: bool = False
    identity: str | None = None
    supports: Callable[..., str | None] = lambda *args: None


def _head_dim(d: int, dtype: torch.dtype) -> str | None:
    """Why a head dimension is refused: its tiles would not fit registers and shared memory."""
    if 1 <= d <= (128 if dtype == torch.float32 else 256):
        return None
    name = str(dtype).removeprefix("torch.")
    return f"q has head_dim {d} in {name}, accepted: 1 to 256, and 1 to 128 in float32"


def _stats(x: Tensor, norm: str | None) -> tuple[Tensor | None, Tensor | None]:
    """Each row's mean and 1/deviation, as far as the norm has them."""
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0

    def one() -> Tensor:
        return x.new_empty((rows,), dtype=torch.float32)

    return one() if norm == "layernorm" else None, None if norm is None else one()


KERNELS: dict[tuple[str, str], Kernels] = {
    ("embedding", "triton"): Kernels(("token_weight", "position_weight")),
    ("qkv_proj", "triton"): Kernels(
        ("x", "weight", "bias", "norm_weight", "norm_bias"),
        ("mean", "rstd"),
        lambda x, weight, bias, num_heads, num_kv_heads, norm, *rest: _stats(x, norm),
    ),
    ("sdpa", "triton"): Kernels(
        ("q", "k", "v"),
        ("lse",),
        lambda q, *rest: (q.new_empty(q.shape[:3], dtype=torch.float32),),
        output_saved=True,
        supports=lambda q, *rest: _head_dim(q.shape[-1], q.dtype),
    ),
    ("linear", "triton"): Kernels(
        ("x", "weight", "bias", "norm_weight", "norm_bias"),
        ("mean", "rstd"),
        lambda x, weight, bias, residual, norm, *rest: _stats(x, norm),
        identity="residual",
    ),
    ("swiglu_ffn", "triton"): Kernels(
        ("x", "w_gate_up", "w_down", "b_gate_up", "b_down", "norm_weight", "norm_bias"),
        ("gate_up", "mean", "rstd"),
        lambda x, w_gate_up, w_down, b_gate_up, b_down, norm, *rest: (
            x.new_empty((x.numel() // max(x.shape[-1], 1), w_gate_up.shape[0])),
            *_stats(x, norm),
        ),
        identity="residual",
    ),
    ("swiglu_ffn", "triton_recompute"): Kernels(
        ("x", "w_gate_up", "w_down", "b_gate_up", "b_down", "norm_weight", "norm_bias"),
        ("mean", "rstd"),
        lambda x, w_gate_up, w_down, b_gate_up, b_down, norm, *rest: _stats(x, norm),
        identity="residual",
    ),
    ("linear_cross_entropy", "triton"): Kernels(
        ("x", "weight"),
        ("lse",),
        lambda x, weight, targets, *rest: (x.new_empty((2, targets.numel()), dtype=torch.float32),),
    ),
}


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _place(tensors: tuple[Tensor | None, ...], like: Tensor) -> tuple[Tensor, ...]:
    """Torch ops return tensors only: an empty one stands for None."""
    return tuple(like.new_empty(0) if t is None else t for t in tensors)


def _torch_op(
    op: Op, impl: str, suffix: str, schema: str, fake: Callable, launcher: str
) -> Callable[..., Any]:
    """The torch op `fusebench::<op>_<impl><suffix>` that runs a launcher of triton_kernels."""
    name = f"{op.name}_{impl}{suffix}"

    def run(*args):
        like = next(a for a in args if isinstance(a, Tensor) and a.is_floating_point())
        with _on_device_of(like):
            outputs = getattr(_module(op.name), launcher)(*args)
        return _place(outputs, like) if isinstance(outputs, tuple) else outputs

    if INSTALLED and not INTERPRETED and torch.cuda.is_available():
        from fusebench.triton_kernels import launch

        launch.wrap_launches(torch.library.wrap_triton)
        made: Any = torch.library.triton_op(
            f"fusebench::{name}", run, mutates_args={}, schema=schema
        )
        made.register_fake(fake)
        return getattr(torch.ops.fusebench, name).default
    torch_op = define(op, impl, suffix=suffix, schema=schema, fake=fake)
    if INSTALLED and INTERPRETED:
        LIBRARY.impl(name, run, "CPU")
    return torch_op


def _on_device_of(x: Tensor) -> AbstractContextManager:
    """Triton launches on the current device, wherever the tensors are."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


def _module(name: str) -> Any:
    return importlib.import_module(f"fusebench.triton_kernels.{name}")


def _register(op: Op, impl: str, kernels: Kernels) -> None:
    training = op.name + impl.removeprefix("triton")  # what the launchers of a step begin with
    arguments, returns = op.schema.removeprefix("(").rsplit(") -> ", 1)
    count = returns.count("Tensor")
    positions = [op.arguments.index(name) for name in kernels.differentiable]

    def like(args):  # the first floating-point argument: x, q or the token weight
        return args[1] if op.name == "embedding" else args[0]

    def saving_fake(*args):
        return (*_tuple(op.fake(*args)), *_place(kernels.saved_fakes(*args), like(args)))

    def backward_fake(*args):
        args = args[count : count + len(op.arguments)]
        gradients = (args[i] for i in positions)
        return _place(
            tuple(g if g is None else g.new_empty(g.shape) for g in gradients), like(args)
        )

    def tensors(n: int) -> str:
        return f"({', '.join(['Tensor'] * n)})"

    forward = _torch_op(op, impl, "", op.schema, op.fake, op.name)
    inputs = [f"Tensor grad_{i}" for i in range(count)] + [arguments]
    inputs += [f"Tensor? saved_{name}" for name in kernels.saved]
    inputs += ["Tensor output"] if kernels.output_saved else []
    schema = f"({', '.join(inputs)}) -> {tensors(len(positions))}"
    torch_backward = _torch_op(op, impl, "_backward", schema, backward_fake, f"{training}_backward")
    saving = None
    if kernels.saved:
        schema = f"({arguments}) -> {tensors(count + len(kernels.saved))}"
        torch_saving = _torch_op(op, impl, "_saving", schema, saving_fake, f"{training}_saving")

        def saving(*args):
            outputs = torch_saving(*args)
            saved = tuple(outputs[count:]) + ((outputs[0],) if kernels.output_saved else ())
            return outputs[0] if count == 1 else tuple(outputs[:count]), saved

    def backward(grads, args, saved, needs):
        present = kernels.saved_fakes(*args)
        kept = [None if p is None else s for p, s in zip(present, saved)]
        found = torch_backward(*grads, *args, *kept, *saved[len(kept) :])
        gradients: list[Tensor | None] = [None] * len(args)
        for position, gradient in zip(positions, found):
            if args[position] is not None and needs[position]:
                gradients[position] = gradient
        if kernels.identity is not None:
            position = op.arguments.index(kernels.identity)
            gradients[position] = grads[0] if needs[position] else None
        return tuple(gradients)

    register(
        Implementation(
            op.name,
            impl,
            forward,
            ("cpu",) if INTERPRETED else ("cuda",),
            source=f"triton_kernels/{op.name}.py",
            unavailable=_unavailable,
            supports=kernels.supports,
            timed=not INTERPRETED,
        ),
        saving=saving,
        backward=backward,
    )


for (_name, _impl), _kernels in KERNELS.items():
    _register(get_op(_name), _impl, _kernels)
