"""Reading generated code: calls, the scheduled nodes behind them, frozen weights, ops."""

from __future__ import annotations

from pathlib import Path

from fusebench.inspect import sites
from fusebench.inspect.generated import Access, Kernel, Node, explained, kernels
from fusebench.inspect.profile import Event, Profile, event_names
from fusebench.inspect.variant import kernel_rows

CODE = """
_frozen_param0 = None  # device(type='cpu') torch.float32 (8, 4) (4, 1) 7f00
_frozen_param1 = None  # device(type='cpu') torch.float32 (999, 1) (1, 0) 7f01
def call(args):
    # [Provenance debug handles] cpp_fused_add_0:1
    cpp_fused_add_0(arg0_1, buf1)
    # [Provenance debug handles] torch.ops.mkl._mkl_linear.default:2
    buf2 = torch.ops.mkl._mkl_linear.default(buf1, _frozen_param1, _frozen_param0, None, 4)
    # a comment that names cpp_fused_mul_1(buf9) is no call
    # [Provenance debug handles] cpp_fused_mul_1:3
    stream0 = get_raw_stream(0)
    cpp_fused_mul_1(buf2, buf5)
"""


def accesses():
    return [
        Access(frozenset({"buf1"}), {"arg0_1": 64}, {"buf1": 64}),
        Access(frozenset({"buf2"}), {"buf1": 64}, {"buf2": 128}),
        Access(frozenset({"buf3"}), {}, {}),  # a part of buf2
        Access(frozenset({"buf4"}), {"buf2": 128}, {"buf4": 128}),  # lives on as buf5
        Access(frozenset({"buf5"}), {"buf4": 128, "buf2": 128}, {"buf5": 128}),
    ]


def test_calls_and_their_bytes():
    add, linear, mul = kernels(CODE, "0/0", {}, accesses())
    assert (add.name, add.kind, add.bytes_in, add.bytes_out) == (
        "cpp_fused_add_0",
        "generated",
        64,
        64,
    )
    # The frozen weight counts once, its packed copy not at all.
    assert (linear.kind, linear.bytes_in, linear.bytes_out) == ("extern", 64 + 8 * 4 * 4, 128)
    # buf4 is made and read inside the kernel: written, but not read from outside.
    assert (mul.bytes_in, mul.bytes_out) == (128, 256)


def test_a_call_nobody_scheduled_has_no_bytes():
    assert kernels(CODE, "0/0", {}, [])[0].bytes_in is None


def test_extern_work_is_not_the_generated_kernels():
    """norm -> mm (extern) -> silu: the map lists all of them as the origin of the silu kernel."""
    nodes = {
        "norm": Node("aten.mul", "aten.native_layer_norm", "swiglu_ffn"),
        "mm": Node("aten.mm", "aten.mm", "swiglu_ffn", ("norm",)),
        "view": Node("aten.reshape", "aten.view", "swiglu_ffn", ("mm",)),
        "silu": Node("aten.mul", "aten.silu", "swiglu_ffn", ("view",)),
    }
    found = [
        Kernel("0/0", "cpp_fused_norm_0", 1, "generated"),
        Kernel("0/0", "extern_kernels.mm", 2, "extern"),
        Kernel("0/0", "cpp_fused_silu_1", 3, "generated"),
    ]
    mapping = {
        "cpp_fused_norm_0:1": ["norm"],
        "extern_kernels.mm:2": ["mm", "norm"],
        "cpp_fused_silu_1:3": ["silu", "view", "mm", "norm"],
    }
    assert [k.ops for k in explained(found, mapping, nodes)] == [
        ("aten.native_layer_norm",), ("aten.mm",), ("aten.silu",),
    ]  # fmt: skip


def test_work_that_is_done_again_stays():
    """x = emb; y = mm(norm(x)); the last kernel computes x again and adds: emb is its work."""
    nodes = {
        "emb": Node("aten.embedding", "aten.embedding", "embedding"),
        "norm": Node("aten.mul", "aten.native_layer_norm", "qkv_proj", ("emb",)),
        "mm": Node("aten.mm", "aten.mm", "qkv_proj", ("norm",)),
        "add": Node("aten.add", "aten.add", "out_proj", ("mm", "emb")),
    }
    found = [
        Kernel("0/0", "extern_kernels.mm", 1, "extern"),
        Kernel("0/0", "triton_poi_fused_add_0", 2, "generated"),
    ]
    mapping = {
        "extern_kernels.mm:1": ["mm"],
        "triton_poi_fused_add_0:2": ["add", "mm", "norm", "emb"],
    }
    _, add = explained(found, mapping, nodes)
    assert add.ops == ("aten.embedding", "aten.add") and add.sites == ("embedding", "out_proj")


def test_profiler_names():
    assert event_names("extern_kernels.addmm")[0] == "aten::addmm"
    assert event_names("torch.ops.fusebench.swiglu_ffn_cpp.default") == (
        "fusebench::swiglu_ffn_cpp",
    )
    assert event_names("torch.ops.mkl._mkl_linear.default") == ("mkl::_mkl_linear",)


def test_times_follow_the_order_of_execution():
    def call(name):
        return Kernel("0/0", name, 0, "extern")

    seen = Profile((
        Event("graph_0_cpp_fused_a_0", 5.0), Event("aten::mm", 7.0), Event("aten::empty", 1.0),
        Event("aten::mm", 9.0),
    ))  # fmt: skip
    order = [call(n) for n in ("cpp_fused_a_0", "extern_kernels.mm", "gone", "extern_kernels.mm")]
    assert seen.of_kernels(order) == [5.0, 7.0, None, 9.0]
    rows = kernel_rows(order, seen.of_kernels(order))
    assert [(r["kernel"], r["calls"], r["microseconds"]) for r in rows] == [
        ("cpp_fused_a_0", 1, 5.0), ("extern_kernels.mm", 2, 16.0), ("gone", 1, None),
    ]  # fmt: skip


def test_sites_of_stacks():
    from fusebench.model import gpt
    from fusebench.ops import registry

    linear = Path(registry.__file__).with_name("linear.py")

    def frame(path, function):
        return f'  File "{path}", line 1, in {function}\n    code\n'

    in_linear = frame(linear, "linear") + frame(linear, "reference")
    assert (
        sites.of(frame(gpt.__file__, "forward") + frame(gpt.__file__, "head") + in_linear)
        == "lm_head"
    )
    assert sites.of(frame(gpt.__file__, "project_out") + in_linear) == "out_proj"
    assert sites.of(in_linear) == "out_proj"
    assert sites.of(frame(gpt.__file__, "attention")) == sites.BETWEEN
    assert sites.ordered([sites.BETWEEN, "lm_head", "embedding", "lm_head"]) == (
        "embedding", "lm_head", sites.BETWEEN,
    )  # fmt: skip
