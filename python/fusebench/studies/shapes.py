"""`fusebench shapes`: what do changing sequence lengths cost, and where does which variant win?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import click
import torch
import torch._dynamo
import torch._inductor.utils
import torch.nn.functional as F
from torch import Tensor

from fusebench.bench import environment, guard
from fusebench.bench.contestant import Contestant, model_of, own_code, unavailable
from fusebench.bench.measure import Progress, Race, compared, measure
from fusebench.bench.workload import Workload, set_threads
from fusebench.inspect import capture
from fusebench.model import GPTConfig
from fusebench.ops import checks
from fusebench.report import table
from fusebench.report.results import Results
from fusebench.report.table import Column, fixed, significant
from fusebench.studies import options
from fusebench.studies.arguments import Numbers, without
from fusebench.studies.compare import handwritten, model_task, notes, parse
from fusebench.variant import Variant

ROUNDS = 20
LENGTHS = (64, 128, 256, 512)
# What torch.compile's `dynamic` is, and what is done to the tokens before the call.
POLICIES = {
    "automatic": "static at first; sizes that change become dynamic (torch.compile's default)",
    "dynamic": "dynamic=True: sizes are symbols from the start",
    "static": "dynamic=False: one graph for every length",
    "mark": "mark_dynamic: the length alone is a symbol from the start",
    "buckets": "static, with the tokens padded to the next power of two",
}

COLUMNS: Sequence[Column] = (
    table.field("variant", left=True),
    table.field("policy", left=True),
    table.field("seq"),
    table.field("median_ms", "median ms", significant),
    table.field("p95_ms", "p95 ms", significant),
    table.field("new_graphs", "new graphs"),
    table.field("recompiles", "recompiles"),
    table.field("compile_s", "compile s", fixed(1)),
)


@dataclass
class Visit:
    """What calling one contestant with one length for the first time led to."""

    graphs: int
    breaks: int
    compile_s: float
    reasons: list[str]


@dataclass
class Entrant:
    """One variant under one policy, compiled once and called with every length in turn."""

    variant: Variant
    policy: str
    contestant: Contestant | None = None
    failure: str | None = None
    visits: dict[int, Visit] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.variant} ({self.policy})"


def shapes(
    variants: Sequence[str | Variant] = (),
    *,
    lengths: Sequence[int] = LENGTHS,
    policies: Sequence[str] = tuple(POLICIES),
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    rounds: int = ROUNDS,
    prepare: bool = True,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Call each variant with one length after another under each policy, then race them per length.

    variants: PLAN@MODE with a compiled mode; reference@default and, where it can run, cpp, cuda or
    triton, where empty. lengths: in the order of the calls. policies: of POLICIES.
    The rest as for `compare`. Rows have latency, and what the first call with this length compiled:
    graphs, recompiles with their reasons, seconds. The crossovers between variants are in the notes
    and in settings["crossovers"].
    Raises ValueError for arguments that are wrong.
    """
    set_threads(threads)
    for policy in policies:
        if policy not in POLICIES:
            raise checks.unknown("policy", policy, POLICIES, "shapes")
    if not lengths or len(set(lengths)) != len(lengths):
        raise checks.refuse("shapes", "lengths", f"are {list(lengths)}", "different lengths")
    at = {n: Workload(model, batch, n, dtype, device, None, seed, config) for n in lengths}
    workload = at[lengths[0]]
    chosen = parse(variants or ("reference@default", *handwritten(workload)))
    for variant in chosen:
        if not variant.mode.compiled or variant.mode.dynamic:
            raise checks.refuse(
                "shapes", str(variant), "leaves no policy open", "a compiled mode without +dynamic"
            )
    entrants = [Entrant(v, policy) for v in chosen for policy in policies]
    rows: list[dict[str, Any]] = []
    races: dict[int, Race] = {}
    interrupted = False
    try:
        for number, entrant in enumerate(entrants):
            progress(f"compiling {entrant.name}", 0.8 * number / len(entrants))
            # Nobody finds what another compiled, or what earlier runs learnt about sizes.
            with torch._inductor.utils.fresh_cache():
                _visit(entrant, at, prepare)
        for number, (length, here) in enumerate(at.items()):
            progress(f"racing at {length} tokens", 0.8 + 0.2 * number / len(at))
            races[length] = _race(entrants, here, rounds)
            rows += [_row(entrant, races[length], here) for entrant in entrants]
            if races[length].interrupted:
                interrupted = True
                break
    except KeyboardInterrupt:
        interrupted = True
    rows.sort(key=lambda row: (row["variant"], list(POLICIES).index(row["policy"])))
    crossed = crossovers(policies, chosen, races)
    noise = next(iter(races.values())).noise if races else {}
    settings = {
        **workload.settings(), "seq": None, "lengths": list(lengths), "policies": list(policies),
        "variants": [str(v) for v in chosen], "rounds": rounds, "seed": seed, "prepare": prepare,
        "crossovers": crossed, **options.loaded(),
    }  # fmt: skip
    lines = [f"{policy}: {POLICIES[policy]}" for policy in policies]
    lines += _reasons(entrants) + crossed
    if races:
        lines += notes(next(iter(races.values())), workload, tokens=", ".join(map(str, lengths)))
    return Results(
        "shapes", rows, {**environment.environment(), "noise": noise}, settings, (COLUMNS,), lines,
        interrupted,
    )  # fmt: skip


def _compiled(entrant: Entrant, workload: Workload, prepare: bool) -> Contestant:
    """A contestant that treats sizes as the policy says."""
    mode = entrant.variant.mode
    gpt = model_of(entrant.variant, workload.config, workload.weights, prepared=prepare)
    dynamic = {"automatic": None, "mark": None, "dynamic": True}.get(entrant.policy, False)
    forward = torch.compile(
        own_code(gpt.forward), mode=None if mode.name == "default" else mode.name, dynamic=dynamic
    )
    longest = workload.config.max_seq_len

    def call(tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if entrant.policy == "mark":  # a view: the mark stays on the tensor, and the others get it
            tokens = tokens.view_as(tokens)
            torch._dynamo.mark_dynamic(tokens, 1)
        if entrant.policy == "buckets":
            tokens = F.pad(tokens, (0, bucket(length, longest) - length))
        return forward(tokens)["logits"][:, :length]  # causal: padding behind changes nothing

    return Contestant(
        entrant.name, call, dict(gpt.state_dict()), workload.weights, module=gpt,
        plain=lambda tokens: gpt(tokens)["logits"],
        patches={"freezing": True} if mode.freezing else {},
    )  # fmt: skip


def bucket(length: int, longest: int) -> int:
    """The next power of two, at least 16, at most the longest length there is."""
    return min(max(16, 1 << (length - 1).bit_length()), longest)


def _visit(entrant: Entrant, at: dict[int, Workload], prepare: bool) -> None:
    """Build the contestant and call it with every length, watching what each one compiles."""
    from torch._dynamo.pgo import reset_code_state

    workload = next(iter(at.values()))
    reason = unavailable(entrant.variant, workload.device.type, workload.torch_dtype)
    if reason:
        entrant.failure = reason
        return
    reset_code_state()  # sizes that other contestants have shown to change
    try:
        entrant.contestant = _compiled(entrant, workload, prepare)
        for length, here in at.items():
            with capture.observe(kernels=False) as seen, entrant.contestant.compiling():
                entrant.contestant.call(*here.tokens(0))
            entrant.visits[length] = Visit(
                len(seen.graphs),
                len(seen.breaks),
                sum(c.get("entire_frame_compile_time_s") or 0.0 for c in seen.compilations),
                [r.reason for r in seen.recompiles],
            )
    except Exception as error:
        entrant.failure = guard.reason(error)


def _race(entrants: Sequence[Entrant], workload: Workload, rounds: int) -> Race:
    def build(entrant: Entrant) -> Callable[[], Contestant]:
        def built() -> Contestant:
            if entrant.contestant is None or entrant.failure:
                raise RuntimeError(entrant.failure or "it was not compiled")
            return entrant.contestant

        return built

    return measure(
        model_task(workload), [(e.name, build(e)) for e in entrants], rounds=rounds,
        seed=workload.seed,
    )  # fmt: skip


def _row(entrant: Entrant, race: Race, workload: Workload) -> dict[str, Any]:
    m, visit = race[entrant.name], entrant.visits.get(workload.seq)
    return {
        **m.row(),
        **workload.settings(),
        "variant": str(entrant.variant),
        "policy": entrant.policy,
        "new_graphs": visit and visit.graphs,
        "graph_breaks": visit and visit.breaks,
        "recompiles": visit and len(visit.reasons),
        "recompile_reasons": visit and visit.reasons,
        "compile_s": visit and visit.compile_s,
    }


def _reasons(entrants: Sequence[Entrant]) -> list[str]:
    """Why each contestant compiled again, at which length."""
    return [
        f"{entrant.name} at {length}: {reason}"
        for entrant in entrants
        for length, visit in entrant.visits.items()
        for reason in visit.reasons
    ]


def crossovers(
    policies: Sequence[str], variants: Sequence[Variant], races: dict[int, Race]
) -> list[str]:
    """Between which lengths the faster of two variants changes, and under which policies."""
    found: dict[tuple[str, str], list[str]] = {}
    for policy in policies:
        for first, second in combinations(variants, 2):
            for line in _crossings(policy, first, second, races):
                found.setdefault(line, []).append(policy)
    return [f"{kind} ({', '.join(under)}): {what}" for (kind, what), under in found.items()]


def _crossings(
    policy: str, first: Variant, second: Variant, races: dict[int, Race]
) -> Iterator[tuple[str, str]]:
    """Where the faster of two changes under a policy; a length that shows none decides nothing."""
    winner, since, crossed = None, 0, False
    for length, race in sorted(races.items()):
        a, b = (race[Entrant(v, policy).name] for v in (first, second))
        verdict = compared(a, b).verdict() if a.timed and b.timed else None
        if verdict not in ("faster", "slower"):
            continue
        now = first if verdict == "faster" else second
        if winner is not None and now is not winner:
            crossed = True
            yield "crossover", f"{winner} wins up to {since} tokens, {now} from {length} on"
        winner, since = now, length
    if winner is not None and not crossed:
        loser = second if winner is first else first
        yield "no crossover", f"{winner} beats {loser} where they differ"


@click.command("shapes")
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option(
    "--lengths", type=Numbers(), default=LENGTHS, metavar="T,T,…",
    help="Sequence lengths, in the order of the calls.  [default: 64,128,256,512]",
)  # fmt: skip
@click.option(
    "--policy", "policies", type=options.Name("policy", POLICIES), multiple=True,
    help="How sizes are treated; may be repeated; all where not given.",
)  # fmt: skip
@without("seq")
@options.workload
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.outputs
def command(
    variants: tuple[str, ...], policies: tuple[str, ...], no_prepare: bool, quiet: bool,
    json: str | None, csv: str | None, parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """Latency, recompiles and crossovers over sequence lengths, for each policy on sizes."""
    results = options.run(
        lambda progress: shapes(
            variants, policies=policies or tuple(POLICIES), prepare=not no_prepare,
            progress=progress, **options.given(**settings),
        ),
        quiet,
    )  # fmt: skip
    return options.leave(results, json=json, csv=csv, parquet=parquet)
