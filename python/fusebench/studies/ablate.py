"""`fusebench ablate`: what each site's fused kernel contributes, alone and in company."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import click

from fusebench.bench import environment, sites, statistics
from fusebench.bench.contestant import unavailable
from fusebench.bench.measure import Progress, Race, careful
from fusebench.bench.workload import Workload, set_threads
from fusebench.model import GPTConfig
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field, interval, significant
from fusebench.studies import options
from fusebench.studies.compare import SPEED, notes, race_variants
from fusebench.studies.compare import rows as variant_rows
from fusebench.variant import PARTS, SITES, Mode, Plan, Variant

DESIGNS = ("one-in", "leave-one-out", "factorial")
MAX_FACTORS = 5  # 32 variants to compile
ROUNDS = 40
ADVICE = {"faster": "keep", "slower": "leave to Inductor", "no difference": "no difference"}

EFFECTS: Sequence[Column] = (
    field("effect", left=True),
    field("contribution", "times faster", interval),
    field("saved_ms", "saves ms", significant),
    field("verdict"),
    field("of", "variant", left=True),
)


@dataclass(frozen=True)
class Effect:
    """A ratio of times: how many times faster the model is through something.

    weights: variant name -> exponent of its median time; of, over: the two that a difference of
    milliseconds can be given for, or None.
    """

    kind: str
    name: str
    weights: Mapping[str, float]
    of: str | None = None
    over: str | None = None
    sites: tuple[str, ...] = ()

    @classmethod
    def pair(cls, kind: str, name: str, of: Variant, over: Variant, *sites: str) -> Effect:
        """What `of` gains over `over`."""
        return cls(kind, name, {str(over): 1.0, str(of): -1.0}, str(of), str(over), sites)


def ablate(
    impl: str | None = None,
    *,
    mode: str = "default",
    design: str = "one-in",
    at: Sequence[str] = (),
    widths: bool = False,
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    rounds: int = ROUNDS,
    prepare: bool = True,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Measure what an implementation contributes at each site of the GPT.

    impl: "cpp" on a CPU, "triton" on a GPU where None. mode: as in PLAN@MODE. at: the sites;
    every site where the implementation can run if empty. design:
      one-in         each site alone against the reference, which Inductor fuses;
      leave-one-out  everything against everything but that site: its worth in company;
      factorial      all 2^k plans of at most five sites: the average effect of each site, and the
                     interaction of each pair (above 1: better together than apart).
    widths: also how much of the fusion pays: each optional part (norm, rope, residual) inside the
    op against left outside, where Inductor may fuse it.
    The rest as for `compare`. Rows with `effect` hold contributions (`contribution`, above 1 means
    the kernel is worth it) and a verdict: keep, leave to Inductor, or no difference; rows with
    `variant` hold what was measured. Raises ValueError for arguments that are wrong.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, None, seed, config)
    impl = impl or {"cpu": "cpp", "cuda": "triton"}[workload.device.type]
    if design not in DESIGNS:
        raise checks.unknown("design", design, DESIGNS, "ablate")
    under = Mode.parse(mode)
    chosen = factors(impl, at, workload)
    if design == "factorial" and len(chosen) > MAX_FACTORS:
        raise checks.refuse(
            "ablate", "the sites", f"are {len(chosen)} ({', '.join(chosen)})",
            f"at most {MAX_FACTORS} for a factorial; name them with --at",
        )  # fmt: skip
    effects = list(DESIGN[design](impl, chosen, under))
    if widths:
        effects += width_effects(impl, chosen, under)
    names = dict.fromkeys(name for effect in effects for name in effect.weights)
    variants = [Variant.parse(name) for name in names]
    race = race_variants(
        variants, workload, rounds=rounds, prepare=prepare, progress=progress
    )  # fmt: skip
    rows = [effect_row(effect, race) for effect in effects]
    settings = {
        **workload.settings(), "impl": impl, "design": design, "sites": chosen, "mode": mode,
        "widths": widths, "rounds": rounds, "seed": seed, "prepare": prepare, **options.loaded(),
    }  # fmt: skip
    lines = [
        f"{impl} at each site against reference@{mode}"
        + (", which Inductor fuses" if under.compiled else ", as it is"),
        *notes(race, workload),
    ]
    return Results(
        "ablate", rows + variant_rows(variants, race, workload),
        {**environment.environment(), "noise": race.noise}, settings, (EFFECTS, SPEED), lines,
        race.interrupted,
    )  # fmt: skip


def factors(impl: str, at: Sequence[str], workload: Workload) -> list[str]:
    """The sites to ablate; ValueError where the implementation cannot run at one asked for."""
    for site in at:
        if site not in SITES:
            raise checks.unknown("site", site, SITES, "ablate")
    Plan.parse(impl)  # refuses a name that nobody registered
    found = []
    for site in at or sites.FORWARD:
        if impl not in registry.names(SITES[site]):
            reason: str | None = f"{SITES[site]} has no implementation {impl!r}"
        else:
            variant = plan_variant({site: impl}, Mode())
            reason = unavailable(variant, workload.device.type, workload.torch_dtype)
        if reason is None:
            found.append(site)
        elif at:
            raise ValueError(f"ablate: {site}: {reason}")
    if not found:
        raise checks.refuse(
            "ablate", "impl", f"is {impl!r}, which can run at no site here", "one that can"
        )
    return found


def plan_variant(choices: Mapping[str, str], mode: Mode) -> Variant:
    """The variant with these choices, the rest reference, under its shortest name."""
    return Variant(Plan.of(choices), mode)


def one_in(impl: str, chosen: Sequence[str], mode: Mode) -> Iterator[Effect]:
    reference = plan_variant({}, mode)
    for site in chosen:
        yield Effect.pair("site", site, plan_variant({site: impl}, mode), reference, site)
    if len(chosen) > 1:
        everything = plan_variant({site: impl for site in chosen}, mode)
        yield Effect.pair("all", "all of them", everything, reference, *chosen)


def leave_one_out(impl: str, chosen: Sequence[str], mode: Mode) -> Iterator[Effect]:
    everything = plan_variant({site: impl for site in chosen}, mode)
    for site in chosen:
        others = plan_variant({s: impl for s in chosen if s != site}, mode)
        yield Effect.pair("site", site, everything, others, site)
    if len(chosen) > 1:
        yield Effect.pair("all", "all of them", everything, plan_variant({}, mode), *chosen)


def factorial(impl: str, chosen: Sequence[str], mode: Mode) -> Iterator[Effect]:
    cells = {
        on: str(plan_variant({s: impl for s, there in zip(chosen, on) if there}, mode))
        for on in product((False, True), repeat=len(chosen))
    }
    count = len(cells)
    for i, site in enumerate(chosen):
        weights = {name: (-2 if on[i] else 2) / count for on, name in cells.items()}
        yield Effect("site", site, weights, sites=(site,))
    for (i, first), (j, second) in combinations(enumerate(chosen), 2):
        # Log time falls by more than both effects where they help each other.
        weights = {name: (-4 if on[i] == on[j] else 4) / count for on, name in cells.items()}
        yield Effect("interaction", f"{first} x {second}", weights, sites=(first, second))


DESIGN = dict(zip(DESIGNS, (one_in, leave_one_out, factorial)))


def width_effects(impl: str, chosen: Sequence[str], mode: Mode) -> Iterator[Effect]:
    """Each optional part of a fusion inside the op, against left outside of it."""
    for site in chosen:
        whole = plan_variant({site: impl}, mode)
        for part in PARTS.get(site, ()):
            outside = plan_variant({site: f"{impl}-{part}"}, mode)
            yield Effect.pair("width", f"{part} in {site}", whole, outside, site)


def effect_row(effect: Effect, race: Race) -> dict[str, Any]:
    """The contribution with its interval; nulls where a variant of it was not timed."""
    row: dict[str, Any] = {
        "effect": effect.name, "kind": effect.kind, "sites": list(effect.sites), "of": effect.of,
        "over": effect.over, "contribution": None, "saved_ms": None, "verdict": "not measured",
        "failure": None,
    }  # fmt: skip
    timed = {m.name: m for m in race.timed}
    if not all(name in timed for name in effect.weights):
        return row
    of = [timed[name] for name in effect.weights]
    found = careful(
        statistics.combination([m.samples for m in of], list(effect.weights.values())), *of
    )
    row["contribution"] = found.as_dict()
    verdict = found.verdict()
    if effect.kind == "interaction":
        words = {"faster": "help each other", "slower": "in each other's way",
                 "no difference": "no sure interaction"}  # fmt: skip
        row["verdict"] = words.get(verdict, verdict)
    elif effect.kind == "width":
        words = {"faster": "keep inside", "slower": "leave outside"}
        row["verdict"] = words.get(verdict, verdict)
    else:
        row["verdict"] = ADVICE.get(verdict, verdict)
    if effect.of and effect.over:
        row["saved_ms"] = (timed[effect.over].median - timed[effect.of].median) * 1e3
    return row


@click.command("ablate")
@click.option("--impl", metavar="NAME", help="cpp on a CPU, triton on a GPU, or another.")
@click.option("--mode", default="default", show_default=True, help="Of every variant.")
@click.option("--design", type=options.Name("design", DESIGNS), default="one-in",
              show_default=True)  # fmt: skip
@click.option("--at", metavar="SITE,...", help="Only these sites.")
@click.option("--widths", is_flag=True, help="Also each part of a fusion, inside or outside.")
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.workload
@options.outputs
def command(
    at: str | None, no_prepare: bool, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """What each site's fused kernel contributes, alone and in company."""
    results = options.run(
        lambda progress: ablate(
            at=[s.strip() for s in at.split(",")] if at else (), prepare=not no_prepare,
            progress=progress, **options.given(**settings),
        ),
        quiet,
    )  # fmt: skip
    return options.leave(results, json=json, csv=csv, parquet=parquet)
