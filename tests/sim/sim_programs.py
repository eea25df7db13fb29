"""How the simulator's test programs are compiled and run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CXX = os.environ.get("CXX", "c++")
TIMINGS = ("early", "late", "random")
FLAGS = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", f"-I{ROOT}/csrc"]


def compile_cxx(*args: object) -> None:
    done = subprocess.run([CXX, *map(str, args), *FLAGS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def run_cases(program: Path, *names: str, seed: int = 0, timing: str = "random") -> dict[str, str]:
    """What each case of a test program (see harness.h) reports: `ok`, or a message."""
    env = {
        **os.environ,
        "FUSEBENCH_SIMULATE_SEED": str(seed),
        "FUSEBENCH_SIMULATE_TIMING": timing,
    }
    done = subprocess.run(
        [program, "run", *names], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode in (0, 1), f"{program.name} crashed: {done.stderr or done.stdout[-500:]}"
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())
