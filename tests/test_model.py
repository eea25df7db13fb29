"""The GPT: shapes, switches, plans, loss, and that every plan computes the same model."""

import dataclasses

import pytest
import torch

import fusebench
from fusebench import GPT, PRESETS, GPTConfig, ops, prepare
from fusebench.bench import verify
from fusebench.ops import registry

SMALL = GPTConfig(vocab_size=61, n_embed=64, num_heads=4, num_layers=2, max_seq_len=64)
SHAPES = {
    "learned, layernorm, biases": SMALL,
    "rope, rmsnorm, GQA, tied": dataclasses.replace(
        SMALL, positions="rope", norm="rmsnorm", bias=False, num_kv_heads=2, tied_head=True
    ),
    "rope, layernorm without biases": dataclasses.replace(SMALL, positions="rope", bias=False),
    "no layers": dataclasses.replace(SMALL, num_layers=0),
}
tokens = torch.randint(0, 61, (2, 17), generator=torch.Generator().manual_seed(0))


def available(impl):
    return all(
        registry.get(op, impl).unavailable() is None for op in ops.OPS if impl in ops.names(op)
    )


@pytest.fixture(params=SHAPES)
def config(request):
    return SHAPES[request.param]


def test_presets_have_the_published_sizes():
    seed, gpt2, smol = (PRESETS[n] for n in ("seed", "gpt2-small", "smollm2-135m"))
    assert (seed.vocab_size, seed.n_embed, seed.num_heads, seed.num_layers) == (1000, 256, 4, 4)
    assert seed.hidden == 704 and seed.bias and seed.norm == "layernorm"
    assert (gpt2.n_embed, gpt2.num_heads, gpt2.num_layers) == (768, 12, 12)
    assert (smol.n_embed, smol.num_heads, smol.kv_heads, smol.num_layers) == (576, 9, 3, 30)
    assert (smol.hidden, smol.vocab_size, smol.rope_theta) == (1536, 49152, 100000)
    assert smol.tied_head and smol.norm == "rmsnorm" and smol.head_dim == 64
    parameters = sum(p.numel() for p in GPT(dataclasses.replace(smol, num_layers=1)).parameters())
    layer = 576 * (9 + 6) * 64 + 576 * 576 + 3 * 576 * 1536 + 2 * 576
    assert parameters == 49152 * 576 + 576 + layer


def test_logits_and_loss(config):
    model = GPT(config)
    out = model(tokens)
    assert set(out) == {"logits"} and out["logits"].shape == (2, 17, 61)
    targets = tokens.roll(-1, 1)
    both = model(tokens, targets)
    flat = torch.nn.functional.cross_entropy(both["logits"].flatten(0, 1), targets.flatten())
    torch.testing.assert_close(both["loss"], flat)
    alone = model(tokens, targets, return_logits=False)
    assert set(alone) == {"loss"}
    torch.testing.assert_close(alone["loss"], flat)


def test_a_later_token_changes_no_earlier_logit(config):
    model = GPT(config).eval()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 61
    before, after = model(tokens)["logits"], model(changed)["logits"]
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9], after[:, 9])


def test_positions_matter():
    for name in ("learned, layernorm, biases", "rope, rmsnorm, GQA, tied"):
        logits = GPT(SHAPES[name])(torch.zeros(1, 3, dtype=torch.int64) + tokens[0, :3])["logits"]
        swapped = GPT(SHAPES[name])(tokens[:1, [1, 0, 2]])["logits"]
        assert not torch.allclose(logits[0, 2], swapped[0, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "plan", ["cpp", "cpp-norm-rope-residual", "sdpa=cpp,swiglu_ffn=cpp-norm", "qkv_proj=cpp-rope"]
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_computes_the_same_model(config, plan, dtype, packed):
    if not available("cpp"):
        pytest.skip("the compiled module is not built")
    reference = GPT(config).to(dtype).eval()
    mine = GPT(config, plan).to(dtype)
    mine.load_state_dict(reference.state_dict())
    if packed:
        prepare(mine)
    with torch.no_grad():
        truth = GPT(config).double()
        truth.load_state_dict(reference.state_dict())
        verdict = verify.judge(
            mine(tokens)["logits"], truth(tokens)["logits"], reference(tokens)["logits"]
        )
    assert verdict.ok, verdict.reason


def test_rope_tables_stay_float32():
    model = GPT(SHAPES["rope, rmsnorm, GQA, tied"]).to(torch.bfloat16)
    assert model.cos.dtype == torch.float32
    assert model.double().cos.dtype == torch.float32


def test_packed_weights_are_dropped_when_the_weights_change():
    if not available("cpp"):
        pytest.skip("the compiled module is not built")
    model = prepare(GPT(SMALL, "cpp"))
    assert model.lm_head.packed is not None and model.blocks[0].down.packed is not None
    assert model.to(torch.bfloat16).lm_head.packed is None
    assert prepare(model).train().blocks[0].qkv_proj.packed is None
    prepare(model).load_state_dict(GPT(SMALL, "cpp").state_dict())
    assert model.lm_head.packed is None and model.blocks[1].gate_up.packed is None


def test_prepare_leaves_a_reference_model_alone():
    assert prepare(GPT(SMALL)).lm_head.packed is None


def test_a_training_step_lowers_the_loss_alike_for_every_plan():
    losses = {}
    for plan in ("reference", "cpp") if available("cpp") else ("reference",):
        torch.manual_seed(0)
        model = GPT(SMALL, plan)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        steps = []
        for _ in range(4):
            loss = model(tokens, tokens.roll(-1, 1), return_logits=False)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        losses[plan] = steps
        assert steps[-1] < steps[0]
    for steps in losses.values():
        assert steps == pytest.approx(losses["reference"], rel=1e-4)


def test_compiles_to_one_graph_without_breaks():
    model = GPT(SMALL).eval()
    explained = torch._dynamo.explain(model)(tokens)
    assert explained.graph_count == 1 and explained.graph_break_count == 0
    assert fusebench.__version__
