"""Implementations that other packages bring: PyTorch's attention kernels, Liger, flash-attn, ...

Importing this package registers them all, through the door that is open to everyone
(`fusebench.implementation`). None of the packages is a dependency: what is not installed, or has
no GPU here, is registered as unavailable with the reason.
"""

from fusebench.contestants import flash_attn, flex, liger, quack, torch_sdpa, xformers

__all__ = ["flash_attn", "flex", "liger", "quack", "torch_sdpa", "xformers"]
