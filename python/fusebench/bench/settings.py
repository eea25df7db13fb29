"""torch's settings that hold for the whole process: whether somebody changed them, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Setting(NamedTuple):
    get: Callable[[], Any]
    put: Callable[[Any], Any]


def _flushes_denormals() -> bool:
    return bool(torch.tensor(1e-310, dtype=torch.float64, device="cpu") * 1 == 0)


SETTINGS = {
    "the number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
    "the default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": Setting(
        lambda: str(torch.get_default_device()),
        lambda device: torch.set_default_device(None if device == "cpu" else device),
    ),
    "grad mode": Setting(torch.is_grad_enabled, torch._C._set_grad_enabled),
    "deterministic algorithms": Setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    "the float32 matmul precision": Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "flushing of denormals": Setting(_flushes_denormals, torch.set_flush_denormal),
    "autocast on cpu": Setting(
        lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)
    ),
    "autocast on cuda": Setting(
        lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)
    ),
    "torch.backends.mkldnn.enabled": Setting(
        torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled
    ),
    "flash SDPA": Setting(
        torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp
    ),
    "memory-efficient SDPA": Setting(
        torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp
    ),
    "math SDPA": Setting(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "cuDNN SDPA": Setting(
        torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp
    ),
    # By the functions: the module's flags may be frozen (torch.testing does so).
    "torch.backends.cudnn.enabled": Setting(
        torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled
    ),
    "torch.backends.cudnn.benchmark": Setting(
        torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark
    ),
}


class Settings:
    """The settings as they are now."""

    def __init__(self) -> None:
        self.values = {name: setting.get() for name, setting in SETTINGS.items()}

    def put_back(self) -> list[str]:
        """Put back what has changed since; in words, what had."""
        changed = []
        for name, setting in SETTINGS.items():
            before, now = self.values[name], setting.get()
            if now != before:
                setting.put(before)
                changed.append(f"{name} from {before} to {now}")
        return changed
