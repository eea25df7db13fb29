"""The GEMM core by itself: operand layouts, ragged tiles, descriptors, more tiles than programs."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from fusebench.triton_kernels import configs, launch
from fusebench.triton_kernels.gemm import tile_order
from fusebench.triton_kernels.linear import product
from fusebench.triton_kernels.norm import norm_backward, norm_rows


def stored(rows, columns, transposed, dtype, padding):
    """A [rows, columns] operand, and how it lies in memory: maybe transposed, rows padded."""
    shape = (columns, rows) if transposed else (rows, columns)
    memory = torch.randn(shape[0], shape[1] + padding).to(dtype)[:, : shape[1]]
    return (memory.t() if transposed else memory), memory


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("a_t", [False, True])
@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (33, 65, 31), (70, 96, 64), (17, 130, 100)])
def test_product(monkeypatch, m, n, k, a_t, b_t, tma):
    row = dict(block_m=32, block_n=32, block_k=32, group_m=2, warps=4, stages=2, tma=tma)
    monkeypatch.setattr(configs, "row", lambda *args: row)
    # The interpreter's descriptors, like TMA's, want rows of whole 16 bytes.
    padding = lambda columns: -columns % 4 + 4  # noqa: E731
    a, a_memory = stored(m, k, a_t, torch.float32, padding(m if a_t else k))
    b, b_memory = stored(n, k, b_t, torch.float32, padding(n if b_t else k))
    assert launch.describable(a_memory, b_memory)
    bias, residual, scale = torch.randn(n), torch.randn(m, n), torch.tensor([0.5])
    out = product(
        a_memory, b_memory, a_t=a_t, b_t=b_t, bias=bias, residual=residual, scale=scale
    )  # fmt: skip
    wanted = a.double() @ b.double().t() * 0.5 + bias + residual
    assert torch.allclose(out.double(), wanted, rtol=1e-5, atol=2e-5)


def test_product_may_add_to_its_own_output():
    a, b, total = torch.randn(40, 24), torch.randn(20, 24), torch.randn(40, 20)
    wanted = total + a @ b.t()
    assert product(a, b, out=total, residual=total) is total
    assert torch.allclose(total, wanted, rtol=1e-5, atol=1e-5)


@triton.jit
def order_kernel(out, tiles_m, tiles_n, GROUP: tl.constexpr):
    tile_m, tile_n = tile_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    tl.store(out + tl.program_id(0), tile_m * tiles_n + tile_n)


@pytest.mark.parametrize("tiles_m, tiles_n, group", [(1, 1, 8), (7, 3, 4), (8, 5, 8), (9, 2, 4)])
def test_tile_order_visits_every_tile_once(tiles_m, tiles_n, group):
    out = torch.full((tiles_m * tiles_n,), -1, dtype=torch.int32)
    order_kernel[(tiles_m * tiles_n,)](out, tiles_m, tiles_n, group)
    assert sorted(out.tolist()) == list(range(tiles_m * tiles_n))
    # The first column of the first group comes first.
    assert out[: min(group, tiles_m)].tolist() == [m * tiles_n for m in range(min(group, tiles_m))]


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("rows, width", [(1, 5), (9, 72), (3, 4100)])
def test_norm_rows_and_their_backward(norm, rows, width):
    x = (torch.randn(rows, width) + 3).requires_grad_()
    weight = torch.randn(width, requires_grad=True)
    bias = torch.randn(width, requires_grad=True) if norm == "layernorm" else None
    if norm == "layernorm":
        wanted = torch.nn.functional.layer_norm(x, (width,), weight, bias, 1e-5)
    else:
        wanted = torch.nn.functional.rms_norm(x, (width,), weight, 1e-5)
    n, mean, rstd = norm_rows(x.detach(), norm, weight, bias, 1e-5, normalized=True)
    assert torch.allclose(n, wanted, rtol=1e-5, atol=1e-5)
    dn = torch.randn(rows, width)
    inputs = [p for p in (x, weight, bias) if p is not None]
    theirs = torch.autograd.grad(wanted, inputs, dn)
    ours = norm_backward(dn, x.detach(), weight, bias, mean, rstd)
    for mine, other in zip((g for g in ours if g is not None), theirs):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_tables_have_a_row_for_every_key(tmp_path):
    for path in sorted(configs.FOLDER.glob("*.json")):
        keys = set(configs.table(path.stem))
        sizes = {size for _, _, size in keys}
        wanted = set(itertools.product((0, 80, 90, 100), (16, 32), sizes))
        # Wide heads are refused in float32.
        assert keys == {k for k in wanted if k[1:] != (32, "d256")}, path.stem


def test_a_written_table_reads_back(tmp_path):
    rows = [{**dict(zip(configs.KEYS, key)), **row} for key, row in configs.table("linear").items()]
    path = configs.write_table("linear", rows, tmp_path)
    assert path.read_text() == (configs.FOLDER / "linear.json").read_text()


@pytest.mark.parametrize(
    "arch, row", [(0, 0), (80, 80), (86, 80), (89, 80), (90, 90), (100, 100), (103, 100), (120, 80)]
)
def test_architectures_have_rows(arch, row):
    assert configs.architecture(arch) == row


def test_an_old_gpu_is_refused():
    with pytest.raises(ValueError, match=r"compute capability 7\.5; they take 8\.0 and later"):
        configs.architecture(75)


def test_what_tma_cannot_describe():
    x = torch.zeros(8, 64, dtype=torch.bfloat16)
    assert launch.describable(x, None)
    assert not launch.describable(x[:, 1:])  # starts between 16-byte lines
    assert not launch.describable(x.t())  # last stride is not 1
    assert not launch.describable(torch.zeros(8, 60, dtype=torch.bfloat16))  # rows of 120 bytes
