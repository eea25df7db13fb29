"""The ceilings of this machine: what no kernel on it can exceed."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from fusebench.bench import timing
from fusebench.bench.statistics import median

# Floating-point operations per clock and multiprocessor: tensor cores for 16 bits, dense, and
# CUDA cores for float32 (NVIDIA's architecture white papers).
_PER_CLOCK = {(8, 0): (2048, 128), (8, 6): (1024, 256), (8, 9): (1024, 256), (9, 0): (4096, 256),
              (10, 0): (8192, 256), (12, 0): (1024, 256)}  # fmt: skip


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Floating-point operations per second in this dtype that the device cannot exceed.

    On the CPU measured by fusebench's micro-kernels with torch's present threads, on a GPU
    computed from its clock and width. None where neither is possible.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        per_clock = _PER_CLOCK.get((properties.major, properties.minor))
        rate = getattr(properties, "clock_rate", None)
        if per_clock is None or rate is None:
            return None
        width = per_clock[1] if dtype == torch.float32 else per_clock[0]
        return float(width * properties.multi_processor_count * rate * 1e3)
    return _measured_peak(str(dtype).removeprefix("torch."), torch.get_num_threads())


@cache
def _measured_peak(dtype: str, threads: int) -> float | None:
    module = _compiled("measure_peak")
    if module is None:
        return None
    # With the best instruction set, whatever the cpp kernels were told to use: torch has it too.
    facts = module.cpu_info()
    module.use_isa(facts["isa_supported"][0])
    try:
        return module.measure_peak(dtype, threads)
    finally:
        module.use_isa(facts["isa"])


def bandwidth(device: torch.device, working_set: int) -> float | None:
    """Bytes per second that can be read from a working set of so many bytes.

    On the CPU measured with torch's present threads, so that what fits a cache has the cache's
    bandwidth; on a GPU that of its memory, from its clock and bus width. None where not known.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        rate = getattr(properties, "memory_clock_rate", None)
        width = getattr(properties, "memory_bus_width", None)
        return 2e3 * rate * width / 8 if rate and width else None
    # Powers of two: the size matters by its cache level only, and each is measured once.
    return _measured_bandwidth(
        1 << max(12, (working_set - 1).bit_length()), torch.get_num_threads()
    )


@cache
def _measured_bandwidth(working_set: int, threads: int) -> float | None:
    module = _compiled("measure_bandwidth")
    return None if module is None else module.measure_bandwidth(working_set, threads)


def _compiled(function: str) -> Any:
    try:
        from fusebench import _C
    except ImportError:
        return None
    return _C if hasattr(_C, function) else None


def matmul_flops(device: torch.device, dtype: torch.dtype, size: int = 1024) -> float:
    """What torch's own matrix product reaches on a size x size problem: a floor, not a ceiling."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    timer = timing.clock(device)
    seconds = [timer.turn(torch.mm, [(a, b)] * 3, 0).seconds for _ in range(7)]
    return 2.0 * size**3 / median(seconds)
