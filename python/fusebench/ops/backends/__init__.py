"""The handwritten implementations that ship with fusebench: cpp, cuda and triton."""

from fusebench.ops.backends import cpp, cuda, triton

__all__ = ["cpp", "cuda", "triton"]
