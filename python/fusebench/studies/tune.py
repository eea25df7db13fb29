"""`fusebench tune`: search the tile sizes of an op's Triton kernels on this GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from fusebench.bench import guard, statistics, timing, verify
from fusebench.bench.environment import environment
from fusebench.bench.workload import DTYPES
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field, interval, significant
from fusebench.studies import options

# What is tried for each field of a table's row; a field that a row does not have is left out.
SPACE: dict[str, tuple[Any, ...]] = {
    "block_m": (16, 64, 128),
    "block_n": (64, 128, 256),
    "block_k": (32, 64),
    "warps": (4, 8),
    "stages": (2, 3, 4),
}
TUNABLE = ("bfloat16", "float16")
SMALL = 1 << 25  # bytes of results: below, kernels are shorter than their launch
Configuration = dict[str, Any]
Progress = Callable[[str, float], None]


def candidates(shipped: Configuration) -> list[Configuration]:
    """The shipped row first, then every other combination of SPACE in its other fields' company.

    A tile that no warp group can fill, or that leaves fewer than 16 rows per warp pair, is no
    candidate: its accumulator of block_m x block_n must lie between 1024 and 32768 elements.
    """
    fields = [f for f in SPACE if f in shipped]
    found = [shipped]
    for values in itertools.product(*(SPACE[f] for f in fields)):
        row = {**shipped, **dict(zip(fields, values))}
        tile = row.get("block_m", 64) * row["block_n"]
        if row != shipped and 1024 <= tile <= 32768 and tile // row["warps"] >= 256:
            found.append(row)
    return found


def tune(
    op: str,
    *,
    dtype: str = "bfloat16",
    sizes: Sequence[str] | None = None,
    rounds: int = 15,
    write: Path | None = None,
    device: torch.device | str = "cuda",
    clock: timing.Clock | None = None,
    search: Callable[[Configuration], list[Configuration]] = candidates,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Race configurations of an op's Triton kernels, and keep the fastest where it is sure.

    dtype: bfloat16 or float16 (they share the tables' 16-bit rows). sizes: size classes of the
    tables; all where None. rounds: interleaved samples of each candidate, at least 1. write: folder
    to write the new tables to, after every row (the package's own:
    `fusebench.triton_kernels.configs.FOLDER`).
    clock, device, search: for tests without a GPU.
    A row per table row: the configuration kept, its speed-up over the shipped one with a 95%
    interval, and how many candidates failed to compile or gave a less accurate result; or why it
    could not be tuned. Ctrl-C ends the search and keeps the rows that are finished.
    A candidate replaces the shipped row only where its interval lies above 1.
    Raises ValueError for an op, dtype or size that is not known, or without a GPU.
    """
    registry.get_op(op)
    if dtype not in TUNABLE:
        raise checks.refuse("tune", "dtype", f"is {dtype!r}", " or ".join(TUNABLE))
    if rounds < 1:
        raise checks.refuse("tune", "rounds", f"is {rounds}", "at least 1")
    reason = registry.get(op, "triton").unavailable()
    if reason or (clock is None and not torch.cuda.is_available()):
        raise ValueError(f"tune: {reason or 'needs a CUDA GPU to time on; there is none here'}")
    from fusebench.triton_kernels import configs

    device = torch.device(device)
    clock = clock or timing.clock(device)
    jobs = list(_jobs(op, DTYPES[dtype], str(device)))
    known = sorted({key[3] for key, _ in jobs})
    for size in sizes or ():
        if size not in known:
            raise checks.unknown("size", size, known, f"tune {op}")
    rows: list[dict[str, Any]] = []
    kept: dict[Any, Configuration] = {}
    written: dict[str, Path] = {}
    interrupted = False
    try:
        for index, (key, calls) in enumerate(jobs):
            name = key[0]
            if sizes and key[3] not in sizes:
                continue
            progress(f"tuning {name} {key[3]}", index / len(jobs))
            row, kept[key] = _tune_row(key, calls, search, clock, rounds)
            rows.append(row)
            if write is not None:
                found = {k[1:]: configuration for k, configuration in kept.items() if k[0] == name}
                written[name] = configs.write_table(name, merged(name, found), Path(write))
    except KeyboardInterrupt:
        interrupted = True
    notes = [f"wrote {path}" for path in written.values()]
    settings = {"op": op, "dtype": dtype, "sizes": sizes, "rounds": rounds}
    return Results("tune", rows, environment(), settings, (TABLE,), notes, interrupted)


def merged(name: str, found: dict[tuple[int, int, str], Configuration]) -> list[dict[str, Any]]:
    """All rows of a table as `write_table` takes them, those in `found` replaced."""
    from fusebench.triton_kernels import configs

    unknown = set(found) - set(configs.table(name))
    if unknown:
        raise ValueError(f"tune: {name} has no rows {sorted(unknown)}")
    return [
        {**dict(zip(configs.KEYS, key)), **found.get(key, row)}
        for key, row in configs.table(name).items()
    ]


def _jobs(op: str, dtype: torch.dtype, device: str) -> Iterator[tuple[Any, list[tuple]]]:
    """The rows of the op's own tables, each with the example calls that read it.

    A row without a twin for 32-bit elements has no truth to be judged by, and is left alone.
    """
    from fusebench.triton_kernels import configs, examples, launch

    readers: dict[Any, list[tuple]] = {}
    arch = launch.target(torch.empty(0, device=device)).arch
    shapes = list(examples.EXAMPLES[op](dtype, "meta"))
    for _, launcher, args in shapes:
        with launch.record(arch), configs.consulted() as keys:
            launcher(*args)
        for key in sorted(keys):
            if key[0].startswith(op) and (key[1], 32, key[3]) in configs.table(key[0]):
                readers.setdefault(key, []).append((launcher, args))
    yield from sorted(readers.items())


def _real(args: Sequence[Any], device: str, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """The same arguments with seeded values, made in the tensors' own dtype."""
    from fusebench.triton_kernels.examples import Make

    torch.manual_seed(0)
    made: dict[int, Any] = {}
    for a in args:
        if isinstance(a, torch.Tensor) and id(a) not in made:
            made[id(a)] = Make(a.dtype, device)(*a.shape)
    return tuple(made.get(id(a), a) for a in args)


def _tune_row(key, readers, search, clock, rounds) -> tuple[dict[str, Any], Configuration]:
    """Race the candidates for one table row, each on all the examples that read it.

    What fails is the row's own failure: the shipped configuration is kept, the others go on.
    """
    from fusebench.triton_kernels import configs

    shipped = configs.row(key[0], key[1], torch.bfloat16, key[3])
    row: dict[str, Any] = {
        "table": key[0], "arch": key[1], "bits": key[2], "size": key[3], "shipped": shipped,
        "candidates": 0, "rejected": 0, "failure": None,
    }  # fmt: skip
    try:
        return row, _race(row, key, readers, search, clock, rounds)
    except Exception as error:
        row["failure"] = guard.reason(error)
        return row, shipped


def _race(row, key, readers, search, clock, rounds) -> Configuration:
    """The configuration to keep; fills in the row."""
    from fusebench.triton_kernels import configs

    shipped = row["shipped"]
    device = str(clock.device) if hasattr(clock, "device") else "cpu"
    calls = [(launcher, _real(args, device)) for launcher, args in readers]

    def run(configuration: Configuration) -> list[Any]:
        with configs.trial(key, configuration):
            return [launcher(*args) for launcher, args in calls]

    truth = [_tuple(f(*_widened(args))) for f, args in calls]
    shipped_result = [_tuple(r) for r in run(shipped)]
    contestants: dict[str, Callable[[], Any]] = {}
    options_by_name: dict[str, Configuration] = {}
    for index, candidate in enumerate(search(shipped)):
        row["candidates"] += 1
        try:
            # Compiles the candidate, before any clock runs.
            results = [_tuple(r) for r in run(candidate)]
        except Exception:  # too much shared memory, or a tile that a kernel cannot have
            row["rejected"] += 1
            continue
        verdicts = [verify.judge(*each) for each in zip(results, truth, shipped_result)]
        if not all(v.ok for v in verdicts):
            row["rejected"] += 1
            continue
        name = "shipped" if index == 0 else str(index)
        options_by_name[name] = candidate
        contestants[name] = _timed(partial(run, candidate), shipped_result, device)
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    batches = lambda: [(), ()]  # noqa: E731  the inputs are the examples' own
    for _, name, _, turn in timing.race(clock, contestants, batches, rounds=rounds, seed=0):
        if isinstance(turn, BaseException):
            raise turn
        samples[name].append(turn.seconds)
    best = min(samples, key=lambda name: statistics.median(samples[name]))
    gain = statistics.speedup(samples[best], samples["shipped"])
    if gain.low <= 1:
        best, gain = "shipped", statistics.Interval(1.0, 1.0, 1.0)
    row["best"] = options_by_name[best]
    row["median_ms"] = statistics.median(samples[best]) * 1e3
    row["speedup_vs_shipped"] = gain.as_dict()
    return options_by_name[best]


def _timed(run: Callable[[], Any], results: Sequence[tuple[Any, ...]], device: str) -> Any:
    """What the clock calls: on a GPU small calls as a CUDA graph, or launching would be timed."""
    small = sum(t.nbytes for r in results for t in r if isinstance(t, torch.Tensor)) < SMALL
    return timing.Graphed(run, ()) if small and device.startswith("cuda") else run


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _widened(args: Sequence[Any]) -> tuple[Any, ...]:
    """16-bit tensors in float32: the kernels' own float32 result is the truth of a 16-bit one."""
    return tuple(
        a.float() if isinstance(a, torch.Tensor) and a.dtype.itemsize == 2 else a for a in args
    )


def _tiles(row: Any) -> str:
    names = {"block_m": "M", "block_n": "N", "block_k": "K", "warps": "w", "stages": "s"}
    kept = row.get("best", row["shipped"])  # a row that failed stays as it was
    return " ".join(f"{names[k]}{v}" for k, v in kept.items() if k in names)


TABLE = (
    Column("table", lambda r: r["table"], left=True),
    field("size", left=True),
    field("arch"),
    Column("kept", _tiles, left=True),
    field("median_ms", "ms", significant),
    field("speedup_vs_shipped", "vs shipped [95%]", interval),
    Column("tried", lambda r: f"{r['candidates']}"),
    Column("rejected", lambda r: f"{r['rejected']}"),
)


def _sizes(context: Any, parameter: Any, value: str | None) -> list[str] | None:
    return None if value is None else [v.strip() for v in value.split(",")]


@click.command("tune")
@click.argument("op")
@click.option("--dtype", type=options.Name("dtype", TUNABLE), default="bfloat16", show_default=True)
@click.option("--sizes", callback=_sizes, metavar="SIZE,...", help="Only these size classes.")
@click.option("--rounds", type=int, default=15, show_default=True)
@click.option(
    "--write", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write the op's tables, with what was found, to this folder.",
)  # fmt: skip
@options.outputs
def command(
    op: str, dtype: str, sizes: list[str] | None, rounds: int, write: Path | None, quiet: bool,
    json: str | None, csv: str | None, parquet: str | None,
) -> int:  # fmt: skip
    """Search the tile sizes of OP's Triton kernels on this GPU.

    Every candidate is verified before it is timed. A row of a table changes only where a
    candidate is surely faster than what it says now.
    """
    results = options.run(
        lambda progress: tune(
            op, dtype=dtype, sizes=sizes, rounds=rounds, write=write, progress=progress
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
