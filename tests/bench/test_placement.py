"""Weights that move between rounds: other memory, the same values, and code that finds them."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest
import torch

from fusebench.bench import placement, statistics
from fusebench.bench.contestant import from_variant
from fusebench.bench.measure import Measurement, compared, measure
from fusebench.bench.placement import Placement
from fusebench.bench.workload import Workload
from fusebench.model import GPTConfig
from fusebench.ops import registry
from fusebench.studies.compare import model_task
from fusebench.variant import Variant

CONFIG = GPTConfig(vocab_size=64, n_embed=64, num_heads=2, num_layers=1, max_seq_len=16)


def contestant(text="reference@eager"):
    workload = Workload("tiny", 1, 8, custom=CONFIG)
    return from_variant(Variant.parse(text), CONFIG, workload.weights), workload


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_moved_weights_hold_what_they_held(dtype):
    weights = [torch.arange(n).to(dtype).reshape(-1, 2) for n in (2, 5000, 66)]
    before = [w.clone() for w in weights]
    places = Placement(weights)
    seen = {w.data_ptr() for w in weights}
    for _ in range(5):
        assert places.move()
        assert all(torch.equal(w, b) and w.dtype == dtype for w, b in zip(weights, before))
        assert all(w.data_ptr() % placement.LINE == 0 for w in weights)
        assert not seen & {w.data_ptr() for w in weights}
        seen = {w.data_ptr() for w in weights}


def test_an_address_that_was_kept_stays_good():
    weight = torch.arange(6.0)
    kept = (ctypes.c_float * 6).from_address(weight.data_ptr())
    places = Placement([weight])
    for _ in range(5):
        places.move()
        torch.ones(6).add_(1)  # would take the memory, were it free
    assert list(kept) == weight.tolist()


def test_what_is_not_moved(monkeypatch):
    strided, empty = torch.ones(4, 4).t()[1:], torch.ones(0)
    assert not Placement([strided, empty]).move()
    monkeypatch.setattr(placement, "LIMIT", 15)
    assert not Placement([torch.ones(4)]).move()


def test_a_weight_with_two_names_is_moved_once():
    weight = torch.nn.Parameter(torch.ones(8))
    places = Placement([weight, weight])
    assert len(places.weights) == 1 and places.move() and weight.requires_grad


@pytest.mark.parametrize("text", ["reference@eager", "reference@default", "cpp@default"])
def test_compiled_code_finds_weights_that_moved(text):
    if text.startswith("cpp") and (reason := registry.get("sdpa", "cpp").unavailable()):
        pytest.skip(f"no cpp: {reason}")
    c, workload = contestant(text)
    tokens = workload.tokens(1)
    with c.compiling():
        first = c.call(*tokens).clone()
    for _ in range(3):
        with c.compilations.watch(), torch.no_grad():
            assert c.move()
            assert torch.equal(c.call(*tokens), first)
    assert c.compilations.graphs == (c.name != "reference@eager")
    with torch.no_grad():
        c.module.lm_head.weight.mul_(2)  # where the weights are now is what is looked at
    assert not torch.equal(c.weights["lm_head.weight"], c.pristine["lm_head.weight"])


def test_frozen_weights_stay_and_verdicts_on_them_need_more():
    c, _ = contestant("reference@default+freezing")
    assert not c.move() and c.still
    samples = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0]
    moved = Measurement("moved", samples=[s / 1.03 for s in samples])
    still = Measurement("still", samples=samples, contestant=c)
    assert compared(moved, still).verdict() == "no difference"
    assert compared(moved, Measurement("loose", samples=samples)).verdict() == "faster"
    assert compared(Measurement("fast", samples=[s / 2 for s in samples]), still).low > 1.9
    assert statistics.STILL_MARGIN > statistics.MARGIN


def test_a_race_moves_weights_in_every_round():
    c, workload = contestant()
    (found,) = measure(model_task(workload), [(c.name, lambda: c)], rounds=7).measurements
    assert found.failure is None and found.placements == 7 and not found.still


def test_the_tool_that_counts_false_verdicts():
    path = Path(__file__).parents[2] / "tools" / "false_verdicts.py"
    spec = importlib.util.spec_from_file_location("false_verdicts", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    workload = Workload("tiny", 1, 8, custom=CONFIG, device_name="cpu")
    found = tool.race(Variant.parse("reference@eager"), workload, builds=3, rounds=6)
    assert [m.placements for m in found.timed] == [6, 6, 6, 0, 0, 0]
    for (kind, wrong, pairs, spread), expected in zip(tool.count(found), tool.KINDS):
        assert kind == expected and 0 <= wrong <= pairs == 3 and spread >= 1
