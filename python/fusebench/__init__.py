"""fusebench: handwritten fused kernels against torch.compile's, on the same GPT."""

import torch  # noqa: F401  first: the compiled module resolves libtorch's symbols in the process

from fusebench import ops
from fusebench.bench import guard as _guard  # noqa: F401  notes clock and judges before user code
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
    "compare",
    "implementation",
    "ops",
    "prepare",
]


def __getattr__(name: str) -> object:
    """`fusebench.compare`, loaded when it is first used."""
    if name == "compare":
        from fusebench.studies.compare import compare

        return compare
    raise AttributeError(f"module 'fusebench' has no attribute {name!r}")
