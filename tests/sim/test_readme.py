"""The README's kernel, built and run as the README says; and with the line it says to leave out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from sim_programs import CXX, ROOT

README = (ROOT / "csrc/sim/README.md").read_text()


def block(language: str) -> str:
    """The README's block of code, as one copies it."""
    match = re.search(rf"^   ```{language}\n(.*?)^   ```", README, re.M | re.S)
    assert match is not None
    return re.sub("^   ", "", match[1], flags=re.M)


def follow(folder: Path, source: str) -> list[str]:
    (folder / "csrc").symlink_to(ROOT / "csrc")  # "from the root of the project"
    (folder / "try.cu").write_text(source)
    commands = block("sh").replace("c++ -std", f"{CXX} -std").replace("|| break", "|| true")
    run = subprocess.run(["sh", "-ec", commands], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.splitlines()


def test_the_kernel_is_right(sim_objects, tmp_path: Path) -> None:
    assert follow(tmp_path, block("cpp")) == ["right"] * 3


@pytest.mark.slow
def test_without_its_barrier_every_seed_says_so(sim_objects, tmp_path: Path) -> None:
    source = block("cpp")
    assert source.count("  sync_block();\n") == 1
    reports = follow(tmp_path, source.replace("  sync_block();\n", ""))
    line = next(i for i, text in enumerate(source.splitlines()) if "stg(y + i" in text)
    for report in reports:
        assert re.search(
            r"simulated kernel reverse .*(race: shared load|nothing has written)", report
        )
        assert f"try.cu:{line}:" in report
    assert len(reports) == 3
