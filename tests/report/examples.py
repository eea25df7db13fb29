"""Results as the studies write them, with made-up figures, for tests of the report."""

from __future__ import annotations

import math

from fusebench.report.results import Results

HOSTILE = "<script>alert(1)</script>\"'&<b>"
ENVIRONMENT = {
    "fusebench": "0.1.0", "python": "3.11.7", "torch": "2.14.1", "triton": "3.8.0",
    "platform": "Linux-x86_64", "cpu": "Some CPU @ 2.10GHz", "cpu_count": 2,
    "cpu_capability": "AVX512", "build": {"compiler": "GNU 12.2.0", "cuda": False}, "threads": 2,
    "load": [0.1, 0.2, 0.3], "gpus": [], "time": "2026-11-29T20:53:40+0000",
    "noise": {"spread": 0.02, "drift": 0.01, "others": 0.0, "warnings": []},
}  # fmt: skip
WORKLOAD = {"model": "seed", "batch": 1, "seq": 128, "dtype": "float32", "device": "cpu",
            "threads": 2, "text": None}  # fmt: skip


def between(value: float, spread: float = 0.04) -> dict[str, float]:
    return {"value": value, "low": value * (1 - spread), "high": value * (1 + spread)}


def verdict(ratio: float) -> str:
    return "faster" if ratio > 1.06 else "slower" if ratio < 0.94 else "no difference"


def variant(name: str, ms: float | None, best: float, eager: float, **more) -> dict:
    """A row of `compare`; without a time, of one that failed."""
    plan, _, mode = name.rpartition("@")
    seq = more.get("seq", 128)
    return {
        "variant": name, "verified": ms is not None,
        "failure": None if ms else "the result is wrong: error 3e-2, budget 2e-6", "median_ms": ms,
        "p95_ms": ms and ms * 1.1, "first_call_s": 2.5, "peak_bytes": 1 << 20, "error": 7e-7,
        "error_budget": 1.6e-6, "graphs": int(mode != "eager"), "graph_breaks": 0, "recompiles": 0,
        "break_reasons": [], "cache_hits": 0, "prepared": True, "steady": True, "outliers": 0,
        "calls_per_sample": 1, "samples_ms": [ms] * 5 if ms else [], "flag": None, "warnings": [],
        "tokens_per_s": ms and seq * 1e3 / ms, "speedup_vs_eager": ms and between(eager / ms),
        "speedup_vs_inductor": ms and between(best / ms), "verdict": ms and verdict(best / ms),
        "best_inductor": ms == best, "plan": plan, "mode": mode, **WORKLOAD, **more,
    }  # fmt: skip


def compare(seq: int = 128, scale: float = 1.0, bad: str = "sdpa=mine@default") -> Results:
    times = {
        "reference@eager": 4.9, "reference@default": 3.8, "reference@max-autotune+freezing": 3.5,
        "cpp@eager": 3.1, "cpp@default": 2.6, "sdpa=cpp,swiglu_ffn=cpp-norm@default": 3.45,
        bad: None,
    }  # fmt: skip
    rows = [
        variant(name, ms and ms * scale, 3.5 * scale, 4.9 * scale, seq=seq)
        for name, ms in times.items()
    ]
    settings = {**WORKLOAD, "seq": seq, "rounds": 50, "seed": 0, "variants": list(times)}
    notes = [f"seed, batch 1, {seq} tokens, float32, cpu, 2 threads", "warning: it was noisy"]
    return Results("compare", rows, ENVIRONMENT, settings, notes=notes)


def effect(name: str, ratio: float, saved: float | None, of: str | None, **more) -> dict:
    words = {"faster": "keep", "slower": "leave to Inductor"}
    return {
        "effect": name, "kind": "site", "sites": [name], "of": of, "over": "reference@default",
        "contribution": between(ratio), "saved_ms": saved,
        "verdict": words.get(verdict(ratio), "no difference"), "failure": None, **more,
    }  # fmt: skip


def ablate(design: str = "one-in") -> Results:
    times = {"qkv_proj": 3.5, "sdpa": 3.3, "swiglu_ffn": 4.05}
    reference, everything = 3.8, 2.9
    if design == "factorial":
        names = ["reference@default", *(f"cell {i}@default" for i in range(6)), "cpp@default"]
        cells = dict(zip(names, (3.8, 3.7, 3.6, 3.5, 3.4, 3.3, 3.1, 2.9)))
        effects = [effect(s, reference / ms, None, None, over=None) for s, ms in times.items()]
        effects.append(
            effect(
                "qkv_proj x sdpa", 1.01, None, None, kind="interaction", verdict="independent",
                sites=["qkv_proj", "sdpa"], over=None,
            )
        )  # fmt: skip
    else:
        cells = {
            "reference@default": reference, **{f"{s}=cpp@default": t for s, t in times.items()},
            "cpp@default": everything,
        }  # fmt: skip
        effects = [
            effect(s, reference / ms, reference - ms, f"{s}=cpp@default") for s, ms in times.items()
        ]
        effects.append(
            effect(
                "all of them", reference / everything, reference - everything, "cpp@default",
                kind="all", sites=list(times),
            )
        )  # fmt: skip
    rows = [variant(name, ms, reference, 4.9) for name, ms in cells.items()]
    settings = {**WORKLOAD, "impl": "cpp", "design": design, "sites": list(times),
                "mode": "default", "rounds": 40, "seed": 0}  # fmt: skip
    return Results("ablate", effects + rows, ENVIRONMENT, settings)


def explain() -> Results:
    sites = [
        {"site": site, "calls": 4, "a": f"{site}=reference@default", "b": f"{site}=cpp@default",
         "a_ms": a, "b_ms": b, "share": 4 * a / 3.8, "alone": between(a / b),
         "saves_ms": 4 * (a - b), "failure": None}
        for site, a, b in (("qkv_proj", 0.2, 0.15), ("sdpa", 0.25, 0.1), ("swiglu_ffn", 0.3, 0.3))
    ]  # fmt: skip
    account = [
        {"item": item, "ms": ms, "what": what}
        for item, ms, what in (
            ("A, measured", 3.8, "the whole model"), ("saved at the sites", 0.8, "alone"),
            ("B, predicted", 3.0, "1.27 times faster"), ("B, measured", 3.2, "1.19 times faster"),
            ("unaccounted", 0.2, "B took more"), ("dispatch, B", 0.05, "entering ops"),
        )
    ]  # fmt: skip
    compiled = [
        {"side": f"{side}  {v}", "call_peak": 1 << 20, "generated": 10, "generated_bytes": 4096}
        for side, v in zip("AB", ("reference@default", "cpp@default"))
    ]
    whole = [variant(n, t, 3.8, 4.9) for n, t in (("reference@default", 3.8), ("cpp@default", 3.2))]
    settings = {**WORKLOAD, "a": "reference@default", "b": "cpp@default", "rounds": 40}
    return Results("explain", [*sites, *account, *compiled, *whole], ENVIRONMENT, settings)


def op(limits: bool = True) -> Results:
    flops = {"qkv_proj": (12.6e6, 0.35e6), "sdpa": (8.4e6, 0.52e6), "swiglu_ffn": (50e6, 1.2e6),
             "lm_head": (1e5, 0.9e5)}  # fmt: skip
    peak, bandwidth = 100e9, 20e9
    rows = []
    for site, (work, moved) in flops.items():
        least = max(work / peak, moved / bandwidth)
        for contestant, share in (("reference@eager", 0.4), ("reference@default", 0.5),
                                  ("cpp@eager", 0.8)):  # fmt: skip
            us = least / share * 1e6
            row = variant(f"{site}={contestant}", us / 1e3, least / 0.5e-3, least / 0.4e-3)
            rows.append({
                **row, "contestant": contestant, "op": site, "site": site,
                "impl": contestant.partition("@")[0], "median_us": us, "p95_us": us * 1.1,
                "flops": work, "bytes": moved, "intensity": work / moved,
                "limit_us": least * 1e6 if limits else None,
                "bound": ("compute" if work / peak == least else "memory") if limits else None,
                "gflops": work / us / 1e3, "gbytes_per_s": moved / us / 1e3,
                "share_of_limit": share if limits else None,
            })  # fmt: skip
    settings = {**WORKLOAD, "op": "qkv_proj", "rounds": 60, "seed": 0}
    return Results("op", rows, ENVIRONMENT, settings)


def shapes() -> Results:
    rows = [
        {**variant(name, ms * length / 64, 2.0, 4.0, seq=length), "policy": policy,
         "new_graphs": int(length == 64), "recompiles": int(policy == "static" and length > 64),
         "recompile_reasons": [], "compile_s": 1.5}
        for length in (64, 128, 256)
        for name, ms in (("reference@default", 2.0), ("cpp@default", 1.6))
        for policy in ("automatic", "static")
    ]  # fmt: skip
    rows.append({**variant("mine@default", None, 2.0, 4.0), "policy": "automatic"})
    settings = {**WORKLOAD, "seq": None, "lengths": [64, 128, 256], "rounds": 20,
                "policies": ["automatic", "static"], "variants": ["reference@default"],
                "crossovers": ["crossover (static): cpp@default wins up to 64 tokens"]}  # fmt: skip
    return Results("shapes", rows, ENVIRONMENT, settings)


def compile_cost() -> Results:
    rows = [
        {"variant": name, "plan": "reference", "mode": "default", "regional": False,
         "cache": cache, "first_call_s": first, "dynamo_s": 0.6, "aot_s": 0.3,
         "inductor_s": 0.3 * first, "code_s": 0.4 * first, "graphs": 1, "graph_breaks": 0,
         "hits": int(cache == "warm"), "memory_bytes": 200 << 20, "cache_bytes": 3 << 20,
         "cache_files": 20, "failure": None, **WORKLOAD}
        for name in ("reference@default", "reference@max-autotune+freezing")
        for cache, first in (("cold", 9.0), ("warm", 4.0))
    ]  # fmt: skip
    rows.append({**rows[0], "variant": "mine@default", "failure": "it fell over"})
    del rows[-1]["first_call_s"]
    settings = {**WORKLOAD, "variants": ["reference@default"], "regional": False, "seed": 0}
    return Results("compile-cost", rows, ENVIRONMENT, settings)


def machine() -> Results:
    rows = [
        {"what": what, "threads": threads, "value": value * threads, "unit": unit,
         "how": "fusebench's micro-kernels", "device": "cpu"}
        for threads in (1, 2)
        for what, value, unit in (
            ("peak float32", 50.0, "GFLOP/s"), ("peak bfloat16", 400.0, "GFLOP/s"),
            ("read 32 KiB", 150.0, "GB/s"), ("read 4 MiB", 30.0, "GB/s"),
            ("read 256 MiB", 10.0, "GB/s"),
        )
    ]  # fmt: skip
    return Results("machine", rows, ENVIRONMENT, {"device": "cpu"})


def check() -> Results:
    rows = [{"op": "sdpa", "impl": "cpp", "dtype": "float32", "cases": 70, "passed": 70,
             "worst": 0.31, "failure": None},
            {"op": "sdpa", "impl": "mine", "dtype": "float32", "cases": 70, "passed": 12,
             "worst": math.inf, "failure": HOSTILE}]  # fmt: skip
    settings = {"op": "sdpa", "impl": None, "device": None, "dtype": None, "skipped": []}
    return Results("check", rows, ENVIRONMENT, settings)


def everything() -> list[tuple[str, Results]]:
    """One file of each study that has a chart, some of them twice, and of two that have none."""
    found = {
        "compare.json": compare(bad=f"{HOSTILE}@default"), "compare-512.json": compare(512, 5.1),
        "ablate.json": ablate(), "factorial.json": ablate("factorial"), "explain.json": explain(),
        "shapes.json": shapes(), "op.json": op(), "machine.json": machine(),
        "compile-cost.json": compile_cost(), "check.json": check(),
    }  # fmt: skip
    return list(found.items())
