"""Tables that fit and stay unambiguous, and a progress display for terminals and for logs."""

import io
import json

import pytest

from fusebench.report import results, table
from fusebench.report.progress import Progress
from fusebench.report.results import Results
from fusebench.report.table import field, interval, significant, size

COLUMNS = (field("variant", left=True), field("ms", form=significant), field("x", form=interval))


def rows(count=3, name="cpp@default"):
    return [
        {"variant": f"{name}{i}", "ms": 1.5 * i, "x": {"value": 1.0, "low": 0.9, "high": 1.1}}
        for i in range(count)
    ]


def test_columns_line_up_and_null_is_a_dash():
    lines = table.render([*rows(2), {"variant": "b", "ms": None}], [COLUMNS]).splitlines()
    assert lines[0].split() == ["variant", "ms", "x"]
    assert lines[-1].split() == ["b", "-", "-"]
    assert len({line.index("[") for line in lines[2:4]}) == 1


def test_a_wide_table_shortens_names_only():
    lines = table.render(rows(2, "a-very-long-name" * 10), [COLUMNS], width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "…" in lines[2] and "[0.90, 1.10]" in lines[2]


def test_the_widest_name_is_shortened_first():
    columns = (field("site", left=True), field("why", left=True))
    text = table.render([{"site": "swiglu_ffn", "why": "because " * 20}], [columns], width=60)
    assert "swiglu_ffn  because" in text and "…" in text


def test_a_failure_is_told_once_and_wrapped():
    failed = {"variant": "bad", "failure": "some reason " * 20, "ms": None}
    other = (field("variant", left=True), field("ms"))
    text = table.render([failed, *rows(1)], [COLUMNS, other], ["a note"], width=80)
    assert text.count("failed: some reason") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1] == "a note"


def test_a_table_holds_the_rows_that_have_its_first_column():
    effects = (field("effect", left=True), field("ms"))
    text = table.render([{"effect": "e", "ms": 1}, *rows(1)], [effects, COLUMNS])
    first, second = text.split("\n\n")
    assert "cpp@default" not in first and "cpp@default" in second


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (0.01234, "0.0123"), (1.2345, "1.234"), (12.345, "12.35"), (1234.5, "1234")],
)
def test_numbers(value, text):
    assert significant(value) == text


@pytest.mark.parametrize("value, text", [(12, "12 B"), (2048, "2.0 KiB"), (3 << 30, "3.0 GiB")])
def test_sizes(value, text):
    assert size(value) == text


def test_json_has_no_nan_and_reads_back(tmp_path):
    path = tmp_path / "r.json"
    Results("s", [{"variant": "a", "error": float("nan"), "ok": True}]).to_json(path)
    assert json.loads(path.read_text())["rows"] == [{"variant": "a", "error": None, "ok": True}]
    assert results.load(path).study == "s"


def test_csv_flattens_intervals():
    text = Results("s", [{"variant": "a,b", "x": {"value": 1, "low": 0, "high": 2}, "l": [1]}])
    assert text.to_csv() == 'variant,x_value,x_low,x_high\n"a,b",1,0,2\n'


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_line_per_stage_in_a_log_and_a_bar_on_a_terminal():
    log = io.StringIO()
    with Progress(log) as progress:
        for done in (0.1, 0.5, 1.0):
            progress("timing", done)
    assert log.getvalue() == "timing …\n"
    terminal = Terminal()
    with Progress(terminal) as progress:
        progress("compiling and verifying a", 0.0)
        progress("timing", 0.5)
        progress("timing", 1.0)
    assert "timing" in terminal.getvalue() and "\x1b[" in terminal.getvalue()
    quiet = io.StringIO()
    with Progress(quiet, quiet=True) as progress:
        progress("timing", 0.5)
    assert quiet.getvalue() == ""
