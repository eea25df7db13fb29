"""One self-contained page of everything in result files, and its charts as files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fusebench.ops import checks
from fusebench.report.canvas import PALETTE
from fusebench.report.charts import NARROW, WIDE
from fusebench.report.results import Results
from fusebench.report.sections import Chart, Source, machine, sections
from fusebench.report.tables import Table, cell

# study -> the settings that are arguments without an option's name, in their order.
ARGUMENTS = {
    "compare": ("variants",), "op": ("op",), "explain": ("a", "b"), "inspect": ("variants",),
    "bindings": ("op",), "check": ("op",), "shapes": ("variants",), "compile-cost": ("variants",),
}  # fmt: skip
OPTIONS = {"sites": "at", "policies": "policy"}  # settings whose option has another name
REPEATED = {"policies", "shape", "with", "impl"}  # of a list: the option once for each value
OUTCOMES = {"skipped", "plan", "confirmed", "crossovers"}  # what happened, not what was asked
PASSING = {"time", "load", "noise"}  # facts that differ from run to run on one machine


def render(sources: Sequence[Source]) -> str:
    """The page as HTML. sources: the name of each file, and the results in it."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found = sections(sources)
    return templates.get_template("page.html").render(
        palette=PALETTE,
        sections=found,
        findings=[(section, line) for section in found for line in section.findings],
        warnings=warnings(sources),
        drawings={s.name: [_drawn(chart) for chart in s.charts] for s in found},
        environment=environment(sources),
        commands=[(name, command(results), results) for name, results in sources],
    )


def _drawn(chart: Chart) -> dict[str, str]:
    """A chart for a wide page and for a phone; the style sheet shows one of them."""
    wide, narrow = chart.draw(WIDE), chart.draw(NARROW)
    return {
        "title": wide.title,
        "wide": Markup(wide.svg(f"{chart.name}-wide")),
        "narrow": Markup(narrow.svg(f"{chart.name}-narrow")),
    }


def export(sources: Sequence[Source], folder: str | Path, form: str) -> list[Path]:
    """Each chart as a file in that folder, made if need be. form: "svg" or "png"."""
    folder, written = Path(folder), []
    if folder.exists() and not folder.is_dir():
        raise checks.refuse("report", f"--{form}", f"is {str(folder)!r}, a file", "a folder")
    for section in sections(sources):
        for chart in section.charts:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{chart.name}.{form}"
            drawing = chart.draw(WIDE)
            drawing.save_svg(path) if form == "svg" else drawing.save_png(path)
            written.append(path)
    return written


def warnings(sources: Sequence[Source]) -> list[str]:
    """What one should doubt before reading on."""
    lines = []
    if len({machine(results.environment) for _, results in sources}) > 1:
        lines.append("These files come from different machines; compare within a file only.")
    versions = {results.environment.get("torch") for _, results in sources}
    if len(versions) > 1:
        lines.append(f"These files come from different torch: {', '.join(map(str, versions))}.")
    for name, results in sources:
        if results.interrupted:
            lines.append(f"{name}: interrupted, so only finished rows have figures.")
        if results.failed:
            lines.append(f"{name}: {len(results.failed)} of {len(results.rows)} rows failed.")
        if noise := (results.environment.get("noise") or {}).get("warnings"):
            lines.append(f"{name}: {'; '.join(noise)}.")
    return lines


def environment(sources: Sequence[Source]) -> list[Table]:
    """Facts of the machine, said once where all files agree; and what each run has of its own."""
    facts = {name: _flat(results.environment) for name, results in sources}
    machine_rows: list[tuple[list[str], str | None]] = []
    run_facts: list[str] = []
    for fact in dict.fromkeys(fact for flat in facts.values() for fact in flat):
        if fact.split(":")[0] in PASSING:
            run_facts.append(fact)
            continue
        files: dict[str, list[str]] = {}
        for name, flat in facts.items():
            files.setdefault(flat.get(fact, "-"), []).append(name)
        for value, names in files.items():
            where = "all" if len(files) == 1 else ", ".join(names)
            machine_rows.append(([fact, value, where], None))
    headings = [("fact", True), ("value", True), ("files", True)]
    runs = [([name, *(flat.get(f, "-") for f in run_facts)], None) for name, flat in facts.items()]
    return [
        Table("Machine and versions", headings, machine_rows),
        Table("Runs", [("file", True), *((fact, True) for fact in run_facts)], list(runs)),
    ]


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in facts.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            flat |= _flat({k: v for k, v in value.items() if k != "warnings"}, f"{label}: ")
        else:
            flat[label] = cell(name, value)
    return flat


def command(results: Results) -> str:
    """The command line that asked for these results, or one that would where none did."""
    if results.command is not None:
        return results.command
    settings = {
        name: value
        for name, value in results.settings.items()
        if name not in OUTCOMES and value is not False and value not in (None, [], ())
    }
    words = ["fusebench", results.study]
    for name in ARGUMENTS.get(results.study, ()):
        value = settings.pop(name, ())
        words += [value] if isinstance(value, str) else map(str, value)
    if results.study == "op":
        words += dict.fromkeys(str(r["contestant"]) for r in results.rows if r.get("contestant"))
    if results.study == "inspect" and len(words) > 3:
        words[3:] = ["--beside", *words[3:]]
    if results.settings.get("prepare") is False:
        words.append("--no-prepare")
    settings.pop("prepare", None)
    for name, value in settings.items():
        option = f"--{OPTIONS.get(name, name).replace('_', '-')}"
        if name in REPEATED and not isinstance(value, str):
            words += [word for each in value for word in (option, str(each))]
        elif isinstance(value, (list, tuple)):
            words += [option, ",".join(map(str, value))]
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)
