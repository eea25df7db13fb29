"""`fusebench choose`: measure, then write the best plan for this model, shape and machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fusebench.bench import environment, sites
from fusebench.bench.contestant import only_checked, unavailable
from fusebench.bench.measure import Measurement, Progress, Race
from fusebench.bench.workload import Workload, set_threads
from fusebench.model import GPTConfig
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.results import write as write_file
from fusebench.report.table import Column, field
from fusebench.studies import options
from fusebench.studies.ablate import plan_variant
from fusebench.studies.compare import FACTS, SPEED, notes, race_variants, ratio
from fusebench.studies.compare import rows as variant_rows
from fusebench.variant import SITES, Mode, Plan, Variant

ROUNDS = 40
CONFIRMING = 2  # the race that decides has so many times the rounds of the one that searches

CHOICES: Sequence[Column] = (
    field("site", left=True),
    field("choice", left=True),
    field("why", "alone, against the reference", left=True),
)


def choose(
    *,
    mode: str = "default",
    model: str = "seed",
    impl: Sequence[str] = (),
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    rounds: int = ROUNDS,
    prepare: bool = True,
    seed: int = 0,
    output: str | Path | None = None,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Find the fastest plan under one mode, and write it to `output` (TOML) where given.

    First every implementation is tried at every site by itself; each site takes the one that is
    surely faster than the reference. That mixed plan is then confirmed in a new race of twice the
    rounds against every single plan: the reference, and each implementation everywhere. It is
    chosen where it is surely faster than the fastest of them; otherwise that single plan is, so
    that the choice is never slower than the best single plan of the race that decided. The file
    says what the race confirmed. impl: only these implementations; every one that can run here
    where empty. The other arguments are as for `compare`.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, None, seed, config)
    under = Mode.parse(mode)
    tried = {
        (site, name): plan_variant({site: name}, under) for site, name in candidates(workload, impl)
    }
    reference = plan_variant({}, under)
    first = race_variants(
        [reference, *tried.values()], workload, rounds=rounds, prepare=prepare, progress=progress
    )
    picked, rows = pick(tried, first, reference)
    everywhere = {name: {s: n for s, n in tried if n == name} for _, name in tried}
    finalists = {
        str(v): v for v in (reference, *(plan_variant(p, under) for p in everywhere.values()))
    }
    singles = tuple(finalists)
    mixed = plan_variant(picked, under)
    finalists[str(mixed)] = mixed
    interrupted = first.interrupted
    final = Race([])
    if not interrupted:
        final = race_variants(
            list(finalists.values()), workload, rounds=CONFIRMING * rounds, prepare=prepare,
            progress=progress,
        )  # fmt: skip
        interrupted = final.interrupted
    best, confirmed = confirm(str(mixed), singles, final)
    lines = notes(final if final.measurements else first, workload)
    if best is None:
        lines.insert(0, "no plan was chosen")
    else:
        lines.insert(0, f"chosen: {best.name}: {confirmed['why']}")
        for row in rows:
            row["choice"] = finalists[best.name].plan[row["site"]].impl
        if output is not None and not interrupted:
            text = toml(finalists[best.name], best, final, reference, workload, confirmed)
            write_file(output, text)
            lines.append(f"written to {output}: fusebench compare --plan {output}")
    settings: dict[str, Any] = {
        **workload.settings(), "impl": list(impl), "mode": mode, "rounds": rounds, "seed": seed,
        "prepare": prepare, **options.loaded(),
    }  # fmt: skip
    settings["plan"] = None if best is None else str(finalists[best.name].plan)
    settings["confirmed"] = confirmed
    return Results(
        "choose", rows + (variant_rows(list(finalists.values()), final, workload) if best else []),
        {**environment.environment(), "noise": final.noise}, settings, (CHOICES, SPEED, FACTS),
        lines, interrupted,
    )  # fmt: skip


def confirm(
    mixed: str, singles: Sequence[str], race: Race
) -> tuple[Measurement | None, dict[str, Any]]:
    """The plan that the race decides for, and what it confirmed of it.

    The fastest single plan, but for a mixed one that is surely faster. None where none was timed.
    """
    timed = {m.name: m for m in race.timed}
    best = min((timed[s] for s in singles if s in timed), key=lambda m: m.median, default=None)
    other = timed.get(mixed) if mixed not in singles else None
    if best is None:
        return other, {"why": "no single plan could be timed"} if other else {}
    if other is None:
        why = "the fastest single plan; there was no other to confirm"
        return best, {"why": why, "best_single": best.name}
    over = ratio(other, best)
    assert over is not None
    facts = {
        "best_single": best.name, "mixed": mixed, "verdict": over.verdict(),
        "mixed_over_single": [round(v, 3) for v in (over.value, over.low, over.high)],
        "rounds": len(best.samples),
    }  # fmt: skip
    figures = f"{over.value:.2f} [{over.low:.2f}, {over.high:.2f}] times as fast"
    if over.verdict() == "faster":
        why = f"confirmed {figures} as the best single plan, {best.name}"
        return other, {"why": why, **facts}
    why = f"the fastest single plan; the mixed {mixed} was {figures}, which is not surely faster"
    return best, {"why": why, **facts}


def candidates(workload: Workload, impl: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Every (site, implementation) besides the reference that can run and be timed here.

    impl: only these, where given.
    """
    for name in impl:
        Plan.parse(name)  # refuses a name that nobody registered
    found = []
    for site in sites.FORWARD:
        for name in registry.names(SITES[site]):
            if name == "reference" or (impl and name not in impl):
                continue
            variant = plan_variant({site: name}, Mode())
            reason = unavailable(variant, workload.device.type, workload.torch_dtype)
            if reason is None and only_checked(variant) is None:
                found.append((site, name))
    if not found:
        raise checks.refuse(
            "choose", "the implementations", "cannot run here (see fusebench info)", "at least one"
        )
    return found


def pick(
    tried: dict[tuple[str, str], Variant], race: Race, reference: Variant
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Per site the fastest implementation that is surely faster than the reference."""
    baseline = next((m for m in race.timed if m.name == str(reference)), None)
    timed = {m.name: m for m in race.timed}
    picked: dict[str, str] = {}
    rows = []
    for site in dict.fromkeys(site for site, _ in tried):
        best: Measurement | None = None
        reasons: dict[str, list[str]] = {}
        for (at, name), variant in tried.items():
            m = timed.get(str(variant))
            if at != site:
                continue
            found = None if m is None else ratio(m, baseline)
            if m is None or found is None:
                reasons.setdefault("failed", []).append(name)
                continue
            reasons.setdefault(found.verdict(), []).append(f"{name} {found.value:.2f}x")
            if found.verdict() == "faster" and (best is None or m.median < best.median):
                best, picked[site] = m, name
        rows.append(
            {
                "site": site,
                "choice": picked.get(site, "reference"),
                "why": "; ".join(f"{v}: {', '.join(names)}" for v, names in reasons.items()),
            }
        )
    return picked, rows


def toml(
    chosen: Variant, best: Measurement, race: Race, reference: Variant, workload: Workload,
    confirmed: dict[str, Any],
) -> str:  # fmt: skip
    """The plan as a file, with what it was measured to be worth and where."""
    over = ratio(best, next((m for m in race.timed if m.name == str(reference)), None))
    facts = {
        **{k: v for k, v in workload.settings().items() if v is not None},
        "machine": environment.cpu_model() if workload.device.type == "cpu"
        else environment.gpus()[0]["name"],
        "median_ms": round(best.median * 1e3, 4),
    }  # fmt: skip
    if over is not None:
        facts["times_faster"] = [round(v, 3) for v in (over.value, over.low, over.high)]
    lines = [
        "# A plan for the GPT: which implementation each site uses. Made by `fusebench choose`;",
        '# read by `fusebench compare --plan` and by GPT(config, plan="this file").',
        "schema = 1",
        f'mode = "{chosen.mode}"',
        "",
        "[sites]",
        *(f'{site} = "{chosen.plan[site]}"' for site in sites.FORWARD),
        "",
        "# Measured on",
        "[measured]",
        *(f"{name} = {_value(value)}" for name, value in facts.items()),
        "",
        "# The race that decided: against the fastest plan with one implementation everywhere",
        "[confirmed]",
        *(f"{name} = {_value(value)}" for name, value in confirmed.items()),
    ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


@click.command("choose")
@click.option("-o", "--output", metavar="FILE.toml", help="Where the plan goes.")
@click.option("--impl", metavar="NAME", multiple=True,
              help="Only this one; repeatable. All that can run where not given.")  # fmt: skip
@click.option("--mode", default="default", show_default=True, help="Of every variant.")
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.workload
@options.outputs
def command(
    no_prepare: bool, quiet: bool, json: str | None, csv: str | None, parquet: str | None,
    **settings: Any,
) -> int:  # fmt: skip
    """Find the best plan for this model, shape and machine, and write it to a file."""
    results = options.run(
        lambda progress: choose(
            prepare=not no_prepare, progress=progress, **options.given(**settings)
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
