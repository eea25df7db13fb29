"""`fusebench bindings`: what does the way a kernel is bound to PyTorch cost?

The same kernel, called in the ways that people call theirs from a model: through each of them it
is an implementation like any other, raced like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import torch

from fusebench.bench import environment
from fusebench.bench.contestant import Compilations, from_variant
from fusebench.bench.measure import Progress
from fusebench.bench.workload import Workload, set_threads
from fusebench.model import GPTConfig
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field, interval, significant
from fusebench.studies import options
from fusebench.studies.compare import as_dict, notes, race_variants, ratio
from fusebench.studies.op import race_site, sites_of
from fusebench.variant import SITES, Variant

ROUNDS = 30
# name -> what it is, for people
BINDINGS = {
    "raw": "a registered torch op",
    "custom_op": "torch.library.custom_op",
    "triton_op": "torch.library.triton_op, whose kernels Inductor sees",
    "disabled": "a function under torch.compiler.disable",
    "plain": "a pybind11 function, as C++ extensions offer them",
}
# So small that a call is little else than the way to the kernel.
TINY = GPTConfig(vocab_size=64, n_embed=32, num_heads=1, num_layers=1, max_seq_len=8)

COLUMNS: Sequence[Column] = (
    field("binding", left=True),
    field("eager_us", "eager us", significant),
    field("compiled_us", "compiled us", significant),
    field("graphs", "graphs"),
    field("graph_breaks", "breaks"),
    field("median_ms", "model ms", significant),
    field("speedup_vs_raw", "x raw", interval),
    field("speedup_vs_reference", "x Inductor alone", interval),
)


def bindings(
    op: str,
    *,
    impl: str | None = None,
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Race one kernel bound in several ways: alone on tiny inputs, and in the compiled GPT.

    op: an op or a site. impl: the implementation whose kernel it is; `cpp`, `cuda` or `triton`,
    the first that can run here, where None. The rest as for `compare`. Rows have microseconds of
    a tiny call, eager and compiled (the overhead of the binding, as the kernel has nothing to do),
    graphs and breaks in the GPT, its milliseconds, and ratios to the raw op and to
    reference@default. Weights are not packed, so that every binding calls the same kernel.
    Raises ValueError for arguments that are wrong, or where no implementation can run here.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, None, seed, config)
    site = sites_of(op)[0]
    kernel = _kernel(site, impl, workload)
    names = {binding: f"{kernel.name}_{binding}" for binding in bind(kernel)}

    tiny = replace(workload, custom=TINY, batch=1, seq=1)
    alone = [
        Variant.parse(f"{site}={name}@{mode}")
        for name in names.values()
        for mode in ("eager", "default")
    ]
    reference = Variant.parse("reference@default")
    variants = [Variant.parse(f"{site}={name}@default") for name in names.values()]
    with warnings.catch_warnings():  # the breaks are in the table
        warnings.filterwarnings("ignore", message="Dynamo does not know how to trace")
        quick = race_site(site, alone, tiny, rounds=rounds, prepare=False, progress=progress)
        race = race_variants(
            [*variants, reference], workload, rounds=rounds, prepare=False, progress=progress
        )
        for variant in variants:
            if found := race[str(variant)].contestant:
                found.compilations = compilations_of(variant, workload)
    raw, plain_inductor = race[str(variants[0])], race[str(reference)]
    rows = []
    for (binding, name), variant in zip(names.items(), variants):
        m = race[str(variant)]
        row = {
            "binding": binding,
            "what": BINDINGS[binding],
            "op": kernel.op,
            "site": site,
            "impl": kernel.name,
            "variant": str(variant),
            **m.row(),
            "speedup_vs_raw": as_dict(ratio(m, raw)),
            "speedup_vs_reference": as_dict(ratio(m, plain_inductor)),
            **workload.settings(),
        }
        for column, mode in (("eager_us", "eager"), ("compiled_us", "default")):
            call = quick[f"{site}={name}@{mode}"]
            row[column] = call.median * 1e6 if call.timed else None
            row["failure"] = row["failure"] or call.failure
        rows.append(row)
    lines = [f"{binding}: {BINDINGS[binding]}" for binding in names]
    if "triton_op" not in names:
        lines.append(f"triton_op: left out: {_no_triton_op(kernel)}")
    lines.append(
        f"eager, compiled: one call of {kernel.op} ({kernel.name}) on tiny inputs; model: the "
        f"compiled GPT with {site} bound this way and everything else left to Inductor"
    )
    lines += notes(race, workload)
    settings = {
        **workload.settings(), "op": op, "impl": kernel.name, "rounds": rounds, "seed": seed,
        **options.loaded(),
    }  # fmt: skip
    return Results(
        "bindings", rows, {**environment.environment(), "noise": race.noise}, settings, (COLUMNS,),
        lines, race.interrupted or quick.interrupted,
    )  # fmt: skip


def compilations_of(variant: Variant, workload: Workload) -> Compilations:
    """What compiling the GPT of a variant leads to, where nothing has been compiled before.

    Behind a graph break Dynamo compiles the functions that the model calls, which all variants
    share: in one process the second binding that breaks finds the graphs of the first.
    """
    torch._dynamo.reset()
    contestant = from_variant(variant, workload.config, workload.weights, prepared=False)
    with contestant.compiling():
        contestant.call(*workload.tokens(0))
    torch._dynamo.reset()
    return contestant.compilations


def _kernel(site: str, impl: str | None, workload: Workload) -> registry.Implementation:
    """The implementation whose kernel is bound: one that is a torch op, and runs here."""
    op = SITES[site]
    candidates = (impl,) if impl else ("cpp", "cuda", "triton")
    reasons = []
    for name in candidates:
        if name == "reference":
            raise checks.refuse("bindings", "impl", "is reference", "one with a kernel of its own")
        if not impl and name not in registry.names(op):
            continue
        found = registry.get(op, name)
        reason = found.unavailable()
        if not reason and not found.timed:
            reason = "it runs in an interpreter or simulator, which is never timed"
        if not reason and workload.device.type not in found.devices:
            reason = f"it runs on {' or '.join(found.devices)}, not on {workload.device.type}"
        if not reason and workload.torch_dtype not in found.dtypes:
            reason = f"it does not take {workload.dtype}"
        if not reason:
            return found
        reasons.append(f"{name}: {reason}")
    raise checks.refuse(
        "bindings", "impl", f"is {impl or 'not given'}",
        f"an implementation of {op} that runs here ({'; '.join(reasons) or 'there is none'})",
    )  # fmt: skip


def _no_triton_op(kernel: registry.Implementation) -> str | None:
    """Why a kernel cannot be a triton_op of its own, or None."""
    if not kernel.opaque:
        return None
    if kernel.source.startswith("triton_kernels/") and torch.cuda.is_available():
        return None
    return f"{kernel.name} is not a Triton kernel on a GPU"


def bind(kernel: registry.Implementation) -> list[str]:
    """Register an implementation `<impl>_<binding>` for each binding that applies; their names."""
    op = registry.get_op(kernel.op)
    calls: dict[str, Callable[..., Any]] = {"raw": _opaque(kernel)}
    calls["custom_op"] = _custom_op(op, kernel, calls["raw"])
    if _no_triton_op(kernel) is None:
        calls["triton_op"] = kernel.call
    plain = _pybind(calls["raw"])
    calls["disabled"] = torch.compiler.disable(plain)
    calls["plain"] = plain
    for binding, call in calls.items():
        name = f"{kernel.name}_{binding}"
        if name not in registry.names(kernel.op):
            registry.register(
                replace(kernel, name=name, call=call, pack=None, packed_call=None, autograd=None)
            )
    return list(calls)


def _opaque(kernel: registry.Implementation) -> Any:
    if not kernel.opaque:
        raise checks.refuse(
            "bindings", "impl", f"is {kernel.name}, which is no torch op", "a registered torch op"
        )
    return kernel.call


def _pybind(call: Any) -> Callable[..., Any]:
    """The op as a pybind11 function, which Dynamo does not know how to trace."""
    operation, _ = torch._C._jit_get_operation(call.name().removesuffix(".default"))
    return operation


def _custom_op(op: registry.Op, kernel: registry.Implementation, call: Any) -> Any:
    """The same kernel behind torch.library.custom_op, which adds Python around every call."""
    qualified = f"fusebench::{op.name}_{kernel.name}_custom_op"
    existing = getattr(torch.ops.fusebench, qualified.partition("::")[2], None)
    if existing is not None:
        return existing.default

    def body(*args: Any) -> Any:
        return call(*args)

    custom = torch.library.custom_op(
        qualified, body, mutates_args=(), schema=op.schema, device_types=list(kernel.devices)
    )
    custom.register_fake(op.fake)
    return custom


@click.command("bindings")
@click.argument("op")
@click.option("--impl", metavar="NAME", help="Whose kernel: cpp, cuda or triton.")
@options.workload
@options.outputs
def command(
    op: str, quiet: bool, json: str | None, csv: str | None, parquet: str | None, **settings: Any
) -> int:
    """What the way a kernel is bound costs: pybind11, compiler.disable, custom_op, a torch op."""
    results = options.run(
        lambda progress: bindings(op, progress=progress, **options.given(**settings)), quiet
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
