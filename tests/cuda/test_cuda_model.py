"""A GPT whose sites all run the CUDA kernels, in the simulator, against the reference's logits."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("fusebench._sim", reason="the simulator was not built")

# The plan's ops take CPU tensors only in a process that was started to simulate.
PROGRAM = """
import torch
from fusebench import GPT, GPTConfig
from fusebench.bench import verify

torch.manual_seed(0)
options = dict(positions="rope", norm="rmsnorm", num_kv_heads=1, bias=False, tied_head=True)
for extra in ({}, options):
    config = GPTConfig(vocab_size=97, n_embed=64, num_heads=2, num_layers=1, **extra)
    reference = GPT(config).bfloat16().eval()
    mine = GPT(config, "cuda").bfloat16().eval()
    mine.load_state_dict(reference.state_dict())
    truth = GPT(config).double()
    truth.load_state_dict(reference.state_dict())
    used = {i.op for i in mine.plan.implementations()}
    assert used == {"embedding", "qkv_proj", "sdpa", "linear", "swiglu_ffn"}, used
    tokens = torch.randint(97, (2, 19))
    with torch.no_grad():
        logits = (model(tokens)["logits"] for model in (mine, truth, reference))
        verdict = verify.judge(*logits)
    assert verdict.ok, verdict.reason
print("right")
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_cuda_plan_gives_the_references_logits(arch):
    environment = {**os.environ, "FUSEBENCH_SIMULATE": "1", "FUSEBENCH_SIMULATE_ARCH": arch}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert run.stdout.strip() == "right", run.stderr[-2000:]
