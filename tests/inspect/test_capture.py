"""Capture, kernels and profile of a real compilation of a small GPT, and of a graph break."""

from __future__ import annotations

import pytest
import torch

from fusebench.bench.workload import Workload
from fusebench.inspect import capture, sites
from fusebench.inspect.variant import inspected
from fusebench.model import GPTConfig
from fusebench.studies.inspect import Inspection, section
from fusebench.variant import Variant

CONFIG = GPTConfig(vocab_size=64, n_embed=64, num_heads=2, num_layers=2, max_seq_len=64)


@pytest.fixture(scope="module")
def looked():
    workload = Workload("small", 1, 32, "float32", "cpu", custom=CONFIG)
    return inspected(Variant.parse("reference@default"), workload)


def test_one_graph_with_every_site(looked):
    (graph,) = looked.observation.graphs
    assert not looked.observation.breaks and not looked.observation.recompiles
    assert {site for site, _ in graph.ops} == {
        "embedding", "qkv_proj", "sdpa", "out_proj", "swiglu_ffn", "lm_head", sites.BETWEEN,
    }  # fmt: skip
    assert sum(op == "linear" for _, op in graph.ops) == 4 * CONFIG.num_layers + 1
    assert ("sdpa", "scaled_dot_product_attention") in graph.ops
    assert "gpt.py" in graph.where


def test_every_matrix_product_is_one_kernel_at_its_site(looked):
    products = [k for k in looked.observation.kernels if {"aten.addmm", "aten.mm"} & set(k.ops)]
    assert all(k.kind == "extern" for k in products)
    found = sorted(k.sites for k in products)
    expected = [("qkv_proj",), ("out_proj",), ("swiglu_ffn",), ("swiglu_ffn",)] * CONFIG.num_layers
    assert found == sorted([*expected, ("lm_head",)])


def test_bytes_are_those_of_the_tensors(looked):
    tokens, item = 32, 4
    head = next(
        k for k in looked.observation.kernels if k.sites == ("lm_head",) and "aten.mm" in k.ops
    )
    width, vocabulary = CONFIG.n_embed, CONFIG.vocab_size
    assert head.bytes_in == item * width * (tokens + vocabulary)
    assert head.bytes_out == item * tokens * vocabulary
    first = looked.observation.kernels[0]
    # 32 rows of the token table and of the positions, not the tables: the ids, norm's weights.
    rows = 2 * tokens * width * item
    assert rows <= first.bytes_in <= rows + 8 * tokens + 2 * width * item + 2 * tokens * item
    assert all(k.bytes_in and k.bytes_out for k in looked.observation.kernels)


def test_fusions_reach_over_op_boundaries(looked):
    norms = [k for k in looked.observation.kernels if "aten.native_layer_norm" in k.ops]
    assert all(k.kind == "generated" for k in norms)
    assert any({"out_proj", "swiglu_ffn"} <= set(k.sites) for k in norms)
    assert not any("aten.addmm" in k.ops for k in norms)


def test_the_profiler_saw_every_kernel(looked):
    assert looked.profile is not None
    assert all(row["microseconds"] for row in looked.rows)
    assert 0.9 < sum(row["share"] for row in looked.rows) < 1.001
    assert looked.profile.attention() == ("aten::_scaled_dot_product_flash_attention_for_cpu",)


def test_saved_code_is_the_code_that_ran(looked, tmp_path):
    code, dynamo, post_grad = looked.save(tmp_path)
    assert "async_compile.cpp" in code.read_text()
    assert "scaled_dot_product_attention" in dynamo.read_text()
    assert "torch.ops.aten.addmm" in post_grad.read_text()


def test_table_fits_and_names_everything(looked):
    results = Inspection("inspect", looked.rows, looked=[looked, looked])
    text = results.table(width=100)
    assert max(map(len, text.splitlines())) <= 100
    for word in ("1 graph,", "swiglu_ffn", "extern_kernels.addmm", "flash_attention_for_cpu"):
        assert word in text
    assert section(looked, 100) in text


def test_eager_captures_nothing_and_shows_operators():
    workload = Workload("small", 1, 8, "float32", "cpu", custom=CONFIG)
    eager = inspected(Variant.parse("reference@eager"), workload)
    assert not eager.observation.graphs
    assert any(row["kernel"] == "aten::linear" for row in eager.rows)
    assert "nothing is captured" in section(eager, 100)


def test_a_graph_break_is_told_with_its_line():
    @torch.compiler.disable
    def outside(x):
        return x + 1

    def broken(x):
        y = outside(x.sin())  # the line of the break
        return y.cos()

    with capture.observe(kernels=False) as seen:
        torch.compile(broken, backend="eager")(torch.ones(4))
    (found,) = seen.breaks
    line = broken.__code__.co_firstlineno + 1
    assert found.where == f"{__file__}:{line}"
    assert "torch.compiler.disable" in found.reason
    assert len(seen.graphs) == 2


def test_a_recompile_is_told_with_its_reason_and_frame():
    def doubled(x):
        return x * 2

    with capture.observe(kernels=False) as seen:
        compiled = torch.compile(doubled, backend="eager", dynamic=False)
        for length in (4, 6, 8):
            compiled(torch.ones(length))
    found, again = seen.recompiles
    assert "expected 6, actual 8" in again.reason  # with two to choose from, the newest
    assert "size mismatch" in found.reason and "expected 4, actual 6" in found.reason
    assert found.where.endswith("in doubled") and __file__ in found.where


def test_observing_leaves_no_trace_behind():
    import logging

    import torch._inductor.config as config

    log = logging.getLogger(capture.TRACE_LOG)
    before = (list(log.handlers), log.level, config.force_disable_caches)
    with pytest.raises(RuntimeError), capture.observe():
        assert config.force_disable_caches
        raise RuntimeError
    assert (list(log.handlers), log.level, config.force_disable_caches) == before
