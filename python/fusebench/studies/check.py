"""`fusebench check`: is every implementation right, and a good citizen of torch.compile?"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor

from fusebench.bench import environment, guard, verify
from fusebench.bench.keep import keep
from fusebench.bench.workload import DEVICES, DTYPES
from fusebench.ops import checks, contract, registry
from fusebench.ops.registry import Implementation, Op
from fusebench.report.results import Results
from fusebench.report.table import field, fixed
from fusebench.studies import options
from fusebench.studies.cases import GRID, Case

# Dynamo and AOTAutograd trace, but nothing is compiled: what is checked is the tracing.
BACKEND = "aot_eager"
# Without this a change of an op's tags or fakes would be hidden by a cached graph.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")


@dataclass
class Row:
    """What one implementation of one op did in one dtype.

    cases, refused: calls made, and calls it says it does not take. worst: the largest
    error / budget (at most 1 passes). failures: one line each.
    gradients, opcheck, fullgraph, dynamic: "pass", "fail", or "-" where there is nothing to check.
    """

    op: str
    impl: str
    dtype: str
    device: str
    backward: str
    cases: int = 0
    refused: int = 0
    worst: float = 0.0
    gradients: str = "-"
    opcheck: str = "-"
    fullgraph: str = "-"
    dynamic: str = "-"
    failures: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The row of the results; `failure` says the first of the failures and how many more."""
        more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
        failure = self.failures[0] + more if self.failures else None
        return {**dataclasses.asdict(self), "failure": failure}


COLUMNS = (
    field("op", left=True),
    field("impl", left=True),
    field("dtype"),
    field("cases"),
    field("refused"),
    field("worst", "err/budget", fixed(2)),
    field("gradients", "grads"),
    field("opcheck"),
    field("fullgraph"),
    field("dynamic"),
)


def check(
    op: str | None = None,
    impl: str | None = None,
    device: str | None = None,
    *,
    dtype: str | None = None,
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> Results:
    """Verify implementations over the grid of `fusebench.studies.cases`.

    op, impl, device ("cpu" or "cuda"), dtype: check only these; all that can run here where None.
    progress: called with (stage, share done).
    Values and gradients are judged against float64 (`fusebench.bench.verify`), layouts against
    the fake; inputs must stay unchanged; the torch op must pass torch.library.opcheck and trace
    with fullgraph=True and dynamic=True, forward and backward.
    Returns Results with a row per implementation and dtype (`Row`); what could not be checked
    here is in the notes, with the reason, and in settings["skipped"].
    Raises ValueError for a name that is not known, or an implementation asked for by name that
    cannot run here.
    """
    todo: list[tuple[Implementation, torch.dtype]] = []
    skipped: list[dict[str, str]] = []
    for implementation in select(op, impl):
        reason = implementation.unavailable() or _wrong_device(implementation, device)
        if reason:
            skipped.append({"op": implementation.op, "impl": implementation.name, "reason": reason})
            continue
        todo += [
            (implementation, each)
            for each in implementation.dtypes
            if each != torch.float64 and dtype in (None, str(each).removeprefix("torch."))
        ]
    if not todo and skipped and impl is not None:
        raise ValueError(f"check: {impl!r} cannot run here: {skipped[0]['reason']}")
    if not todo:
        raise checks.refuse(
            "check", "the selection", "is empty", "an op, impl and dtype that exist"
        )
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        for index, (implementation, each) in enumerate(todo):
            progress(f"checking {implementation.op} {implementation.name}", index / len(todo))
            keep(progress, "check", rows)
            rows.append(_check(implementation, each, device or _device(implementation)).as_dict())
    except KeyboardInterrupt:
        interrupted = True
    settings = {
        "op": op,
        "impl": impl,
        "device": device,
        "dtype": dtype,
        "skipped": skipped,
        **options.loaded(),
    }
    return Results(
        "check", rows, environment.environment(), settings, (COLUMNS,), _notes(rows, skipped),
        interrupted,
    )  # fmt: skip


def _notes(rows: list[dict[str, Any]], skipped: list[dict[str, str]]) -> list[str]:
    lines = [
        "err/budget: the largest error against float64, over twice that of plain PyTorch in the "
        "same dtype plus one rounding; at most 1 passes. refused: calls it says it does not take."
    ]
    for row in rows:
        lines += [f"{row['op']} {row['impl']} {row['dtype']}: {f}" for f in row["failures"]]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for s in skipped:
        by_reason.setdefault((s["impl"], s["reason"]), []).append(s["op"])
    lines += [f"not checked: {i} ({', '.join(o)}): {r}" for (i, r), o in by_reason.items()]
    return lines


def select(op: str | None, impl: str | None) -> list[Implementation]:
    """The registered implementations by op and name; ValueError for a name not known."""
    if op is not None:
        registry.get_op(op)
    known = {i.name for i in registry.IMPLEMENTATIONS.values() if op in (None, i.op)}
    if impl is not None and impl not in known:
        raise checks.unknown("implementation", impl, known, op or "")
    return [
        i
        for i in registry.IMPLEMENTATIONS.values()
        if op in (None, i.op) and impl in (None, i.name)
    ]


def _device(implementation: Implementation) -> str:
    if "cuda" in implementation.devices and torch.cuda.is_available():
        return "cuda"
    return "cpu"


def _wrong_device(implementation: Implementation, device: str | None) -> str | None:
    wanted = device or _device(implementation)
    if wanted not in implementation.devices:
        return f"runs on {' or '.join(implementation.devices)}, not on {wanted}"
    if wanted == "cuda" and not torch.cuda.is_available():
        return "no CUDA GPU here"
    return None


def _check(implementation: Implementation, dtype: torch.dtype, device: str) -> Row:
    op = registry.get_op(implementation.op)
    row = Row(
        op.name, implementation.name, str(dtype).removeprefix("torch."), device,
        implementation.backward,
    )  # fmt: skip
    run = partial(_run, op, implementation.name)
    differentiable: list[Case] = []
    for case in GRID[op.name](dtype, device):
        args = case.make()
        if implementation.supports is not None and implementation.supports(*args):
            row.refused += 1
            continue
        row.cases += 1
        _guarded(row, case.name, partial(_values, row, op, implementation, args))
        if case.gradients:
            differentiable.append(case)
    if not differentiable:
        return row
    row.gradients = _all(
        _guarded(row, f"gradients, {c.name}", partial(_gradients, row, op, run, c))
        for c in differentiable
    )
    if implementation.opaque:
        row.opcheck = _all(
            _guarded(row, f"opcheck, {c.name}", partial(_opcheck, implementation, c.make()))
            for c in differentiable
        )
    first = differentiable[0]
    row.fullgraph = _all([_guarded(row, "fullgraph=True", partial(_traced, row, op, run, first))])
    row.dynamic = _all([_guarded(row, "dynamic=True", partial(_dynamic, row, op, run, first))])
    return row


def _run(op: Op, impl: str, *args: Any) -> Any:
    return registry.call(op, impl, args)


def _all(outcomes: Iterator[bool] | list[bool]) -> str:
    return "pass" if all(list(outcomes)) else "fail"


def _guarded(row: Row, name: str, body: Callable[[], str | None]) -> bool:
    """Run one check; an exception is a failure with its reason, never a pass."""
    try:
        reason = body()
    except (Exception, SystemExit) as error:
        reason = f"raised {guard.reason(error)}"
    if reason:
        row.failures.append(f"{name}: {reason}")
    return reason is None


def _values(row: Row, op: Op, implementation: Implementation, args) -> str | None:
    before = contract.snapshot(op, args)
    with torch.no_grad():
        try:
            result = registry.call(op, implementation.name, args)
        except RuntimeError:  # the dispatcher's own error for a wrong kind of output says little
            direct = (implementation.function or implementation.call)(*args)
            if wrong := _wrong_kind(op, implementation, args, direct):
                return wrong
            raise
        truth, reference = verify.oracle(op.reference, args), op.reference(*args)
    if argument := contract.changed(op, args, before):
        return f"it changed its input {argument}"
    if wrong := _wrong_kind(op, implementation, args, result):
        return wrong
    verdict = verify.judge(result, truth, reference)
    row.worst = max(row.worst, verdict.ratio)
    if not verdict.ok:
        return verdict.reason
    if implementation.pack is None or implementation.packed_call is None:
        return None
    weights = dict(zip(op.arguments, args))
    packed = [implementation.pack(w, weights[w]) for w in op.packable]
    verdict = verify.judge(implementation.packed_call(*args, *packed), truth, reference)
    row.worst = max(row.worst, verdict.ratio)
    return None if verdict.ok else f"with packed weights: {verdict.reason}"


def _wrong_kind(op: Op, implementation: Implementation, args, result: Any) -> str | None:
    """Why the outputs are not of the kind that the op's fake promises, or None."""
    if implementation.name == "reference":  # its layouts are PyTorch's
        return None
    try:
        contract.outputs(op, implementation.name, args, result)
    except ValueError as error:
        return str(error)
    return None


def _tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _backward(
    op: Op, function: Callable[..., Any], args, double: bool = False
) -> tuple[Tensor | None, ...]:
    """Outputs, and gradients of a seeded sum of them with respect to every argument."""
    values = verify.to_float64(tuple(args)) if double else args
    leaves = [
        v.detach().clone().requires_grad_()
        if isinstance(v, Tensor) and v.is_floating_point() and name not in op.constants
        else v
        for name, v in zip(op.arguments, values)
    ]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    with torch.enable_grad():
        outputs = _tuple(function(*leaves))
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (o * torch.randn(o.shape, generator=generator).to(args_dtype(args)).to(o)).sum()
            for o in outputs
        )
        return (*outputs, *torch.autograd.grad(total, wanted, allow_unused=True))


def args_dtype(args) -> torch.dtype:
    """The dtype a call computes in: that of its first floating-point tensor."""
    return next(a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point())


def _gradients(
    row: Row, op: Op, function: Callable[..., Any], case: Case, **size: int
) -> str | None:
    args = case.make(**size)
    result = _backward(op, function, args)
    truth = _backward(op, op.reference, args, double=True)
    reference = _backward(op, op.reference, args)
    names = [f"output {i + 1}" for i in range(len(result))]
    wanted = [
        name
        for name, a in zip(op.arguments, args)
        if isinstance(a, Tensor) and a.is_floating_point() and name not in op.constants
    ]
    names[len(result) - len(wanted) :] = [f"gradient of {name}" for name in wanted]
    verdict = verify.judge(result, truth, reference, names)
    row.worst = max(row.worst, verdict.ratio)
    return None if verdict.ok else verdict.reason


def _opcheck(implementation: Implementation, args) -> None:
    # The gradient does not live in the torch op, so autograd registration is not its business.
    torch.library.opcheck(
        implementation.call,  # type: ignore[arg-type]
        tuple(args),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def _traced(row: Row, op: Op, run: Callable[..., Any], case: Case) -> str | None:
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend=BACKEND)
    return _gradients(row, op, compiled, case)


def _dynamic(row: Row, op: Op, run: Callable[..., Any], case: Case) -> str | None:
    """One graph must serve two lengths, forward and backward."""
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=BACKEND)
    with torch.compiler.set_stance("default"):
        wrong = _gradients(row, op, compiled, case, length=11)
    if wrong:
        return wrong
    with torch.compiler.set_stance("fail_on_recompile"):
        return _gradients(row, op, compiled, case, length=23)


@click.command("check")
@click.argument("op", required=False)
@click.option("--impl", metavar="NAME", help="Only this implementation.")
@click.option("--device", type=options.Name("device", DEVICES), help="Only on this device.")
@click.option("--dtype", type=options.Name("dtype", tuple(DTYPES)), help="Only in this dtype.")
@options.outputs
def command(
    op: str | None, impl: str | None, device: str | None, dtype: str | None, quiet: bool,
    json: str | None, csv: str | None, parquet: str | None,
) -> int:  # fmt: skip
    """Verify every implementation that can run here, of one OP or of all.

    Values and gradients against float64, layouts, unchanged inputs, opcheck, and tracing with
    fullgraph=True and dynamic=True, over a grid of odd sizes, hard numbers and optional parts.
    """
    results = options.run(
        lambda progress: check(op, impl, device, dtype=dtype, progress=progress), quiet
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
