"""The shipped configurations: no spills, tensor cores in every product, on three architectures."""

import itertools
import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

from fusebench.inspect.resources import (
    Resources,
    _problem,
    parse_sass,
    parse_usage,
    triton_resources,
    warps_that_fit,
)  # fmt: skip
from fusebench.ops import OPS
from fusebench.studies.resources import resources
from fusebench.triton_kernels import aot, configs, launch, linear

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function first_kernel:
  REG:96 STACK:16 SHARED:2048 LOCAL:0 CONSTANT[0]:604 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z6secondPf:
  REG:24 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SASS = """
		Function : first_kernel
	.headerflags	@"EF_CUDA_SM90"
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E R8, desc[UR4][R2.64] ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64] ;
        /*0040*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0050*/                   STL [R1], R4 ;
        /*0060*/                   UTMALDG.2D [UR8], [UR4] ;
		Function : _Z6secondPf
        /*0010*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0020*/                   UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4] ;
"""


def test_usage_is_read():
    usage = parse_usage(USAGE)
    assert list(usage) == ["first_kernel", "_Z6secondPf"]
    assert usage["first_kernel"]["REG"] == 96 and usage["first_kernel"]["STACK"] == 16


def test_instructions_are_counted_once():
    first, second = parse_sass(SASS).values()
    assert (first["loads"], first["loads_16"], first["async_copies"]) == (2, 1, 1)
    assert (first["HGMMA"], first["HMMA"], first["tma"], first["local_stores"]) == (1, 0, 1, 1)
    assert (second["stores_16"], second["UTCHMMA"], second["HMMA"]) == (1, 1, 0)


@pytest.mark.parametrize(
    "arch, registers, shared, warps, fit",
    [
        (80, 32, 0, 4, 64),
        (80, 64, 0, 8, 32),
        (80, 255, 0, 8, 8),
        (90, 128, 100 * 1024, 8, 16),
        (80, 128, 100 * 1024, 8, 8),
        (80, 32, 164 * 1024, 4, 0),
        (90, 255, 0, 16, 0),
    ],
)
def test_occupancy(arch, registers, shared, warps, fit):
    assert warps_that_fit(arch, registers, shared, warps) == fit


@pytest.mark.parametrize(
    "change, reason",
    [
        (dict(stack=16), "spills: 16 bytes"),
        (dict(shared=200 * 1024), "needs 204800 bytes of shared memory, sm_80 has 166912"),
        (dict(warps_per_sm=0), "no block fits"),
        (dict(sass={}), "no tensor cores"),
    ],
)
def test_problems_are_named(change, reason):
    sass = {"HMMA": 8, "local_loads": 0, "local_stores": 0}
    row = Resources("o", "triton", "k", 80, "", "", {}, True, 128, 0, 1024, 4, 16, dict(sass))
    assert _problem(row) is None
    for name, value in change.items():
        setattr(row, name, {"local_loads": 0, "local_stores": 0} if name == "sass" else value)
    assert reason in _problem(row)


def test_recording_runs_nothing_and_ends():
    x = torch.empty(64, 64, device="meta", dtype=torch.bfloat16)
    with launch.record(90) as launches:
        linear.linear(x, x, None, None, "layernorm", None, None, 1e-5)
    assert [each.kernel.__name__ for each in launches] == ["norm_rows_kernel", "linear_kernel"]
    assert launches[1].arguments["NORM"] == "given" and launches[1].options["num_warps"] > 0
    with pytest.raises(ValueError, match="they take CUDA tensors, or CPU tensors under"):
        launch.target(torch.zeros(1))


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("op", OPS)
def test_every_kernel_has_an_example(op, arch):
    """What an op's files define as kernels is what its examples launch."""
    import importlib

    launched = {spec.kernel for spec in aot.specs(op, arch)}
    modules = [importlib.import_module(f"fusebench.triton_kernels.{op}")]
    if op == "sdpa":
        modules.append(importlib.import_module("fusebench.triton_kernels.sdpa_backward"))
    defined = {
        name for module in modules for name, value in vars(module).items()
        if name.endswith("_kernel") and value.fn.__module__ == module.__name__
    }  # fmt: skip
    assert defined and defined <= launched


def test_examples_read_every_row():
    """Each row of each table is compiled."""
    for arch, dtype in itertools.product((80, 90, 100), (torch.bfloat16, torch.float32)):
        read = set()
        for op in OPS:
            with configs.consulted() as keys:
                aot.specs(op, arch, dtype)
            read |= keys
        shipped = {
            (path.stem, *key) for path in configs.FOLDER.glob("*.json")
            for key in configs.table(path.stem) if key[:2] == (arch, dtype.itemsize * 8)
        }  # fmt: skip
        assert read == shipped


EXPECTED = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}


def hold(op, arch, dtype, wanted):
    rows = [r for r in triton_resources(op, arch, dtype, only=wanted)]
    assert rows
    for row in rows:
        where = f"{row.kernel} for {row.size}, {row.configuration}"
        assert row.problem is None, f"{where}: {row.problem}"
        if row.matrix and row.dtype != "float32" and "decode" not in row.size:
            assert row.tensor_core.startswith(EXPECTED[arch]), f"{where}: {row.tensor_core}"


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize(
    "op, sizes",
    [
        ("qkv_proj", ("long layernorm",)),
        ("linear", ("long residual",)),
        ("swiglu_ffn", ("long training",)),
        ("sdpa", ("d64 causal", "d128 causal")),
        ("linear_cross_entropy", ("long",)),
    ],
)
def test_the_shipped_loops(op, sizes, arch):
    hold(op, arch, "bfloat16", sizes)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_shipped_configuration(dtype, op, arch):
    hold(op, arch, dtype, None)


def test_the_study(tmp_path):
    results = resources(["embedding"], ["sm_80"], ["triton"])
    assert {r["kernel"] for r in results.rows} == {"embedding_kernel", "token_backward_kernel"}
    assert not results.failed
    table = results.table()
    assert "token_back" in table and "16x256 4w" in table
    assert all(len(line) <= 100 for line in table.splitlines())
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "fusebench.cli", "resources", "embedding", "--quiet"]
    run = subprocess.run(
        [*command, "--arch", "sm_80", "--impl", "triton", "--json", str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [r["registers"] for r in rows] == [r["registers"] for r in results.rows]
    run = subprocess.run([*command, "--arch", "sm_99"], capture_output=True, text=True)
    assert run.returncode == 2 and "sm_99" in run.stderr and "sm_90" in run.stderr


@pytest.mark.parametrize(
    "arguments", [dict(ops=["lineer"]), dict(archs=["sm_75"]), dict(impls=["cpp"])]
)
def test_unknown_names(arguments):
    with pytest.raises(ValueError):
        resources(**arguments)
