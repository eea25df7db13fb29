"""One-line edits of the kernels, and whether the simulator or the numbers notice them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from sim_programs import ROOT, TIMINGS, run_cases

# Name -> the file of csrc/cuda, its text, the text of the mutant. Line breaks do not matter.
Mutants = Mapping[str, tuple[str, str, str]]


def names(mutants: Mutants, fast: Iterable[str]) -> list[object]:
    """Parameters for all of them; those that are not fast are slow."""
    assert set(fast) <= set(mutants), "fast mutants that do not exist"
    return [pytest.param(n, marks=() if n in fast else pytest.mark.slow) for n in mutants]


def noticed(program: Path) -> set[str]:
    """The cases that some schedule does not pass."""
    runs = [run_cases(program, timing=timing) for timing in TIMINGS]
    return {case for run in runs for case, report in run.items() if report != "ok"}


def mutate(folder: Path, file: str, old: str, new: str) -> int:
    """Copy the kernels, with one text of a file replaced everywhere; return in how many places."""
    shutil.copytree(ROOT / "csrc/cuda", folder / "cuda")
    (folder / "sim").symlink_to(ROOT / "csrc/sim")
    path = folder / "cuda" / file
    text = path.read_text()
    # Line breaks are clang-format's business.
    pattern = re.compile(r"\s+".join(map(re.escape, old.split())))
    places = len(pattern.findall(text))
    assert places, f"{file} no longer holds {old!r}: bring this mutant up to date"
    path.write_text(pattern.sub(lambda _: new, text))
    return places


def noticed_by(
    sim_program: Callable[..., Path], folder: Path, cases: Path, mutant: tuple[str, str, str],
    *flags: str,
) -> tuple[set[str], int]:  # fmt: skip
    """The cases that notice a mutant, and the number of places it changes."""
    places = mutate(folder, *mutant)
    program = sim_program(cases, f"-I{folder}", *flags, to=folder / "mutant")
    return noticed(program), places
