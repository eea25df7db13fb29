"""The Triton kernels on a GPU: the grid of `fusebench check`, and inside compiled code."""

import pytest
import torch

from fusebench import GPT, GPTConfig
from fusebench.ops import OPS
from fusebench.studies.check import check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_check(op, dtype):
    (row,) = check(op, "triton", "cuda", dtype=dtype).rows
    assert not row["failure"], row["failure"]
    assert {row[n] for n in ("gradients", "opcheck", "fullgraph", "dynamic")} == {"pass"}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_compiled_model_agrees_with_eager(mode):
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=512, n_embed=128, num_heads=2, num_layers=2)
    model = GPT(config, "triton").cuda().bfloat16().eval()
    reference = GPT(config, "reference").cuda().bfloat16().eval()
    reference.load_state_dict(model.state_dict())
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for length in (64, 64, 257):
        tokens = torch.randint(512, (2, length), device="cuda")
        with torch.no_grad():
            ours, plain = compiled(tokens)["logits"].float(), model(tokens)["logits"].float()
            truth = reference.double()(tokens)["logits"]
            reference.bfloat16()
            budget = 2 * (reference(tokens)["logits"].double() - truth).abs().max()
        assert (ours.double() - truth).abs().max() <= budget
        assert (plain.double() - truth).abs().max() <= budget
