"""Triton kernels and their launchers, one file per op: plain tensors in, plain tensors out.

Nothing here knows torch.library; fusebench.ops registers the launchers as torch ops.
"""

from .launch import INTERPRETED

if INTERPRETED:
    from .interpreter import install

    install()
