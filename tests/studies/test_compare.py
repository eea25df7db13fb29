"""`fusebench compare` from Python: rows, ratios, compile counts, and a model of its own each."""

import json

import pytest
import torch

import fusebench
from fusebench.bench import contestant
from fusebench.bench.workload import Workload
from fusebench.model import GPTConfig
from fusebench.ops import registry
from fusebench.studies import compare as study
from fusebench.variant import Mode

TINY = GPTConfig(vocab_size=64, n_embed=32, num_heads=2, num_layers=1, max_seq_len=32)
FIELDS = {
    "variant", "verified", "failure", "median_ms", "p95_ms", "tokens_per_s", "speedup_vs_eager",
    "speedup_vs_inductor", "first_call_s", "peak_bytes", "graphs", "graph_breaks", "recompiles",
    "error", "error_budget",
}  # fmt: skip


def tiny(*variants, **settings):
    return fusebench.compare(variants, config=TINY, model="tiny", seq=8, rounds=6, **settings)


def test_rows_of_an_eager_and_a_compiled_variant():
    results = tiny("reference@eager", "reference@default")
    eager, compiled = results.rows
    assert set(eager) >= FIELDS
    assert not results.failed
    assert eager["speedup_vs_eager"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert compiled["speedup_vs_inductor"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert compiled["best_inductor"] and not eager["best_inductor"]
    assert (eager["graphs"], compiled["graphs"]) == (0, 1)
    assert compiled["graph_breaks"] == compiled["recompiles"] == 0
    ratio = compiled["speedup_vs_eager"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert ratio["value"] == pytest.approx(eager["median_ms"] / compiled["median_ms"])
    for row in results.rows:
        assert row["verified"] and row["error"] <= row["error_budget"]
        assert len(row["samples_ms"]) == 6
        assert row["tokens_per_s"] == pytest.approx(8e3 / row["median_ms"])
    data = json.loads(results.to_json())
    assert data["schema"] == 1 and data["rows"] == results.rows
    assert data["environment"]["torch"] == torch.__version__
    assert max(map(len, results.table().splitlines())) <= 100


def test_nothing_to_compare_with_is_null():
    (row,) = tiny("reference@eager").rows
    assert row["speedup_vs_inductor"] is None and row["verdict"] is None


def test_bytes_of_a_text_are_the_tokens(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(bytes(range(20)) * 3)
    workload = Workload("tiny", 2, 8, text=file, custom=TINY)
    (tokens,) = workload.tokens(5)
    assert tokens.shape == (2, 8)
    assert all((row.diff() % 20 == 1).all() for row in tokens)
    assert torch.equal(tokens, workload.tokens(5)[0])
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="holds the byte 255, expected bytes below tiny's"):
        Workload("tiny", 2, 8, text=file, custom=TINY)
    file.write_bytes(b"abc")
    with pytest.raises(ValueError, match="holds 3 bytes, expected at least seq = 8"):
        Workload("tiny", 2, 8, text=file, custom=TINY)


def test_every_variant_has_the_same_weights_and_its_own_copy():
    workload = Workload("tiny", 1, 8, custom=TINY)
    models = [
        contestant.from_variant(study.parse([text])[0], TINY, workload.weights).module
        for text in ("reference@eager", "reference@eager")
    ]
    for name, weight in workload.weights.items():
        mine = [m.state_dict()[name] for m in models]
        assert torch.equal(mine[0], weight) and torch.equal(mine[1], weight)
        assert len({t.data_ptr() for t in (*mine, weight)}) == 3


def test_the_caller_s_random_numbers_and_settings_stay_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    frozen = torch._inductor.config.freezing
    tiny("reference@eager")
    assert torch.equal(torch.rand(3), expected)
    assert torch._inductor.config.freezing == frozen and torch.is_grad_enabled()


def test_variants_that_share_code_do_not_share_graphs():
    """More models than Dynamo's recompile limit: none recompiles, none falls back to eager."""
    torch._dynamo.config.recompile_limit, before = 2, torch._dynamo.config.recompile_limit
    try:
        for seed in range(4):
            workload = Workload("tiny", 1, 8, seed=seed, custom=TINY)
            model = contestant.model_of(
                study.parse(["reference@default"])[0], TINY, workload.weights
            )
            forward = torch.compile(contestant.own_code(model.forward), backend="eager")
            seen = contestant.Compilations()
            with seen.watch(), torch.no_grad():
                forward(*workload.tokens(1))
            assert (seen.graphs, seen.recompiles) == (1, 0)
    finally:
        torch._dynamo.config.recompile_limit = before


def test_graph_breaks_and_recompiles_are_counted():
    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    seen = contestant.Compilations()
    compiled = torch.compile(contestant.own_code(broken), backend="eager", dynamic=False)
    with seen.watch():
        compiled(torch.randn(3))
    assert (seen.graphs, seen.graph_breaks, seen.recompiles) == (2, 1, 0)
    assert len(seen.break_reasons) == 1
    smooth = torch.compile(contestant.own_code(lambda x: x + 1), backend="eager", dynamic=False)
    seen = contestant.Compilations()
    for size in (3, 4, 5):
        with seen.watch():
            smooth(torch.randn(size))
    assert (seen.graphs, seen.graph_breaks, seen.recompiles) == (3, 0, 2)


def test_freezing_makes_weights_constants():
    workload = Workload("tiny", 1, 8, custom=TINY)
    counts = {}
    for text in ("default", "default+freezing"):
        (variant,) = study.parse([f"reference@{text}"])
        c = contestant.from_variant(variant, TINY, workload.weights)
        torch._dynamo.utils.counters.clear()
        with c.compiling():
            c.call(*workload.tokens(1))
        counters = torch._dynamo.utils.counters["inductor"]
        counts[text] = counters["mkldnn_linear_weight_pack_matcher_count"]
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN, whose packed weights show that freezing happened")
    assert counts["default"] == 0 < counts["default+freezing"]


def test_modes():
    function, patches = contestant.compiled(torch.relu, Mode.parse("eager"))
    assert function is torch.relu and patches == {}
    with pytest.raises(ValueError, match="unknown mode"):
        Mode.parse("fast")


def test_what_is_never_timed_is_verified_only(monkeypatch):
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))

    @fusebench.implementation("sdpa", "checked_only", device="cpu")
    def checked_only(q, k, v, causal, scale):
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return y.transpose(1, 2).contiguous().transpose(1, 2)

    key = ("sdpa", "checked_only")
    fields = {**registry.IMPLEMENTATIONS[key].__dict__, "timed": False}
    registry.IMPLEMENTATIONS[key] = registry.Implementation(**fields)
    row, _ = tiny("sdpa=checked_only@eager", "reference@eager").rows
    assert row["verified"] and row["failure"] is None and row["median_ms"] is None
    assert "never timed" in row["warnings"][0]


def test_an_implementation_that_cannot_run_here_says_why(monkeypatch):
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))

    @fusebench.implementation("sdpa", "absent", device="cpu", unavailable=lambda: "no luck here")
    def absent(q, k, v, causal, scale):
        raise AssertionError("it was called")

    row, other = tiny("sdpa=absent@eager", "reference@eager").rows
    assert "sdpa (absent): no luck here" in row["failure"]
    assert other["verified"]


def test_suspect_is_no_claim():
    measurement = study.Measurement("x", flag="faster than the machine's limit: …")
    assert study.verdict(measurement, study.statistics.Interval(9.0, 8.0, 10.0)) == "suspect"
