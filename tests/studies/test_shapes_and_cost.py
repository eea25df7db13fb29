"""shapes and compile-cost: their arithmetic, their refusals, and one small run of each."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from fusebench.bench.measure import Measurement, Race
from fusebench.model import GPTConfig
from fusebench.studies import shapes as study
from fusebench.studies.arguments import Numbers
from fusebench.studies.compile_cost import compile_cost, parts
from fusebench.variant import Variant

CONFIG = GPTConfig(vocab_size=64, n_embed=32, num_heads=1, num_layers=1, max_seq_len=64)
A, B = Variant.parse("reference@default"), Variant.parse("reference@max-autotune")


def race(a_ms, b_ms):
    spread = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0]
    return Race([
        Measurement(study.Entrant(v, "static").name, True, samples=[ms * s / 1e3 for s in spread])
        for v, ms in ((A, a_ms), (B, b_ms))
    ])  # fmt: skip


def test_crossovers():
    races = {64: race(1, 2), 128: race(2, 2), 256: race(4, 3), 512: race(9, 6)}
    assert study.crossovers(["static"], [A, B], races) == [
        f"crossover (static): {A} wins up to 64 tokens, {B} from 256 on"
    ]
    same = {64: race(2, 2), 128: race(4, 3)}
    assert study.crossovers(["static"], [A, B], same) == [
        f"no crossover (static): {B} beats {A} where they differ"
    ]
    assert study.crossovers(["static"], [A, B], {64: race(2, 2)}) == []


def test_crossovers_of_every_pair_and_policy():
    third = Variant.parse("reference@reduce-overhead")
    spread = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0]
    milliseconds = {A: (1, 4), B: (2, 3), third: (9, 9)}
    races = {
        length: Race([
            Measurement(study.Entrant(v, policy).name, True, samples=[ms[i] * s for s in spread])
            for v, ms in milliseconds.items() for policy in ("static", "mark")
        ])
        for i, length in enumerate((64, 128))
    }  # fmt: skip
    assert study.crossovers(["static", "mark"], list(milliseconds), races) == [
        f"crossover (static, mark): {A} wins up to 64 tokens, {B} from 128 on",
        f"no crossover (static, mark): {A} beats {third} where they differ",
        f"no crossover (static, mark): {B} beats {third} where they differ",
    ]


def test_buckets():
    assert [study.bucket(n, 1024) for n in (1, 16, 17, 64, 65, 1000)] == [16, 16, 32, 64, 128, 1024]
    assert study.bucket(700, 768) == 768


def test_parts_of_a_compilation():
    seconds = parts([{
        "entire_frame_compile_time_s": 10.0, "backend_compile_time_s": 8.0,
        "inductor_compile_time_s": 5.0, "code_gen_time_s": 4.0,
    }, {"entire_frame_compile_time_s": 1.0, "backend_compile_time_s": None}])  # fmt: skip
    assert seconds == {"dynamo_s": 3.0, "aot_s": 3.0, "inductor_s": 1.0, "code_s": 4.0}


def test_numbers():
    assert Numbers().convert("64, 128", None, None) == (64, 128)
    for bad in ("64,x", "0", "", "64,,2", "-1"):
        with pytest.raises(ValueError, match="expected whole numbers like 64,128"):
            Numbers().convert(bad, None, None)


def test_refusals():
    with pytest.raises(ValueError, match="unknown policy 'statik'; did you mean 'static'"):
        study.shapes(policies=("statik",))
    with pytest.raises(ValueError, match=r"lengths are \[8, 8\], expected different lengths"):
        study.shapes(lengths=(8, 8))
    with pytest.raises(ValueError, match="expected a compiled mode without"):
        study.shapes(["reference@default+dynamic"], lengths=(8,), config=CONFIG)
    with pytest.raises(ValueError, match="compiles nothing, expected a compiled mode"):
        compile_cost(["reference@eager"])


def test_shapes_end_to_end(monkeypatch):
    """With Dynamo alone, which is what recompiles; Inductor would only take longer."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    found = study.shapes(
        [A], lengths=(16, 24, 32), policies=("automatic", "buckets", "mark"), config=CONFIG,
        rounds=3, device="cpu",
    )  # fmt: skip
    rows = {(r["policy"], r["seq"]): r for r in found.rows}
    assert not any(r["failure"] for r in found.rows) and all(r["median_ms"] for r in found.rows)
    # Static, then one recompile that makes the length a symbol, then none.
    assert [rows["automatic", n]["recompiles"] for n in (16, 24, 32)] == [0, 1, 0]
    assert "expected 16, actual 24" in rows["automatic", 24]["recompile_reasons"][0]
    # 24 is padded to 32, which is there when 32 comes.
    assert [rows["buckets", n]["new_graphs"] for n in (16, 24, 32)] == [1, 1, 0]
    assert [rows["mark", n]["new_graphs"] for n in (16, 24, 32)] == [1, 0, 0]
    # What the race adds is nothing: a mark on a tensor that all share would recompile the others.
    assert {(r["policy"], r["graphs"]) for r in found.rows} == {
        ("automatic", 2), ("buckets", 2), ("mark", 1)
    }  # fmt: skip
    assert any("16, 24, 32 tokens" in line for line in found.notes)


def test_the_caches_of_a_first_call_are_temporary(monkeypatch):
    """The child gets an empty folder for every cache, cold, and the same one, filled, warm."""
    seen, original = [], subprocess.run

    def run(command, **options):
        if "fusebench.studies.compile_cost" not in command:
            return original(command, **options)
        env = options["env"]
        request, answer = json.loads(command[3]), Path(command[4])
        inductor = Path(env["TORCHINDUCTOR_CACHE_DIR"])
        seen.append((inductor, inductor.exists()))
        assert request["variant"] == str(A) and GPTConfig(**request["model"]) == CONFIG
        inductor.mkdir(exist_ok=True)
        (inductor / "kernel").write_bytes(b"x" * 100)
        answer.write_text(json.dumps({"first_call_s": 1.0, "hits": 0}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    found = compile_cost([A], config=CONFIG, seq=16, device="cpu")
    assert [exists for _, exists in seen] == [False, True]
    assert seen[0][0] == seen[1][0] and not seen[0][0].exists()
    assert [row["cache_bytes"] for row in found.rows] == [100, 100]


def test_a_first_call_that_fails_is_a_failed_row(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no compiler")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    (row,) = compile_cost([A], config=CONFIG, seq=16, device="cpu").rows
    assert row["cache"] == "cold" and row["failure"] == "RuntimeError: no compiler"


@pytest.mark.slow
def test_compile_cost_end_to_end():
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    found = compile_cost([A], config=CONFIG, seq=16, device="cpu")
    cold, warm = found.rows
    assert (cold["cache"], warm["cache"]) == ("cold", "warm")
    assert cold["failure"] is None and warm["failure"] is None
    assert cold["hits"] == 0 and warm["hits"] == 1
    assert warm["code_s"] < cold["code_s"] < cold["first_call_s"]
    assert cold["cache_bytes"] > 0 and cold["graphs"] == 1
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
