"""fusebench: handwritten fused kernels against torch.compile's, on the same GPT."""

import torch  # noqa: F401  first: the compiled module resolves libtorch's symbols in the process

from fusebench import ops
from fusebench.model import GPT, PRESETS, GPTConfig, prepare
from fusebench.ops.registry import implementation
from fusebench.variant import Mode, Plan, Variant

__version__ = "0.1.0"
__all__ = [
    "GPT",
    "PRESETS",
    "GPTConfig",
    "Mode",
    "Plan",
    "Variant",
    "__version__",
    "implementation",
    "ops",
    "prepare",
]
