"""Compiles the simulator once per session, and test programs against it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sim_programs import CXX, ROOT, compile_cxx


@pytest.fixture(scope="session")
def sim_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The simulator's object files."""
    if shutil.which(CXX) is None:
        pytest.skip(f"no C++ compiler ({CXX}) to build the simulator's tests with")
    folder = tmp_path_factory.mktemp("sim")
    sources = [p for p in sorted((ROOT / "csrc/sim").glob("*.cpp")) if p.name != "module.cpp"]
    objects = [folder / f"{p.stem}.o" for p in sources]
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(lambda pair: compile_cxx("-c", pair[0], "-o", pair[1]), zip(sources, objects))
        )
    return objects


@pytest.fixture(scope="session")
def sim_program(sim_objects: list[Path]) -> Callable[..., Path]:
    """Compiles `source` (host C++, whatever its suffix) against the simulator."""

    def build(source: Path, *flags: object, to: Path | None = None) -> Path:
        program = to or sim_objects[0].parent / source.stem
        if not program.exists():
            compile_cxx(*flags, "-o", program, "-x", "c++", source, "-x", "none", *sim_objects)
        return program

    return build
