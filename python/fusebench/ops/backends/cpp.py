"""`cpp`: the C++ SIMD kernels of csrc/cpu, for machines without a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from fusebench.ops.registry import LIBRARY, Implementation, Op, define, get_op, register

_C: Any = None
_MISSING: str | None = None
try:
    _C = importlib.import_module("fusebench._C")
except ImportError as error:  # running from a source tree that was not built
    _MISSING = f"the compiled module fusebench._C cannot be loaded ({error})"

OPS = ("embedding", "qkv_proj", "sdpa", "linear", "swiglu_ffn")


def _packed_schema(op: Op) -> str:
    packed = "".join(f", Tensor packed_{weight}" for weight in op.packable)
    arguments, returns = op.schema.rsplit(") ->", 1)
    return f"{arguments}{packed}) ->{returns}"


def _pack(weight_name: str, weight: Tensor) -> Tensor:
    return torch.ops.fusebench.pack_cpp(weight.detach(), weight_name == "w_gate_up")


LIBRARY.define("pack_cpp(Tensor weight, bool gate_up) -> Tensor")

for _name in OPS:
    _op = get_op(_name)
    _packed_call = None
    if _op.packable:
        _count = len(_op.packable)
        _packed_call = define(
            _op, "cpp", suffix="_packed", schema=_packed_schema(_op),
            fake=lambda *args, _op=_op, _count=_count: _op.fake(*args[:-_count]),
        )  # fmt: skip
    register(
        Implementation(
            _name,
            "cpp",
            define(_op, "cpp"),
            ("cpu",),
            (torch.float32, torch.bfloat16),
            source=f"csrc/cpu/{_name}.cpp",
            unavailable=lambda: _MISSING,
            pack=_pack if _op.packable else None,
            packed_call=_packed_call,
        )
    )
