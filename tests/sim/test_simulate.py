"""fusebench simulate: counts that can be worked out by hand, verdicts, bad input."""

import pytest

from fusebench.ops import registry

pytest.importorskip("fusebench._sim", reason="the simulator was not built")
from fusebench.studies import simulate as study


@pytest.mark.parametrize("arch", study.ARCHITECTURES)
def test_out_proj_counts(arch: str) -> None:
    results = study.simulate("out_proj", arch=arch, seeds=2, seq=64)
    assert not results.failed
    kernel, least = results.rows
    assert kernel["kernel"] == "linear" and least["kernel"] == study.LEAST
    assert (kernel["site"], kernel["shape"]) == ("out_proj", "B1 T64 C256")
    # 64 rows of x and of the residual, 256 x 256 weights, a bias; 2 bytes each, read at least once.
    assert least["bytes_read"] + least["bytes_written"] == (3 * 64 * 256 + 256 * 256) * 2
    assert least["bytes_written"] == 64 * 256 * 2 == kernel["bytes_written"]
    assert kernel["bytes_read"] >= least["bytes_read"]
    assert least["tensor_flops"] == 2 * 64 * 256 * 256 <= kernel["tensor_flops"]
    assert kernel["shared_conflicts"] == 0
    assert bool(kernel["wgmma"]) == (arch == "sm_90a")
    assert 0 < kernel["error"] <= kernel["error_budget"]


def test_shapes_of_an_op() -> None:
    results = study.simulate("linear", shape=["T=3,C=64,V=70", "B=1,T=20,C=64,V=70"], seeds=1)
    assert not results.failed
    seen = list(dict.fromkeys((r["site"], r["shape"]) for r in results.rows))
    first = ("out_proj", "B1 T3 C64"), ("lm_head", "B1 T3 C64 V70"), ("out_proj", "B1 T20 C64")
    assert tuple(seen[:3]) == first
    least = [r for r in results.rows if r["kernel"] == study.LEAST]
    assert [r["tensor_flops"] for r in least[:2]] == [2 * 3 * 64 * 64, 2 * 3 * 64 * 70]
    # A decode step: one query, and all the keys before it.
    (kernel, least) = study.simulate("sdpa", shape=["T=1,Tk=70,C=64,H=1"], seeds=1).rows
    assert least["bytes_read"] == (1 + 2 * 70) * 64 * 2 <= kernel["bytes_read"]


def test_a_fault_is_the_failure_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.IMPLEMENTATIONS["linear", "cuda"]

    def broken(*args):
        raise RuntimeError("race: as planted")

    broken_one = study.replace(real, call=broken)
    monkeypatch.setitem(registry.IMPLEMENTATIONS, ("linear", "cuda"), broken_one)
    results = study.simulate("out_proj", seeds=1)
    assert results.failed and "race: as planted" in results.rows[0]["failure"]
    assert "FAILED" in results.table()
    assert registry.IMPLEMENTATIONS["linear", "cuda"] is broken_one


def test_settings_are_restored() -> None:
    from fusebench import _sim

    before = _sim.settings(), dict(registry.IMPLEMENTATIONS)
    study.simulate("embedding", arch="sm_90a", seeds=1)
    assert (_sim.settings(), registry.IMPLEMENTATIONS) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "out_prj"}, "unknown op or site 'out_prj'; did you mean 'out_proj'"),
        ({"name": "loss"}, "an op that has CUDA kernels"),
        ({"name": "sdpa", "arch": "sm_70"}, "unknown arch 'sm_70'"),
        ({"name": "sdpa", "dtype": "float32"}, "unknown dtype 'float32'"),
        ({"name": "sdpa", "seeds": 0}, "seeds is 0, expected at least 1"),
        ({"name": "sdpa", "shape": ["T=x"]}, "T is 'x'"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        study.simulate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "sm_70"}, "arch: got 'sm_70', accepted: sm_80, sm_90a"),
        ({"timing": "soon"}, "timing: got 'soon', accepted: early, late, random"),
        ({"multiprocessors": 0}, "multiprocessors: got 0, accepted: 1 or more"),
        ({"resident": 65}, "resident: got 65, accepted: 1 to 64"),
    ],
)
def test_bad_settings(arguments: dict, message: str) -> None:
    from fusebench import _sim

    before = _sim.settings()
    with pytest.raises(ValueError, match=message):
        _sim.configure(**arguments)
    assert _sim.settings() == before
