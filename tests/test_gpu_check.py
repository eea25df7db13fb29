"""tools/gpu_check.sh, run with stand-ins for what it calls: what it would do must be valid."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from fusebench import cli
from fusebench.bench import shapes
from fusebench.bench.workload import Workload
from fusebench.ops import OPS
from fusebench.studies.op import sites_of
from fusebench.variant import SITES, Variant

SCRIPT = Path(__file__).parents[1] / "tools" / "gpu_check.sh"
# Logs its arguments, one a line and a blank line behind them; fails or hangs where told to.
STAND_IN = """#!/bin/bash
printf '%s\\n' "${0##*/}" "$@" '' >>"$CALLS"
[[ $0 == */nvcc ]] && cp "$0" probe
[[ -n $FAIL && "$*" == *$FAIL* ]] && exit 3
[[ -n $HANG && "$*" == *$HANG* ]] && exec sleep 60
while (($#)); do
  [[ $1 == --json && $2 == /* ]] && echo '{}' >"$2"
  shift
done
exit 0
"""


@pytest.fixture
def run(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("python", "nvcc", "nvidia-smi", "compute-sanitizer"):
        (bin / name).write_text(STAND_IN)
        (bin / name).chmod(0o755)

    def run(fail="", hang="", seconds="400"):
        calls = tmp_path / "calls"
        environment = {
            **os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "PYTHON": str(bin / "python"),
            "CALLS": str(calls), "FAIL": fail, "HANG": hang, "GPU_CHECK_SECONDS": seconds,
        }  # fmt: skip
        ended = subprocess.run(
            ["bash", str(SCRIPT), str(tmp_path / "out")],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        made = [call.split("\n") for call in calls.read_text().split("\n\n")]
        return ended, tmp_path / "out", made

    return run


def test_every_command_is_valid(run):
    ended, out, calls = run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    commands = [call[3:] for call in calls if call[1:3] == ["-m", "fusebench.cli"]]
    assert {c[0] for c in commands} == {"info", "op", "compare"}
    for arguments in commands:
        group = cli.cli.make_context("fusebench", list(arguments))
        name, command, rest = cli.cli.resolve_command(group, list(arguments))
        given = command.make_context(name, list(rest), parent=group).params
        if name != "info":
            workload = Workload(given["model"], given["batch"], given["seq"], given["dtype"], "cpu")
            assert workload.dtype == "bfloat16" and given["rounds"] > 1
        if name == "op":
            assert sites_of(given["name"])
            assert all(shapes.of(text, workload).seq > 1 for text in given["shape"])
        if name == "compare":
            assert [str(Variant.parse(v)) for v in given["variants"]] == list(given["variants"])
    models = {c[c.index("--model") + 1] for c in commands if c[0] == "compare"}
    assert models == {"seed", "gpt2-small"}
    assert {SITES.get(c[1], c[1]) for c in commands if c[0] == "op"} == set(OPS)
    for call in calls:  # files of the tree that it names
        for word in call:
            if word.startswith(str(SCRIPT.parents[1])):
                assert Path(word).exists(), word


def test_the_figures_in_small(tmp_path):
    """The same code as on a GPU, in the interpreter: every contestant runs and is right."""
    pytest.importorskip("triton")
    path = tmp_path / "figures.json"
    ended = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("gpu_figures.py")), str(path), "--tiny"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["failure"] for row in rows] == [None] * 12
    assert len({row["figure"] for row in rows}) == 6
    assert all(row["median_ms"] > 0 and row["triton_speedup"]["value"] > 0 for row in rows)


def test_what_it_leaves(run):
    ended, out, calls = run()
    names = {path.name for path in out.iterdir()}
    assert {"log.txt", "summary.txt", "results.tar.gz", "info.json", "compare-seed.json"} <= names
    with tarfile.open(out / "results.tar.gz") as archive:
        packed = {Path(m).name for m in archive.getnames()} - {"", "."}
    assert packed == names - {"results.tar.gz"}
    assert "tests: exit 0" in (out / "summary.txt").read_text()


def test_a_step_that_fails_or_hangs_stops_no_other(run):
    ended, out, _ = run(fail="-m gpu", hang="op-sdpa-512", seconds="20")
    summary = (out / "summary.txt").read_text()
    assert ended.returncode == 1
    assert "tests: exit 3" in summary and "op-sdpa-512: exit 124" in summary
    assert summary.rstrip().endswith("racecheck: left out, the time is up")
    assert (out / "results.tar.gz").exists()
