"""The ops: one module each with its public function, schema, fake, reference and backward."""

from fusebench.ops.embedding import embedding
from fusebench.ops.linear import linear
from fusebench.ops.linear_cross_entropy import linear_cross_entropy
from fusebench.ops.qkv_proj import qkv_proj
from fusebench.ops.registry import IMPLEMENTATIONS, OPS, get, get_op, implementation, names
from fusebench.ops.sdpa import sdpa
from fusebench.ops.swiglu_ffn import swiglu_ffn

from fusebench.ops import backends  # isort: skip  (registers on top of the ops above)

__all__ = [
    "IMPLEMENTATIONS",
    "OPS",
    "backends",
    "embedding",
    "get",
    "get_op",
    "implementation",
    "linear",
    "linear_cross_entropy",
    "names",
    "qkv_proj",
    "sdpa",
    "swiglu_ffn",
]
