"""What nvcc made of the kernels, where this build has them: no GPU is needed to look."""

from __future__ import annotations

import pytest

from fusebench.bench.environment import build_info
from fusebench.studies.resources import resources

pytestmark = pytest.mark.slow
facts = build_info()
if facts is None or not facts["cuda"]:
    pytest.skip("this build has no CUDA kernels", allow_module_level=True)
pytest.importorskip("triton", reason="its package carries cuobjdump")


@pytest.fixture(scope="module")
def rows():
    return resources(archs=["sm_80", "sm_90"], impls=["cuda"]).rows


def test_nothing_spills(rows):
    assert rows
    assert [(r["op"], r["kernel"], r["failure"]) for r in rows if r["failure"]] == []


@pytest.mark.parametrize("kernel", ["gemm_sm90_kernel", "sdpa_sm90_kernel"])
def test_hopper_loops_use_hoppers_instructions(rows, kernel):
    found = [r for r in rows if r["kernel"] == kernel and r["arch"] == "sm_90"]
    if not found:
        pytest.skip("this build has no code for sm_90a")
    for row in found:
        counts = row["sass"]
        assert counts["HGMMA"] and counts["tma_stores"] and counts["tma"] > counts["tma_stores"]
        assert not counts["stores_16"], "results leave through the TMA unit alone"


@pytest.mark.parametrize("kernel", ["gemm_sm80_kernel", "sdpa_kernel", "sdpa_backward_kernel"])
def test_ampere_loops_copy_asynchronously_into_tensor_cores(rows, kernel):
    found = [r for r in rows if r["kernel"] == kernel]
    assert found and all(r["sass"]["HMMA"] and r["sass"]["async_copies"] for r in found)


def test_the_gemm_for_few_rows_loads_16_bytes(rows):
    found = [r["sass"] for r in rows if r["kernel"] == "gemm_few_rows_kernel"]
    assert found
    # Two chunks of W and at least one of x in each of two steps; single values are for the ragged.
    assert all(counts["HMMA"] and counts["loads_16"] >= 6 for counts in found)
