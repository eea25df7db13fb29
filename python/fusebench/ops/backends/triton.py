"""`triton`: the kernels of triton_kernels, on a GPU or, to be checked, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _unavailable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not INTERPRETED and not torch.cuda.is_available():
        return "no CUDA GPU here; TRITON_INTERPRET=1 runs it in the interpreter on CPU tensors"
    return None
