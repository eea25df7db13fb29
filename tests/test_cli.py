"""The command line: exit codes, errors in one line, files that stay whole."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fusebench import cli
from fusebench.ops import registry
from fusebench.report import results as results_module
from fusebench.report.results import Results
from fusebench.studies import compare as compare_module

SMALL = ("--seq", "8", "--rounds", "5", "--quiet")


def run(capsys, *args):
    with pytest.raises(SystemExit) as end:
        cli.main(list(args))
    out, err = capsys.readouterr()
    return end.value.code, out, err


@pytest.mark.parametrize(
    "args, words",
    [
        (["comper"], ["unknown command 'comper'", "did you mean 'compare'"]),
        (["compare", "reference@defualt"], ["unknown mode", "did you mean 'default'"]),
        (["compare", "refrence@eager"], ["unknown implementation", "'reference'"]),
        (["compare", "reference"], ["malformed", "PLAN@MODE"]),
        (["compare", "sdap=cpp@eager"], ["unknown site", "did you mean 'sdpa'"]),
        (["compare", "--model", "sed"], ["unknown model", "did you mean 'seed'"]),
        (["compare", "--dtype", "float23"], ["unknown dtype", "did you mean 'float32'"]),
        (["compare", "--batch", "0"], ["batch is 0", "at least 1"]),
        (["compare", "--seq", "9999"], ["seq is 9999", "at most 1024"]),
        (["compare", "--rounds", "0"], ["rounds is 0", "at least 1"]),
        (["compare", "--threads", "0"], ["threads is 0", "expected 1 to"]),
        (["compare", "--threads", "100000"], ["threads is 100000", "expected 1 to"]),
        (["compare", "--seed", "-1"], ["seed is -1", "expected 0 to"]),
        (["compare", "--batch", "100000000000"], ["batch * seq is", "at most"]),
        (["compare", "--plan", "/tmp"], ["/tmp"]),
        (["diff", "/tmp", "/tmp"], ["/tmp"]),
        (["op", "sdpa", "--shape", "T=99999999999999999999999"], ["at most"]),
        (["shapes", "--lengths", "9" * 5000], ["--lengths", "whole numbers like 64,128"]),
        (["compare", "--text", "/no/such/file"], ["not a file"]),
        (["compare", "--json", "/no/such/folder/x.json"], ["--json", "a folder that exists"]),
        (["compare", "--wit", "x"], ["--wit"]),
        (["compare", "--with", "/no/such.py"], ["no file"]),
        (["compare", "reference@eager", "reference@eager"], ["given twice"]),
        (["op", "sdap"], ["unknown op or site", "did you mean 'sdpa'"]),
        (["op", "sdpa", "cpp"], ["malformed", "CHOICE@MODE"]),
        (["diff", "/no/a.json", "/no/b.json"], ["not a file"]),
        (["compare", "--json", "x", "--csv", "./x"], ["--csv", "as for --json", "of its own"]),
        (["compare", "--csv", "-"], ["--csv", "only --json writes to the standard output"]),
        (["check", "--with", "/tmp"], ["--with", "'/tmp', a folder", "a Python file"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, args, words):
    code, out, err = run(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("fusebench: ") and err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_help_lists_the_commands(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "compare" in out and "info" in out


def test_info(capsys):
    code, out, _ = run(capsys, "info", "--json")
    facts = json.loads(out)
    assert code == 0
    assert {i["impl"] for i in facts["implementations"] if i["op"] == "swiglu_ffn"} >= {"reference"}
    code, out, _ = run(capsys, "info")
    assert code == 0 and "swiglu_ffn" in out
    assert max(map(len, out.splitlines())) <= 100


def test_compare_writes_json_that_reads_back(capsys, tmp_path):
    path = tmp_path / "out.json"
    code, out, err = run(capsys, "compare", "reference@eager", *SMALL, "--json", str(path))
    assert code == 0, err
    assert "reference@eager" in out and "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    data = json.loads(path.read_text())
    assert data["schema"] == 1 and len(data["rows"]) == 1
    assert results_module.load(path).rows == data["rows"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def _registered(monkeypatch):
    """Implementations registered by a test are gone after it."""
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))


@pytest.mark.usefixtures("_registered")
def test_a_failed_variant_is_shown_and_the_others_run(capsys, tmp_path):
    file = tmp_path / "wrong_impl.py"
    file.write_text(
        "import torch, fusebench\n"
        "@fusebench.implementation('sdpa', 'wrong', device='cpu')\n"
        "def wrong(q, k, v, causal, scale):\n"
        "    b, h, t, d = q.shape\n"
        "    return torch.zeros(b, t, h, d, dtype=q.dtype).transpose(1, 2)\n"
        "@fusebench.implementation('sdpa', 'broken', device='cpu')\n"
        "def broken(q, k, v, causal, scale):\n"
        "    raise RuntimeError('no such luck')\n"
    )
    code, out, _ = run(
        capsys, "compare", "sdpa=wrong@eager", "sdpa=broken@eager", "reference@eager", *SMALL,
        "--with", str(file), "--csv", str(tmp_path / "out.csv"),
    )  # fmt: skip
    assert code == 1
    assert "over the budget" in out and "RuntimeError: no such luck" in out
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 4 and lines[0].startswith("variant,verified,failure,median_ms")
    timed = [line for line in out.splitlines() if line.startswith("reference@eager ")]
    assert len(timed) == 2  # it is in both tables


def test_ctrl_c_keeps_what_was_finished_and_the_old_file(capsys, tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("the old file")
    original = compare_module.compare

    def interrupted(*args, progress, **kwargs):
        def stop(stage, done):
            if stage == "timing" and done >= 0.6:
                raise KeyboardInterrupt

        return original(*args, progress=stop, **kwargs)

    monkeypatch.setattr(compare_module, "compare", interrupted)
    code, out, err = run(
        capsys, "compare", "reference@eager", "--seq", "8", "--rounds", "20", "--json", str(path)
    )
    assert code == 130
    assert "interrupted" in out
    assert path.read_text() == "the old file"
    partial = json.loads((tmp_path / "out.json.partial").read_text())
    assert partial["interrupted"] and 12 <= len(partial["rows"][0]["samples_ms"]) < 20
    assert "out.json.partial" in err


CHATTY = """
import os, sys, torch, fusebench
from fusebench import ops
print("imported")
calls = 0
def right(*args):
    y = ops.OPS["sdpa"].reference(*args)
    return y.transpose(1, 2).contiguous().transpose(1, 2)
@fusebench.implementation("sdpa", "chatty", device="cpu")
def chatty(q, k, v, causal, scale):
    print("called")
    return right(q, k, v, causal, scale)
@fusebench.implementation("sdpa", "leaves", device="cpu")
def leaves(q, k, v, causal, scale):
    global calls
    calls += 1
    if calls > int(os.environ["CALLS"]):
        os._exit(0)
    return right(q, k, v, causal, scale)
"""


@pytest.mark.usefixtures("_registered")
def test_what_implementations_print_does_not_reach_the_standard_output(capsys, tmp_path):
    file = tmp_path / "chatty_impl.py"
    file.write_text(CHATTY)
    code, out, err = run(
        capsys, "compare", "sdpa=chatty@eager", *SMALL, "--with", str(file), "--json", "-"
    )
    assert code == 0, err
    data = json.loads(out)
    assert data["rows"][0]["verified"] and data["settings"]["with"][-1] == str(file)
    assert "imported" in err and "called" in err and "median ms" in err
    assert data["command"].startswith("fusebench compare sdpa=chatty@eager --seq 8 --rounds 5")
    assert any("5 rounds give no verdict" in note for note in data["notes"])
    assert any("no compiled reference in this comparison" in note for note in data["notes"])


@pytest.mark.parametrize("calls, rows", [(3, 1), (10**9, 2)], ids=["at once", "never"])
def test_a_process_that_is_ended_leaves_what_was_finished(tmp_path, calls, rows):
    file, path = tmp_path / "leaving_impl.py", tmp_path / "out.json"
    file.write_text(CHATTY)
    found = subprocess.run(
        [sys.executable, "-m", "fusebench.cli", "compare", "reference@eager", "sdpa=leaves@eager",
         *SMALL, "--with", str(file), "--json", str(path)],
        env={**os.environ, "CALLS": str(calls)}, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    partial = tmp_path / "out.json.partial"
    assert path.exists() == (rows == 2) and partial.exists() == (rows == 1)
    data = json.loads((path if rows == 2 else partial).read_text())
    assert len(data["rows"]) == rows and data["rows"][0]["verified"]
    if rows == 1:
        assert data["interrupted"]
        assert data["notes"] == ["unfinished: compiling and verifying sdpa=leaves@eager"]


@pytest.mark.usefixtures("_registered")
def test_what_an_imported_file_changes_is_put_back(capsys, tmp_path):
    file = tmp_path / "changing_impl.py"
    file.write_text(
        "import time, torch\n"
        "torch.set_default_dtype(torch.float64)\n"
        "time.perf_counter = lambda: 0.0\n"
    )
    _, _, err = run(capsys, "info", "--with", str(file))
    assert "the default dtype from torch.float32 to torch.float64" in err
    assert "time.perf_counter was replaced" in err and "it was put back" in err
    assert torch.get_default_dtype() == torch.float32 and time.perf_counter() > 0


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("the old file")

    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(results_module.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Results("compare", [{"variant": "a"}]).to_json(path)
    assert path.read_text() == "the old file"
    assert list(tmp_path.iterdir()) == [path]


def saved(path, median, failure=None):
    samples = [median * (1 + 0.001 * (i % 7)) for i in range(30)]
    row = {"variant": "cpp@eager", "median_ms": median, "samples_ms": samples, "failure": failure}
    Results("compare", [row], environment={"cpu": "x"}).to_json(path)
    return str(path)


def test_diff_finds_regressions(capsys, tmp_path):
    a, b = saved(tmp_path / "a.json", 1.0), saved(tmp_path / "b.json", 1.2)
    same, broken = saved(tmp_path / "c.json", 1.01), saved(tmp_path / "d.json", 1.0, "wrong")
    code, out, _ = run(capsys, "diff", a, b, "--absolute")
    assert code == 1 and "slower" in out
    code, out, _ = run(capsys, "diff", b, a, "--absolute")
    assert code == 0 and "faster" in out
    code, out, _ = run(capsys, "diff", a, same, "--absolute")
    assert code == 0 and "no difference" in out
    code, out, _ = run(capsys, "diff", a, broken)
    assert code == 1 and "failed: wrong" in out
    code, out, _ = run(capsys, "diff", broken, a)
    assert code == 0 and "fixed" in out
    code, _, err = run(capsys, "diff", a, b)
    assert code == 2 and "reference@default in both, or --absolute" in err
    code, _, err = run(capsys, "diff", a, b, "--threshold", "2")
    assert code == 2 and "threshold" in err


def race(path, medians, study="compare", **more):
    rows = []
    for i, (variant, median) in enumerate(medians.items()):
        samples = [median * (1 + 0.001 * ((j + i) % 7)) for j in range(30)]
        rows.append({"variant": variant, "median_ms": median, "samples_ms": samples, **more})
    Results(study, rows, environment={"cpu": "x"}).to_json(path)
    return str(path)


def test_diff_holds_rows_against_the_reference_of_their_run(capsys, tmp_path):
    a = race(tmp_path / "a.json", {"reference@eager": 3.0, "cpp@default": 1.0})
    slow = race(tmp_path / "b.json", {"reference@eager": 6.0, "cpp@default": 2.0})
    worse = race(tmp_path / "c.json", {"reference@eager": 3.0, "cpp@default": 1.3})
    code, out, _ = run(capsys, "diff", a, slow)
    assert code == 0 and "no difference" in out and "yardstick" in out
    code, out, _ = run(capsys, "diff", a, slow, "--absolute")
    assert code == 1 and "slower" in out and "absolute times" in out
    code, out, _ = run(capsys, "diff", a, worse)
    assert code == 1 and "slower" in out


def test_diff_tells_rows_of_one_variant_apart(capsys, tmp_path):
    rows = []
    for policy, median in (("static", 1.0), ("dynamic", 2.0)):
        samples = [median] * 8
        rows.append({"variant": "cpp@default", "policy": policy, "seq": 64, "samples_ms": samples,
                     "median_ms": median})  # fmt: skip
    conclusion = {"effect": "sdpa", "failure": None}
    path = str(tmp_path / "a.json")
    Results("shapes", [*rows, conclusion], environment={}).to_json(path)
    code, out, _ = run(capsys, "diff", path, path, "--absolute")
    assert code == 0 and "None" not in out
    assert "cpp@default policy static" in out and "cpp@default policy dynamic" in out


def test_diff_of_runs_that_differ(capsys, tmp_path):
    both = {"reference@eager": 3.0, "cpp@default": 1.0}
    a, b = race(tmp_path / "a.json", both), race(tmp_path / "b.json", {"reference@eager": 3.0})
    _, out, _ = run(capsys, "diff", a, b)
    assert "no counterpart after: cpp@default" in out
    rows = json.loads(Path(a).read_text())["rows"]
    Results("compare", rows, environment={}, interrupted=True).to_json(tmp_path / "c.json")
    _, out, _ = run(capsys, "diff", a, str(tmp_path / "c.json"))
    assert "the run after was interrupted" in out


@pytest.mark.parametrize("rows", [
    "[1]", "null", '[{"variant": ["x"]}]', '[{"samples_ms": ["1"]}]', '[{"samples_ms": [0.0]}]',
    '[{"samples_ms": [NaN]}]',
])  # fmt: skip
def test_rows_that_no_study_wrote(capsys, tmp_path, rows):
    path = tmp_path / "a.json"
    path.write_text(f'{{"schema": 1, "study": "compare", "rows": {rows}}}')
    for command in (["diff", str(path), str(path)], ["report", str(path)]):
        code, _, err = run(capsys, *command)
        assert code == 2 and "a.json" in err and len(err.splitlines()) == 1


def test_diff_refuses_what_is_not_results(capsys, tmp_path):
    (tmp_path / "a.json").write_text('{"schema": 7, "rows": []}')
    good = saved(tmp_path / "b.json", 1.0)
    assert run(capsys, "diff", str(tmp_path / "a.json"), good)[0] == 2
    (tmp_path / "a.json").write_text("nonsense")
    code, _, err = run(capsys, "diff", str(tmp_path / "a.json"), good)
    assert code == 2 and "is not JSON" in err


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"fusebench\[parquet\]"):
        Results("compare", [{"variant": "a"}]).to_parquet(tmp_path / "x.parquet")
