"""Result files become the sections of a report: what was found, its charts, its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fusebench.report import charts, table, tables
from fusebench.report.canvas import Drawing
from fusebench.report.charts import Estimate, Point, Roof, Series, Step
from fusebench.report.results import Results
from fusebench.report.table import significant

Row = Mapping[str, Any]
Source = tuple[str, Results]  # the name of the file, and what it holds

VERDICTS = {
    "faster": "faster", "keep": "faster", "keep inside": "faster", "help each other": "faster",
    "slower": "slower", "leave to Inductor": "slower", "leave outside": "slower",
    "in each other's way": "slower", "suspect": "suspect",
}  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """name: of its file when exported. draw: makes it for a width."""

    name: str
    draw: Callable[[float], Drawing]


@dataclass
class Section:
    """heading, the files it comes from, what was found in sentences, and what shows it."""

    name: str
    heading: str
    sources: list[str]
    findings: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[tables.Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def add(self, *found: tables.Table | None) -> None:
        self.tables += [each for each in found if each is not None]


def sections(sources: Sequence[Source]) -> list[Section]:
    """What the files hold, in the order of the questions; names and headings are unique."""
    found = [section for build in BUILDERS for section in build(sources)]
    alike: dict[str, list[Section]] = {}
    for section in found:
        alike.setdefault(section.name, []).append(section)
    for group in alike.values():
        for number, section in enumerate(group if len(group) > 1 else (), 1):
            section.name += f"-{number}"
            section.heading += f" ({', '.join(section.sources)})"
            section.charts = [Chart(f"{c.name}-{number}", c.draw) for c in section.charts]
    return found


def comparisons(sources: Sequence[Source]) -> Iterator[Section]:
    """Variants as dots in intervals, against the best Inductor one."""
    for section, results in _each(sources, "compare", "comparison", "Which variant is fastest?"):
        timed = [row for row in results.rows if row.get("median_ms")]
        inductor = next((row["variant"] for row in timed if row.get("best_inductor")), None)
        against = inductor or "reference@eager"
        ratio = "speedup_vs_inductor" if inductor else "speedup_vs_eager"
        if timed:
            best = min(timed, key=lambda row: row["median_ms"])
            section.findings.append(_fastest(best, ratio, inductor))
        if any(row.get(ratio) for row in timed):
            rows = [_estimate(row, "variant", ratio, _ms(row)) for row in results.rows]
            title = f"Speed-up over {'the best Inductor variant' if inductor else 'eager PyTorch'}"
            said = _in_words(f"Times faster than {against}, with 95% intervals", rows)
            draw = partial(charts.intervals, title, said, rows, f"times faster than {against}")
            section.charts.append(Chart("comparison", draw))
        section.add(*_variants(results.rows))
        yield section


def ablations(sources: Sequence[Source]) -> Iterator[Section]:
    """Contributions of the sites: a waterfall from the reference, and the intervals."""
    for section, results in _each(sources, "ablate", "ablation", "What does each kernel bring?"):
        effects = [row for row in results.rows if row.get("effect")]
        variants = [row for row in results.rows if row.get("variant")]
        section.findings += _advice(effects)
        steps = ablation_steps(effects, variants, results.settings)
        if steps:
            said = _steps_in_words(steps)
            draw = partial(charts.waterfall, "From the reference to all kernels", said, steps, "ms")
            section.charts.append(Chart("ablation-waterfall", draw))
        if any(row.get("contribution") for row in effects):
            rows = [_estimate(row, "effect", "contribution", row["verdict"]) for row in effects]
            said = _in_words("Contribution of each site with its 95% interval", rows)
            title, axis = "Contribution of each site", "times faster through it"
            draw = partial(charts.intervals, title, said, rows, axis)
            section.charts.append(Chart("ablation", draw))
        section.add(tables.table("Contributions", effects, tables.EFFECTS), *_variants(variants))
        yield section


def ablation_steps(
    effects: Sequence[Row], variants: Sequence[Row], settings: Mapping[str, Any]
) -> list[Step]:
    """From the reference by the sites to all kernels; empty where one of them has no time.

    One-in and leave-one-out save milliseconds site by site; what they do not sum up to is their
    effect on each other. A factorial has an average ratio for each site, and the steps multiply.
    """
    time = {row["variant"]: row.get("median_ms") for row in variants}
    sites = [row for row in effects if row["kind"] == "site"]
    if settings.get("design") == "factorial":
        # The first 2^k variants are the cells of the design: nothing first, everything last.
        cells = list(time)[: 2 ** len(sites)]
        ends = (cells[0], cells[-1]) if cells else (None, None)
    else:
        whole = next((row for row in effects if row["kind"] == "all"), *sites[:1] or [{}])
        ends = (whole.get("over"), whole.get("of"))
    start, end = (time.get(name) for name in ends)
    if not start or not end or any(not row.get("contribution") for row in sites):
        return []
    steps, level = [Step(str(ends[0]), start, True)], start
    for row in sites:
        saved = row.get("saved_ms")
        if saved is None:
            saved = level - level / row["contribution"]["value"]
        steps.append(Step(row["effect"], -saved))
        level -= saved
    if abs(end - level) > 1e-9:
        steps.append(Step("their effect on each other", end - level))
    return [*steps, Step(str(ends[1]), end, True)]


def accounts(sources: Sequence[Source]) -> Iterator[Section]:
    """From variant A by its sites to B: predicted, measured, and what is left over."""
    for section, results in _each(sources, "explain", "account", "Where did the speed-up go?"):
        sites = [row for row in results.rows if row.get("site")]
        items = {row["item"]: row for row in results.rows if row.get("item")}
        a, b = results.settings.get("a", "A"), results.settings.get("b", "B")
        ends = [items.get(f"{name}, measured", {}).get("ms") for name in "AB"]
        rest = items.get("unaccounted", {}).get("ms")
        if ends[0] and ends[1] and rest is not None:
            steps = [
                Step(f"A: {a}", ends[0], True),
                *(Step(r["site"], -r["saves_ms"]) for r in sites if r.get("saves_ms") is not None),
                Step("B, as the sites predict", ends[1] - rest, True),
                Step("unaccounted", rest),
                Step(f"B: {b}", ends[1], True),
            ]
            section.findings.append(
                f"{b} takes {significant(ends[1])} ms where {a} takes {significant(ends[0])} ms; "
                f"from its sites alone one would expect {significant(ends[1] - rest)} ms."
            )
            title, said = f"From {a} to {b}", _steps_in_words(steps)
            draw = partial(charts.waterfall, title, said, steps, "ms")
            section.charts.append(Chart("account", draw))
        section.add(tables.table("Site by site", sites, tables.SITES))
        others = [row for row in results.rows if not row.get("site") and not row.get("variant")]
        section.add(*tables.anything(others))
        section.add(*_variants([row for row in results.rows if row.get("variant")]))
        yield section


def lengths(sources: Sequence[Source]) -> Iterator[Section]:
    """Latency over sequence length: of `shapes`, and of comparisons that differ in it alone."""
    for section, results in _each(sources, "shapes", "lengths", "What do other lengths cost?"):
        _add_lengths(section, results.rows, ("variant", "policy"))
        section.add(*tables.anything(results.rows))
        yield section
    groups: dict[tuple, list[tuple[str, Row]]] = {}
    for name, results in sources:
        for row in results.rows if results.study == "compare" else ():
            key = tuple(row.get(k) for k in ("model", "batch", "dtype", "device", "threads"))
            groups.setdefault(key, []).append((name, row))
    for rows in groups.values():
        if len({row["seq"] for _, row in rows if row.get("seq")}) > 1:
            names = list(dict.fromkeys(name for name, _ in rows))
            section = Section("lengths", "Latency over sequence length", names)
            _add_lengths(section, [row for _, row in rows], ("variant",))
            section.notes.append("Each length was measured in a run of its own.")
            yield section


def _add_lengths(section: Section, rows: Sequence[Row], labels: Sequence[str]) -> None:
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        length = row.get("seq") or row.get("length")
        if length and row.get("median_ms"):
            label = ", ".join(str(row[name]) for name in labels if row.get(name))
            found.setdefault(label, {})[length] = row["median_ms"]
    if not found:
        return
    series = [Series(label, sorted(points.items())) for label, points in found.items()]
    said = "Median milliseconds by sequence length. " + " ".join(
        f"{s.label}: " + ", ".join(f"{y:.3g} at {x}" for x, y in s.points) + "." for s in series
    )
    lengths = sorted({x for points in found.values() for x in points})
    columns = [table.field("label", ", ".join(labels), left=True)]
    columns += [table.field(str(x), f"{x} tokens", significant) for x in lengths]
    each = [{"label": k, **{str(x): y for x, y in points.items()}} for k, points in found.items()]
    section.add(tables.table("Median milliseconds", each, columns))
    title = "Latency over sequence length"
    draw = partial(charts.lines, title, said, series, "tokens", "median ms")
    section.charts.append(Chart("lengths", draw))


def rooflines(sources: Sequence[Source]) -> Iterator[Section]:
    """Ops against the limits of the machine, one section per dtype and number of threads."""
    groups: dict[tuple, list[tuple[str, Results, Row]]] = {}
    for name, results in sources:
        for row in results.rows if results.study == "op" else ():
            key = tuple(row.get(k) for k in ("dtype", "device", "threads"))
            groups.setdefault(key, []).append((name, results, row))
    for (dtype, device, threads), members in groups.items():
        section = Section(
            "roofline", "How near to the machine's limits are the ops?",
            list(dict.fromkeys(name for name, _, _ in members)),
            interrupted=any(results.interrupted for _, results, _ in members),
        )  # fmt: skip
        rows = [row for _, _, row in members]
        points = [
            Point(r["site"], r["contestant"], r["intensity"], r["gflops"], _limit_gflops(r))
            for r in rows
            if r.get("gflops") and r.get("intensity")
        ]
        if points:
            roofs = _roofs(sources, members[0][1].environment, dtype, device, threads)
            title = f"Roofline, {dtype}, {threads} threads"
            said = "GFLOP/s by FLOP per byte. " + " ".join(
                f"{p.label} {p.series}: {significant(p.gflops)}"
                + (f" of {significant(p.limit)}." if p.limit else ".")
                for p in points
            )
            draw = partial(charts.roofline, title, said, points, roofs)
            section.charts.append(Chart("roofline", draw))
            if not any(p.limit for p in points):
                section.notes.append("The limits of this machine are not known to these results.")
        if any(row.get("speedup_vs_inductor") for row in rows):
            named = [{**row, "label": f"{row['site']} {row['contestant']}"} for row in rows]
            ratios = [
                _estimate(r, "label", "speedup_vs_inductor", _us(r)) for r in named
            ]  # fmt: skip
            said = _in_words("Speed-up over each site's best Inductor variant", ratios)
            axis = "times faster than the best Inductor"
            draw = partial(charts.intervals, "Each op by itself", said, ratios, axis)
            section.charts.append(Chart("ops", draw))
        section.add(
            tables.table("Speed", rows, tables.CONTESTANTS),
            tables.table("Limits", tables.good(rows), tables.LIMITS),
        )
        notes = dict.fromkeys(line for _, results, _ in members for line in results.notes)
        section.notes += [line for line in notes if not line.startswith("warning: ")]
        yield section


def others(sources: Sequence[Source]) -> Iterator[Section]:
    """Every study that has no chart of its own: its rows as tables."""
    for study in dict.fromkeys(results.study for _, results in sources):
        if study not in CHARTED:
            heading = QUESTIONS.get(study, study)
            for section, results in _each(sources, study, study, heading):
                section.add(*tables.anything(results.rows))
                yield section


QUESTIONS = {
    "choose": "Which plan is the best?", "check": "Are the kernels right?",
    "compile-cost": "What does compiling cost?", "inspect": "What did the compiler do?",
    "bindings": "What does the way a kernel is bound cost?", "diff": "What changed?",
    "resources": "What do the GPU kernels need?", "simulate": "What do the CUDA kernels do?",
    "tune": "Which parameters are the best?", "machine": "What can this machine do?",
}  # fmt: skip
CHARTED = ("compare", "ablate", "explain", "shapes", "op")
BUILDERS = (comparisons, ablations, accounts, lengths, rooflines, others)


def _each(
    sources: Sequence[Source], study: str, name: str, heading: str
) -> Iterator[tuple[Section, Results]]:
    for file, results in sources:
        if results.study == study:
            notes = [line for line in results.notes if not line.startswith("warning: ")]
            section = Section(name, heading, [file], notes=notes, interrupted=results.interrupted)
            yield section, results


def _variants(rows: Sequence[Row]) -> tuple[tables.Table | None, ...]:
    return (
        tables.table("Speed", rows, tables.SPEED),
        tables.table("Facts", tables.good(rows), tables.FACTS),
    )


def _estimate(row: Row, label: str, ratio: str, note: str) -> Estimate:
    found = row.get(ratio)
    if row.get("failure") or not found or not found["value"]:
        return Estimate(str(row[label]), why=row.get("failure") or "")
    verdict = VERDICTS.get(row.get("verdict") or "", "same")
    return Estimate(
        str(row[label]), found["value"], found["low"], found["high"], verdict, note
    )  # fmt: skip


def _fastest(best: Row, ratio: str, inductor: str | None) -> str:
    said = f"{best['variant']} is the fastest: {significant(best['median_ms'])} ms"
    found = best.get(ratio)
    if best["variant"] == inductor:
        return said + "; no handwritten kernel beats what Inductor generates."
    if not found:
        return said + "."
    over = "the best Inductor variant" if inductor else "eager PyTorch"
    sure = ", which is no sure difference" if best.get("verdict") == "no difference" else ""
    doubt = "; but it is suspect, see the notes" if best.get("verdict") == "suspect" else ""
    interval = f"{found['value']:.2f} times [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{said}, {interval} as fast as {over}{sure}{doubt}."


def _advice(effects: Sequence[Row]) -> list[str]:
    """The sites by verdict, one sentence."""
    groups: dict[str, list[str]] = {}
    for row in effects:
        if row["kind"] == "site":
            groups.setdefault(row["verdict"], []).append(row["effect"])
    words = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in groups.items())
    return [f"{words[:1].upper()}{words[1:]}."] if words else []


def _in_words(what: str, rows: Sequence[Estimate]) -> str:
    said = [
        f"{r.label}: {r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"
        if r.value is not None
        else f"{r.label}: failed"
        for r in rows
    ]
    return f"{what}. {'; '.join(said)}."


def _steps_in_words(steps: Sequence[Step]) -> str:
    said = (f"{s.label}: {s.value:.3g}" if s.total else f"{s.label}: {s.value:+.3g}" for s in steps)
    return f"Milliseconds. {'; '.join(said)}."


def machine(environment: Mapping[str, Any]) -> tuple:
    """What tells one machine from another."""
    gpus = tuple(gpu.get("name") for gpu in environment.get("gpus") or ())
    return environment.get("cpu"), environment.get("cpu_count"), gpus


def _ms(row: Row) -> str:
    return f"{significant(row['median_ms'])} ms" if row.get("median_ms") else ""


def _us(row: Row) -> str:
    return f"{significant(row['median_us'])} µs" if row.get("median_us") else ""


def _limit_gflops(row: Row) -> float:
    return row["flops"] / row["limit_us"] / 1e3 if row.get("limit_us") else 0.0


def _roofs(
    sources: Sequence[Source], environment: Mapping[str, Any], dtype: str, device: str,
    threads: int,
) -> list[Roof]:  # fmt: skip
    """The ceilings that `fusebench machine` measured on the same machine with as many threads."""
    found: dict[str, Roof] = {}
    for _, results in sources:
        if results.study != "machine" or machine(results.environment) != machine(environment):
            continue
        for row in results.rows:
            usable = row["device"] == device and row["threads"] == threads
            if not usable or not row["value"] or not math.isfinite(row["value"]):
                continue
            value, unit = row["value"], row["unit"]
            label = f"{row['what']}: {significant(value)} {unit}"
            if row["what"] == f"peak {dtype}":
                found["peak"] = Roof(label, value, False)
            elif row["what"].startswith("read"):
                # Working sets grow: the first is the nearest cache, the last is memory.
                found["far" if "near" in found else "near"] = Roof(label, value, True)
    return list(found.values())
