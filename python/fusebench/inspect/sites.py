"""Which part of the model a stack trace belongs to: a site, or a place between the ops."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fusebench.model import gpt
from fusebench.ops import OPS
from fusebench.variant import SITES

BETWEEN = "between ops"
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_SITES_OF = {op: tuple(s for s, o in SITES.items() if o == op) for op in OPS}


def of(stack: str) -> str:
    """The site that a stack trace passes through, or BETWEEN where the model did it itself.

    The frame that the model called decides: `ops.linear` is `lm_head` where `GPT.head` called it
    and `out_proj` elsewhere; a helper of an op called by the model (RoPE left outside) is BETWEEN.
    Without a frame of the model, the op itself.
    """
    caller = ""
    for path, function in _FRAME.findall(stack):
        if Path(path) == Path(gpt.__file__):
            caller = function
        elif function in OPS and Path(path).stem == function:
            sites = _SITES_OF[function] or (function,)
            return "lm_head" if caller == "head" and "lm_head" in sites else sites[0]
    return BETWEEN


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Names without repeats, in the order of the model."""
    order = [*SITES, BETWEEN]
    return tuple(sorted(set(names), key=lambda n: order.index(n) if n in order else len(order)))
