"""A GPT whose every site is a Triton kernel trains like the reference."""

import pytest
import torch

from fusebench import GPT, GPTConfig


@pytest.mark.parametrize(
    "plan, options",
    [
        ("triton", {}),
        (
            "triton,swiglu_ffn=triton_recompute",
            dict(positions="rope", norm="rmsnorm", bias=False, num_kv_heads=1, tied_head=True),
        ),
    ],
)
def test_training(plan, options):
    def losses(plan):
        torch.manual_seed(0)
        model = GPT(
            GPTConfig(vocab_size=97, n_embed=32, num_heads=2, num_layers=2, **options), plan
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        tokens = torch.randint(97, (2, 17))
        found = []
        for _ in range(3):
            loss = model(tokens[:, :-1], targets=tokens[:, 1:])["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return torch.tensor(found)

    ours, theirs = losses(plan), losses("reference")
    assert theirs[2] < theirs[0] - 0.1
    assert torch.allclose(ours, theirs, rtol=1e-5)
