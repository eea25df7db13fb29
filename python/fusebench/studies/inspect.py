"""`fusebench inspect`: what did the compiler do with this variant, and what ran?"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from pathlib import Path
from typing import Any

import click

from fusebench.bench import environment, guard
from fusebench.bench.contestant import unavailable
from fusebench.bench.keep import Progress
from fusebench.bench.sites import FORWARD
from fusebench.bench.workload import Workload, set_threads
from fusebench.inspect import no_gpu, sites
from fusebench.inspect.target import inspected_for
from fusebench.inspect.variant import Inspected, inspected
from fusebench.model import GPTConfig
from fusebench.ops import checks
from fusebench.report.results import Results
from fusebench.report.table import Column, field, fixed, percent, plural, render, size
from fusebench.studies import options
from fusebench.studies.arguments import Numbers, without
from fusebench.variant import SITES, Variant

# Whose kernels an implementation runs forward, as `resources` has them.
RESOURCES_OF = {"triton": "triton", "triton_recompute": "triton", "cuda": "cuda"}

KERNELS: Sequence[Column] = (
    field("kernel", left=True),
    field("calls", "calls"),
    field("bytes_in", "in", size),
    field("bytes_out", "out", size),
    field("share", "time", percent),
)
COMPILED: Sequence[Column] = (
    *KERNELS[:-1],
    field("registers", "regs"),
    field("stack", "spills", lambda v: f"{v} B"),
    field("shared", "shared", size),
)
HANDWRITTEN: Sequence[Column] = (
    field("op", "op          ", left=True),
    field("kernel", left=True),
    field("impl"),
    field("dtype"),
    field("size"),
    field("registers", "regs"),
    field("stack", "spills", lambda v: f"{v} B"),
    field("shared", "shared", size),
    field("tensor_core", "tensor core"),
)
GRAPH: Sequence[Column] = (
    field("site", "captured for", left=True),
    field("count", "ops"),
)


@dataclass
class Inspection(Results):
    """Results whose table has one part for each thing one may want to know."""

    looked: list[Inspected] = default(default_factory=list)
    handwritten: list[dict[str, Any]] = default(default_factory=list)

    def table(self, *, width: int = 100, color: bool = False) -> str:
        parts = [section(looked, width) for looked in self.looked]
        if len(self.looked) == 2:
            parts.append(side_by_side(self.looked[0], self.looked[1], width))
        if self.handwritten:
            parts.append(render(self.handwritten, [HANDWRITTEN], width=width))
        parts.append("\n".join(paragraph(note, width) for note in self.notes))
        return "\n\n".join(parts)


def inspect(
    variant: str | Variant,
    *,
    beside: str | Variant | None = None,
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    lengths: Sequence[int] = (),
    prepare: bool = True,
    code: str | Path | None = None,
    trace: str | Path | None = None,
    target: str | None = None,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Inspection:
    """What torch.compile captured and generated for a variant, and where its time went.

    beside: another variant, set against it part by part. lengths: sequence lengths to call it with
    afterwards, to see what recompiles. code: a folder for the generated code and the graphs.
    trace: a file for a Chrome trace. target: "sm_80", "sm_90" or "sm_100": what Inductor would
    generate for that GPU, which need not be here (nothing runs), with the figures of the
    handwritten kernels that `beside` uses. The rest as for `compare`.
    Nothing here is a measurement to quote: the shares come from a profiler that slows what it
    watches; `compare` times.
    Returns Results with one row per kernel. Raises ValueError for arguments that are wrong, and
    RuntimeError where this torch supports no target.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, None, seed, config)
    chosen = [v if isinstance(v, Variant) else Variant.parse(v) for v in (variant, beside) if v]
    if target is not None:
        if lengths or trace:
            given = "--lengths" if lengths else "--trace"
            raise checks.refuse("inspect --target", given, "was given", "neither: nothing runs")
        return _for_target(chosen, workload, target, dtype, code, progress)
    for one in chosen:
        if reason := unavailable(one, workload.device.type, workload.torch_dtype):
            raise checks.refuse("inspect", str(one), "cannot run here", f"another ({reason})")
    looked = []
    for i, v in enumerate(chosen):
        progress(f"compiling and watching {v}", i / len(chosen))
        chrome = Path(trace) if trace and i == 0 else None
        try:
            looked.append(inspected(v, workload, lengths=lengths, prepare=prepare, trace=chrome))
        except (OSError, ValueError):
            raise
        except Exception as error:  # the variant's own
            raise ValueError(f"inspect: {v} failed: {guard.reason(error)}") from error
    notes = [_about(workload), *_save(looked, code)]
    if trace is not None:
        notes.append(f"Chrome trace of {looked[0].variant} in {trace} (open it in Perfetto)")
    rows = [{"variant": str(one.variant), **row} for one in looked for row in one.rows]
    settings = {
        **workload.settings(), "seed": seed, "variants": [str(v) for v in chosen],
        "prepare": prepare, "lengths": list(lengths), **options.loaded(),
    }  # fmt: skip
    return Inspection(
        "inspect", rows, environment.environment(), settings, (KERNELS,), notes, looked=looked
    )


def _for_target(
    chosen: Sequence[Variant], workload: Workload, target: str, dtype: str,
    code: str | Path | None, progress: Progress,
) -> Inspection:  # fmt: skip
    """The first variant for a GPU, and the handwritten kernels of both for the same GPU."""
    gpu = no_gpu.target(target)
    progress(f"compiling {chosen[0]} for {target}", 0.0)
    looked = [inspected_for(chosen[0], workload, target)]
    forward = {SITES[site] for site in FORWARD}
    used = [
        i for v in chosen for i in v.plan.implementations()
        if i.name in RESOURCES_OF and i.op in forward
    ]  # fmt: skip
    handwritten = []
    if used:
        from fusebench.studies.resources import resources

        progress(f"compiling handwritten kernels for {target}", 0.5)
        ops, names = {i.op for i in used}, {RESOURCES_OF[i.name] for i in used}
        found = resources(sorted(ops), (target,), sorted(names), dtype=dtype).rows
        wanted = {(i.op, RESOURCES_OF[i.name]) for i in used}
        handwritten = [
            {**row, "failure": None}
            for row in found
            if (row["op"], row["impl"]) in wanted and runs(row["size"], workload)
        ]
    s = workload.settings()
    notes = [
        f"{s['model']}, batch {s['batch']}, {s['seq']} tokens, {s['dtype']}, for {target} "
        f"({gpu.name}), which need not be here: nothing ran. in, out: bytes over all calls as "
        "Inductor counts them; regs, spills, shared: the most over the configurations that the "
        "GPU would choose from. Of the handwritten kernels those that this model may run at this "
        "size; `fusebench resources` has all.",
        "The SDPA backend is the one PyTorch prefers for this dtype; it decides on the GPU.",
        *_save(looked, code),
    ]
    rows = [{"variant": str(chosen[0]), "target": target, **row} for row in looked[0].rows]
    rows += [{"variant": f"{row['impl']} kernel", "target": target, **row} for row in handwritten]
    settings = {**s, "target": target, "variants": [str(v) for v in chosen]}
    return Inspection(
        "inspect", rows, environment.environment(), settings, (COMPILED,), notes, looked=looked,
        handwritten=handwritten,
    )  # fmt: skip


def runs(size: str, workload: Workload) -> bool:
    """Whether a forward pass of the workload may run a kernel that `resources` has under `size`.

    Its words: decode, short or long (how many rows a product has), the norm, d<head_dim>, causal.
    """
    from fusebench.triton_kernels.configs import rows_class

    words, config = set(size.split()), workload.config
    of_rows = rows_class(workload.batch * workload.seq)
    heads = {w for w in words if w[:1] == "d" and w[1:].isdecimal()}
    others = {"backward", "training", "full", "decode", "short", "long", "layernorm", "rmsnorm"}
    power = 1 << (config.head_dim - 1).bit_length()
    if config.head_dim == power:
        others.add("gathered")  # heads of other dimensions
    heads -= {f"d{config.head_dim}", f"d{max(64, power)}"}
    return not heads and not words & (others - {of_rows, config.norm})


def _save(looked: Sequence[Inspected], code: str | Path | None) -> list[str]:
    if code is None:
        return []
    notes = []
    for one in looked:
        folder = Path(code) / str(one.variant)
        notes.append(f"{len(one.save(folder))} files of {one.variant} in {folder}")
    return notes


def section(looked: Inspected, width: int) -> str:
    """One variant: what was captured, what broke, its kernels, and what the libraries did."""
    seen = looked.observation
    kinds: Counter[str] = Counter()
    for row in looked.rows:
        kinds[row["kind"]] += row["calls"]
    count = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    if not looked.variant.mode.compiled:
        title = f"{looked.variant}: runs eagerly, so nothing is captured; {count} a call"
    else:
        title = (
            f"{looked.variant}: {plural(len(seen.graphs), 'graph')}, "
            f"{plural(len(seen.breaks), 'graph break')}, "
            f"{plural(len(seen.recompiles), 'recompile')}; kernels a call: {count}"
        )
    lines = [paragraph(title, width)]
    for graph in seen.graphs:
        lines.append(f"\nGraph {graph.id}, {short(graph.where)}")
        lines += described(captured(graph.ops), GRAPH, width, lambda row: row["ops"])
    lines += [paragraph(f"break at {short(b.where)}: {b.reason}", width) for b in seen.breaks]
    lines += [
        paragraph(f"recompile {r.graph} of {short(r.where)}: {r.reason}", width)
        for r in seen.recompiles
    ]
    columns = KERNELS if looked.profile else COMPILED
    lines += ["", *described(looked.rows, columns, width, computes)]
    if looked.profile is None:
        return "\n".join(lines)
    attention = looked.profile.attention()
    if attention:
        lines.append(paragraph(f"SDPA backend that ran: {attention[0]}", width))
    if gemms := looked.profile.gemms():
        lines.append(paragraph(f"GEMMs that ran: {', '.join(gemms)}", width))
    return "\n".join(lines)


def described(
    rows: Sequence[dict[str, Any]], columns: Sequence[Column], width: int,
    text: Callable[[dict[str, Any]], str],
) -> list[str]:  # fmt: skip
    """A table with lines below each row that say what it is."""
    if not rows:
        return []
    heading, rule, *lines = render(rows, [columns], width=width).splitlines()
    result = [heading, rule]
    for line, row in zip(lines, rows):
        more = textwrap.fill(text(row), width, initial_indent="    ", subsequent_indent="    ")
        result += [line, more]
    return result


def computes(row: dict[str, Any]) -> str:
    """What a kernel computes, and for which sites."""
    ops = ", ".join(op.removeprefix("aten.") for op in row["ops"])
    return f"{', '.join(row['sites']) or 'the model'}: {ops}"


def captured(ops: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The ops of a graph by site, with how often each occurs."""
    result = []
    for site in sites.ordered(site for site, _ in ops):
        names = Counter(op for s, op in ops if s == site)
        listed = ", ".join(op if n == 1 else f"{op} x{n}" for op, n in names.items())
        result.append({"site": site, "count": sum(names.values()), "ops": listed})
    return result


def side_by_side(first: Inspected, second: Inspected, width: int) -> str:
    """The same part of the model in two variants; each has its own time scale."""
    halves = (first.parts(), second.parts())
    rows = []
    for site in sites.ordered([*halves[0], *halves[1]]):
        row: dict[str, Any] = {"site": site}
        for side, parts in enumerate(halves):
            part = parts.get(site)
            if part is None:
                continue
            row |= {
                f"kernels{side}": part["kernels"], f"bytes{side}": part["bytes"],
                f"ms{side}": part["microseconds"] / 1000,
                f"names{side}": ", ".join(dict.fromkeys(part["names"])),
            }  # fmt: skip
        rows.append(row)
    columns = [field("site", "part       ", left=True)]
    for side, heading in enumerate(("left", "right")):
        columns += [
            field(f"names{side}", heading, left=True),
            field(f"kernels{side}", "calls"),
            field(f"bytes{side}", "moved", size),
            field(f"ms{side}", "ms", fixed(2)),
        ]
    note = (
        f"left: {first.variant}. right: {second.variant}. A kernel that serves several sites "
        "counts for the last; ms: in the profiler, not timed."
    )
    return render(rows, [columns], [note], width=width)


def paragraph(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent="  ")


def short(where: str) -> str:
    """A source line without the folders above its package."""
    path, colon, rest = where.partition(":")
    return "/".join(Path(path).parts[-3:]) + colon + rest


def _about(workload: Workload) -> str:
    s = workload.settings()
    return (
        f"{s['model']}, batch {s['batch']}, {s['seq']} tokens, {s['dtype']}, {s['device']}, "
        f"{plural(s['threads'], 'thread')}. in, out: bytes over all calls as Inductor counts them; "
        "time: share of the profiled time, a lead and not a measurement; -: the profiler saw none."
    )


@click.command("inspect")
@click.argument("variant")
@click.option("--beside", metavar="VARIANT", help="Set another variant against it, part by part.")
@without("rounds")
@options.workload
@click.option(
    "--lengths", metavar="T,T,…", type=Numbers(),
    help="Then call it with these lengths, to see what recompiles.",
)  # fmt: skip
@click.option(
    "--target", type=options.Name("target", tuple(no_gpu.TARGETS)),
    help="What Inductor generates for that GPU, which need not be here.",
)  # fmt: skip
@click.option("--code", metavar="DIR", help="Save the generated code and the graphs.")
@click.option("--trace", metavar="FILE", help="Save a Chrome trace.")
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.outputs
def command(
    variant: str, no_prepare: bool, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """What the compiler did with a VARIANT: graphs, breaks, recompiles, kernels, time shares."""
    try:
        results = options.run(
            lambda progress: inspect(
                variant, prepare=not no_prepare, progress=progress, **options.given(**settings)
            ),
            quiet,
        )
    except RuntimeError as error:
        if settings["target"] is None:
            raise
        raise click.ClickException(str(error)) from error  # it says which torch has targets
    return options.leave(results, json=json, csv=csv, parquet=parquet)
