"""How much memory one call needs above what was there before it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch


def peak_of(call: Callable[[], Any], device: torch.device | str) -> int | None:
    """Bytes at the peak of the call above the bytes before it: temporaries and outputs.

    Weights and whatever the contestant keeps between calls do not count. On a GPU, the caching
    allocator's peak. On the CPU, the peak of the process's resident memory (VmHWM, reset before
    the call) after unused heap went back to the system: what fits in memory that the heap holds
    on to for other reasons is not seen, so small calls may show 0. None where the system has no
    such counters.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")
        before = resident("VmRSS")
        call()
        return max(0, resident("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def resident(field: str = "VmRSS") -> int:
    """A size in /proc/self/status in bytes: VmRSS now, VmHWM at the peak."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
