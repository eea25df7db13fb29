"""`fusebench explain`: the account adds up, and names what the sites do not explain."""

import pytest

from fusebench.bench.measure import Measurement, Race
from fusebench.bench.workload import Workload
from fusebench.model import GPTConfig
from fusebench.ops import registry
from fusebench.studies import explain as study
from fusebench.studies.compare import parse

TINY = GPTConfig(vocab_size=64, n_embed=32, num_heads=2, num_layers=2, max_seq_len=32)
HAS_CPP = registry.get("sdpa", "cpp").unavailable()
needs_cpp = pytest.mark.skipif(HAS_CPP is not None, reason=f"no cpp: {HAS_CPP}")


def test_the_account_adds_up():
    whole = Race([Measurement(n, verified=True, samples=[ms / 1e3] * 9) for n, ms in
                  (("a", 10.0), ("b", 8.0))])  # fmt: skip
    sites = [
        {"calls": 4, "a_ms": 1.0, "b_ms": 0.25, "saves_ms": 3.0},
        {"calls": 1, "a_ms": 2.0, "b_ms": 2.5, "saves_ms": -0.5},
        {"calls": 4, "a_ms": None, "b_ms": None, "saves_ms": None},  # one that failed
    ]
    found = {row["item"]: row["ms"] for row in study.account(sites, whole, (0.0, 0.1))}
    assert found["saved at the sites"] == pytest.approx(2.5)
    assert found["B, predicted"] == pytest.approx(7.5)
    assert found["unaccounted"] == pytest.approx(0.5)
    assert found["between sites, A"] == pytest.approx(10 - 6)
    assert found["between sites, B"] == pytest.approx(8 - 3.5)
    what = {row["item"]: row["what"] for row in study.account(sites, whole, (0.0, 0.1))}
    assert what["between sites, B"].startswith("more than in A")  # 4.5 against 4
    # What is not accounted for is exactly what the time between the sites grew by.
    grew = found["between sites, B"] - found["between sites, A"]
    assert found["unaccounted"] == pytest.approx(grew)


def test_copies():
    assert study._is_copy("aten.clone.default") and study._is_copy("aten.copy_")
    assert not study._is_copy("aten.add.Tensor")


def test_dispatch_is_only_that_of_handwritten_ops():
    reference, *rest = parse(["reference@eager", "cpp@eager"])
    workload = Workload("tiny", 1, 8, custom=TINY)
    assert study.dispatch_ms(reference, workload, prepare=True) == 0
    if HAS_CPP is None:
        # 10 calls (2 layers of 4 sites, embedding, head), each some microseconds.
        assert 0 < study.dispatch_ms(rest[0], workload, prepare=True) < 50


@needs_cpp
def test_explain_end_to_end():
    results = study.explain(
        "reference@eager", "sdpa=cpp@eager", config=TINY, model="tiny", seq=8, rounds=5
    )
    assert not results.failed
    sites = {row["site"]: row for row in results.rows if "saves_ms" in row}
    assert list(sites) == list(study.sites.FORWARD)
    assert sites["sdpa"]["calls"] == 2 and sites["sdpa"]["alone"]["value"] > 0
    assert sites["lm_head"]["alone"] is None and sites["lm_head"]["saves_ms"] == 0
    sides = [row for row in results.rows if "side" in row]
    assert [row["handwritten"] for row in sides] == [0, 2]
    assert max(map(len, results.table().splitlines())) <= 100
