"""Where a study ran: versions, processor, threads, load, GPU, and how noisy the machine was."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import subprocess
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fusebench.bench.statistics import median, p95
from fusebench.bench.timing import now

NOISY = 0.15  # a metronome whose p95 is this far above its median was disturbed
BUSY = 0.10  # as much of the processors taken by others is a warning


def environment() -> dict[str, Any]:
    """Facts of this machine and process that a result depends on."""
    return {
        "fusebench": _version("fusebench"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "build": build_info(),
        "threads": torch.get_num_threads(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "gpus": gpus(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def build_info() -> dict[str, Any] | None:
    """What fusebench's compiled module knows about itself and the processor; None if not built."""
    try:
        built = importlib.import_module("fusebench._C")
    except ImportError:
        return None
    return {**built.build_info(), **built.cpu_info()}


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """Each GPU with its name, capability, memory and, where nvidia-smi is, its clocks now."""
    if not torch.cuda.is_available():
        return []
    clocks = _clocks()
    found = []
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": p.name,
                "capability": f"{p.major}.{p.minor}",
                "memory_bytes": p.total_memory,
                "multiprocessors": p.multi_processor_count,
                "l2_bytes": p.L2_cache_size,
                **(clocks[index] if index < len(clocks) else {}),
            }
        )
    return found


_SMI = {
    "driver": "driver_version", "sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu", "power_w": "power.draw",
    "throttle_reasons": "clocks_throttle_reasons.active",
}  # fmt: skip


def _clocks() -> list[dict[str, str]]:
    query = [
        "nvidia-smi",
        f"--query-gpu={','.join(_SMI.values())}",
        "--format=csv,noheader,nounits",
    ]
    try:
        out = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(_SMI, map(str.strip, line.split(",")))) for line in out.splitlines()]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass
class Noise:
    """A metronome and an account of the processors, to tell whether a race was disturbed.

    The metronome does the same fixed work once a round; its spread and drift are the machine's.
    """

    ticks: list[float] = field(default_factory=list)
    _work: bytes = field(default=bytes(1 << 17), repr=False)

    def __post_init__(self) -> None:
        self._start = _processor_seconds()
        self._begun = now()

    def tick(self, round_index: int) -> None:
        """Beat once a round."""
        if round_index < len(self.ticks):
            return
        start = now()
        hashlib.sha256(self._work).digest()
        self.ticks.append(now() - start)

    def report(self) -> dict[str, Any]:
        """spread: p95 / median - 1 of the metronome. drift: its last third against its first.
        others: the share of the processors that other processes used. warnings: in words."""
        result: dict[str, Any] = {"spread": None, "drift": None, "others": self._others()}
        warnings = []
        if len(self.ticks) >= 6:
            third = len(self.ticks) // 3
            result["spread"] = p95(self.ticks) / median(self.ticks) - 1
            result["drift"] = median(self.ticks[-third:]) / median(self.ticks[:third]) - 1
            if result["spread"] > NOISY:
                warnings.append(
                    f"the machine was noisy: the same fixed work took up to "
                    f"{100 * result['spread']:.0f}% longer (p95) than usual"
                )
            if abs(result["drift"]) > NOISY:
                warnings.append(
                    f"the clock drifted: the same fixed work took {100 * result['drift']:+.0f}% "
                    "at the end of the race"
                )
        if result["others"] is not None and result["others"] > BUSY:
            warnings.append(
                f"other processes used {100 * result['others']:.0f}% of the processors meanwhile"
            )
        for gpu in gpus():
            active = gpu.get("throttle_reasons", "")
            # 0x1 is idle; the bits of 0xe8 are thermal and power brakes.
            if active.startswith("0x") and int(active, 16) & 0xE8:
                warnings.append(f"{gpu['name']} was throttled ({active})")
        result["warnings"] = warnings
        return result

    def _others(self) -> float | None:
        then = _processor_seconds()
        if then is None or self._start is None:
            return None
        elapsed = now() - self._begun
        mine = then[1] - self._start[1]
        busy = then[0] - self._start[0]
        if elapsed < 1:  # the system counts in hundredths of a second
            return None
        return max(0.0, (busy - mine) / (elapsed * (os.cpu_count() or 1)))


def _processor_seconds() -> tuple[float, float] | None:
    """Seconds of processor time used by everybody since boot, and by this process."""
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(
                int, stat.readline().split()[1:9]
            )
    except (OSError, ValueError):
        return None
    ticks = user + nice + system + irq + softirq + steal
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system
