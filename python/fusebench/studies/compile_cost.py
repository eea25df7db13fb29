"""`fusebench compile-cost`: what does the first call cost, with nothing cached and with everything?

Every first call is made in a process of its own, with the compiler's caches in a temporary folder:
empty for the cold call, as the cold call left them for the warm one. The user's caches are neither
used nor touched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from fusebench.bench import environment, memory, timing
from fusebench.bench.contestant import from_variant, unavailable
from fusebench.bench.measure import Progress
from fusebench.bench.workload import Workload, set_threads
from fusebench.inspect import capture
from fusebench.model import GPT, GPTConfig
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field, fixed, plural, size
from fusebench.studies import options
from fusebench.studies.arguments import without
from fusebench.studies.compare import handwritten, parse
from fusebench.variant import Variant

DEFAULTS = ("reference@default", "reference@max-autotune+freezing")
CACHES = ("cold", "warm")

COLUMNS: Sequence[Column] = (
    field("variant", left=True),
    field("cache"),
    field("first_call_s", "first s", fixed(2)),
    field("dynamo_s", "Dynamo", fixed(2)),
    field("aot_s", "AOT", fixed(2)),
    field("inductor_s", "Inductor", fixed(2)),
    field("code_s", "code", fixed(2)),
    field("graphs"),
    field("hits", "hits"),
    field("cache_bytes", "on disk", size),
    field("memory_bytes", "memory", size),
)


def compile_cost(
    variants: Sequence[str | Variant] = (),
    *,
    regional: bool = False,
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """The cost of the first call of each variant, cold and warm.

    variants: PLAN@MODE with a compiled mode; where empty, reference@default and
    max-autotune+freezing, and cpp, cuda or triton where it can run. regional: also compile one
    block and use it for all of them, instead of the whole model.
    The rest as for `compare`. Rows have seconds of the first call and of its parts (Dynamo,
    AOTAutograd, Inductor, generating and compiling code), graphs, cache hits, bytes of the caches
    afterwards, and how much more memory the process holds.
    Raises ValueError for arguments that are wrong.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, None, seed, config)
    chosen = parse(variants or (*DEFAULTS, *handwritten(workload)))
    for variant in chosen:
        if not variant.mode.compiled:
            raise checks.refuse("compile-cost", str(variant), "compiles nothing", "a compiled mode")
        if reason := unavailable(variant, workload.device.type, workload.torch_dtype):
            raise checks.refuse("compile-cost", str(variant), "cannot run", f"another: {reason}")
    jobs = [(v, r) for v in chosen for r in ((False, True) if regional else (False,))]
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        for number, (variant, by_block) in enumerate(jobs):
            with tempfile.TemporaryDirectory(prefix="fusebench-cache-") as folder:
                for step, cache in enumerate(CACHES):
                    label = f"{variant}{' by block' if by_block else ''}"
                    progress(f"{label}, {cache}", (2 * number + step) / (2 * len(jobs)))
                    row = _first_call(variant, by_block, workload, Path(folder))
                    rows.append(
                        {"variant": label, "plan": str(variant.plan), "mode": str(variant.mode),
                         "regional": by_block, "cache": cache, **row, **workload.settings()}
                    )  # fmt: skip
                    if row["failure"]:
                        break
    except KeyboardInterrupt:
        interrupted = True
    settings = {
        **workload.settings(), "variants": [str(v) for v in chosen], "regional": regional,
        "seed": seed, **options.loaded(),
    }  # fmt: skip
    return Results(
        "compile-cost", rows, environment.environment(), settings, (COLUMNS,), _notes(workload),
        interrupted,
    )  # fmt: skip


def _notes(workload: Workload) -> list[str]:
    s = workload.settings()
    return [
        f"{s['model']}, batch {s['batch']}, {s['seq']} tokens, {s['dtype']}, {s['device']}, "
        f"{plural(s['threads'], 'thread')}; one first call each, so read them as magnitudes.",
        "code: generating and compiling C++ or Triton code, or loading it from the cache. hits: "
        "graphs found in a cache. memory: what the process holds more of after the call. Each "
        "process also pays for importing the compiler, which `first s` holds and the parts do not.",
    ]


def _first_call(
    variant: Variant, regional: bool, workload: Workload, folder: Path
) -> dict[str, Any]:
    """One first call in a process of its own, its caches in `folder`."""
    request = {
        "variant": str(variant), "regional": regional, "model": asdict(workload.config),
        "batch": workload.batch, "seq": workload.seq, "dtype": workload.dtype,
        "device": workload.device.type, "seed": workload.seed, "threads": torch.get_num_threads(),
        "files": registry.loaded_files(),
    }  # fmt: skip
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
    }
    answer = folder.parent / f"{folder.name}.json"
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(request), str(answer)],
            env={**os.environ, **caches}, capture_output=True, text=True,
        )  # fmt: skip
        if child.returncode or not answer.exists():
            ended = f"the process ended with exit code {child.returncode} and no reason"
            lines = child.stderr.strip().splitlines() or [ended]
            # PyTorch puts advice behind the error itself.
            last = [line for line in lines if "Error: " in line][-1:] or lines[-1:]
            return {"failure": last[0]}
        row = json.loads(answer.read_text())
    finally:
        answer.unlink(missing_ok=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    row["cache_bytes"] = sum(path.stat().st_size for path in files)
    row["cache_files"] = len(files)
    row["failure"] = None
    return row


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """The child's work: build, call once, say what it took."""
    registry.load_entry_points()
    for file in request["files"]:
        registry.load_file(file)
    set_threads(request["threads"])
    variant = Variant.parse(request["variant"])
    workload = Workload(
        "custom", request["batch"], request["seq"], request["dtype"], request["device"], None,
        request["seed"], GPTConfig(**request["model"]),
    )  # fmt: skip
    contestant = from_variant(variant, workload.config, workload.weights)
    if request["regional"]:
        contestant.call = _by_block(contestant.module, variant)
    tokens = workload.tokens(0)
    before = memory.resident()
    with contestant.compiling(), capture.observe(kernels=False) as seen:
        start = timing.now()
        contestant.call(*tokens)
        timing.synchronize(workload.device)
        first = timing.now() - start
    return {
        "first_call_s": first,
        **parts(seen.compilations),
        "graphs": contestant.compilations.graphs,
        "graph_breaks": contestant.compilations.graph_breaks,
        "hits": contestant.compilations.cache_hits,
        "memory_bytes": memory.resident() - before,
    }


def _by_block(model: Any, variant: Variant) -> Any:
    """Compile the block, which all blocks share, and leave what is around them eager."""
    assert isinstance(model, GPT)
    name = None if variant.mode.name == "default" else variant.mode.name
    for block in model.blocks:
        block.compile(mode=name, dynamic=True if variant.mode.dynamic else None)
    return lambda tokens: model(tokens)["logits"]


def parts(compilations: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds in each layer of the compiler, from PyTorch's cumulative ones: each holds the next.

    dynamo_s: capturing and guards. aot_s: AOTAutograd. inductor_s: lowering, fusion, scheduling.
    code_s: generating, compiling and loading code.
    """
    names = ("entire_frame_compile_time_s", "backend_compile_time_s", "inductor_compile_time_s",
             "code_gen_time_s")  # fmt: skip
    whole, backend, inductor, code = (
        sum(c.get(name) or 0.0 for c in compilations) for name in names
    )
    return {
        "dynamo_s": whole - backend,
        "aot_s": max(0.0, backend - inductor),
        "inductor_s": max(0.0, inductor - code),
        "code_s": code,
    }


@click.command("compile-cost")
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option("--regional", is_flag=True, help="Also compile one block and reuse it.")
@without("rounds")
@options.workload
@options.outputs
def command(
    variants: tuple[str, ...], regional: bool, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """What compiling costs: the first call of each VARIANT, with cold and with warm caches."""
    results = options.run(
        lambda progress: compile_cost(
            variants, regional=regional, progress=progress, **options.given(**settings)
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_answer(json.loads(sys.argv[1]))))
