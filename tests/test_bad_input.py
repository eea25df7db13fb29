"""Every wrong argument gets one clear error: its name, what it got, what is accepted."""

import pytest
import torch

from fusebench import GPT, GPTConfig, implementation, ops, prepare

x = torch.randn(2, 3, 8)
w = torch.randn(12, 8)
down = torch.randn(8, 6)
q = torch.randn(2, 4, 5, 16)
kv = torch.randn(2, 2, 5, 16)
table = torch.ones(3, 1)
ids = torch.zeros(2, 3, dtype=torch.int64)
vocabulary = torch.randn(10, 8)

CALLS = {
    "linear: weight": (lambda: ops.linear(x, w.t()), ["has shape [8, 12]", "[N, 8]"]),
    "linear: weight rank": (lambda: ops.linear(x, w[0]), ["weight has shape [8]"]),
    "linear: bias": (lambda: ops.linear(x, w, torch.ones(3)), ["bias has shape [3]", "[12]"]),
    "linear: residual": (lambda: ops.linear(x, w, None, x), ["residual has shape", "[2, 3, 12]"]),
    "linear: dtype": (lambda: ops.linear(x, w.double()), ["weight has dtype torch.float64"]),
    "linear: integer": (lambda: ops.linear(ids, w), ["x has dtype torch.int64", "floating-point"]),
    "linear: not a tensor": (lambda: ops.linear([1.0], w), ["x has dtype list", "floating-point"]),
    "linear: device": (lambda: ops.linear(x, w.to("meta")), ["weight is on meta", "cpu like x"]),
    "linear: eps": (
        lambda: ops.linear(x, w, norm="rmsnorm", eps=-1e-5), ["eps is -1e-05", "at least 0"]),
    "ffn: eps": (
        lambda: ops.swiglu_ffn(x, w, down, norm="rmsnorm", eps=float("nan")), ["eps is nan"]),
    "qkv: eps": (
        lambda: ops.qkv_proj(x, w, num_heads=2, norm="rmsnorm", eps=float("inf")), ["eps is inf"]),
    "config: eps": (lambda: GPTConfig(10, 8, 2, 1, norm_eps=-1.0), ["norm_eps is -1.0"]),
    "linear: norm": (lambda: ops.linear(x, w, norm="batchnorm"), ["batchnorm", "rmsnorm"]),
    "linear: norm_bias": (
        lambda: ops.linear(x, w, norm="rmsnorm", norm_bias=torch.ones(8)), ["norm_bias was given"]),
    "linear: norm_weight": (
        lambda: ops.linear(x, w, norm_weight=torch.ones(8)), ["norm_weight was given without"]),
    "linear: impl": (lambda: ops.linear(x, w, impl="cpq"), ["'cpq'", "did you mean 'cpp'"]),
    "qkv: rank": (lambda: ops.qkv_proj(x[0], w, num_heads=1), ["x has shape [3, 8]", "[B, T, C]"]),
    "qkv: heads": (lambda: ops.qkv_proj(x, w, num_heads=0), ["num_heads is 0"]),
    "qkv: kv heads": (
        lambda: ops.qkv_proj(x, w, num_heads=3, num_kv_heads=2), ["num_kv_heads is 2", "divisor"]),
    "qkv: rows": (lambda: ops.qkv_proj(x, w[:11], num_heads=2), ["11 rows", "multiple of"]),
    "qkv: cos alone": (lambda: ops.qkv_proj(x, w, num_heads=2, cos=table), ["cos and sin"]),
    "qkv: odd head": (
        lambda: ops.qkv_proj(x, torch.randn(9, 8), num_heads=1, cos=table, sin=table),
        ["head_dim is 3", "even"]),
    "qkv: table dtype": (
        lambda: ops.qkv_proj(x, w, num_heads=2, cos=table.double(), sin=table),
        ["cos has dtype torch.float64"]),
    "qkv: table size": (
        lambda: ops.qkv_proj(x, w, num_heads=2, cos=table[:2], sin=table), ["cos has shape"]),
    "sdpa: rank": (lambda: ops.sdpa(q[0], kv, kv), ["q has shape [4, 5, 16]"]),
    "sdpa: no head_dim": (lambda: ops.sdpa(q[..., :0], kv[..., :0], kv[..., :0]), ["head_dim 0"]),
    "sdpa: scale": (lambda: ops.sdpa(q, kv, kv, scale=0.0), ["scale is 0.0", "above 0"]),
    "sdpa: groups": (lambda: ops.sdpa(q[:, :3], kv, kv), ["k has 2 heads", "q's 3 heads"]),
    "sdpa: v": (lambda: ops.sdpa(q, kv, kv[:, :, :4]), ["v has shape [2, 2, 4, 16]"]),
    "sdpa: head_dim": (lambda: ops.sdpa(q, kv[..., :8], kv[..., :8]), ["k has shape"]),
    "sdpa: longer q": (
        lambda: ops.sdpa(q, kv[:, :, :3], kv[:, :, :3]), ["q has 5 positions", "at most k's 3"]),
    "ffn: odd": (lambda: ops.swiglu_ffn(x, w[:11], down), ["w_gate_up has 11 rows", "[gate; up]"]),
    "ffn: down": (lambda: ops.swiglu_ffn(x, w, down.t()), ["w_down has shape [6, 8]", "[8, 6]"]),
    "embedding: high": (
        lambda: ops.embedding(ids + 10, vocabulary), ["holds the id 10", "[0, 10)"]),
    "embedding: negative": (lambda: ops.embedding(ids - 1, vocabulary), ["holds the id -1"]),
    "embedding: dtype": (lambda: ops.embedding(ids.int(), vocabulary), ["torch.int32"]),
    "embedding: start": (lambda: ops.embedding(ids, vocabulary, start=-1), ["start is -1"]),
    "embedding: positions": (
        lambda: ops.embedding(ids, vocabulary, torch.ones(4, 8), start=2), ["reaches position 4"]),
    "loss: targets": (
        lambda: ops.linear_cross_entropy(x, w, ids + 12), ["targets holds 12", "[0, 12)"]),
    "loss: softcap": (
        lambda: ops.linear_cross_entropy(x, w, ids, softcap=0.0), ["softcap is 0.0"]),
    "config: heads": (lambda: GPTConfig(10, 8, 3, 1), ["num_heads is 3", "divisor of 8"]),
    "config: preset": (lambda: GPTConfig.preset("sed"), ["'sed'", "did you mean 'seed'"]),
    "config: field": (lambda: GPTConfig.preset("seed", layers=2), ["'layers'", "num_layers"]),
    "config: norm": (lambda: GPTConfig(10, 8, 2, 1, norm="rms"), ["'rms'", "'rmsnorm'"]),
    "gpt: rank": (lambda: GPT(GPTConfig(10, 8, 2, 1))(ids[0]), ["tokens has shape [3]"]),
    "gpt: length": (
        lambda: GPT(GPTConfig(10, 8, 2, 1, max_seq_len=2))(ids), ["3 positions", "at most 2"]),
    "register: op": (lambda: implementation("swiglu", "mine"), ["did you mean 'swiglu_ffn'"]),
    "register: device": (
        lambda: implementation("linear", "mine", device="cudaa"), ["did you mean 'cuda'"]),
    "register: name": (lambda: implementation("linear", "a-b"), ["'a-b'", "identifier"]),
    "register: twice": (lambda: implementation("linear", "cpp"), ["registered already"]),
    "register: parameters": (
        lambda: implementation("linear", "mine")(lambda x, weight: x),
        ["takes (x, weight)", "(x, weight, bias, residual"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_one_clear_error(name):
    call, words = CALLS[name]
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_prepare_takes_a_gpt():
    with pytest.raises(TypeError, match=r"model is a Linear, expected a fusebench\.GPT"):
        prepare(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("size", [(0, 3), (2, 0)])
def test_empty_batches_and_no_tokens_give_empty_results(size):
    model = GPT(GPTConfig(10, 8, 2, 1))
    out = model(torch.zeros(size, dtype=torch.int64))
    assert out["logits"].shape == (*size, 10)
