"""Where weights lie in memory: elsewhere in every round, so that nobody is stuck in a bad place."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterable

import torch
from torch import Tensor

LIMIT = 64 << 20  # more bytes than this stream through every cache, wherever they lie
LINE = 64  # bytes; what every tensor begins at a multiple of
PAGE = 4096


class Placement:
    """Moves the weights of one contestant.

    Which weights push each other out of a cache depends on the pages they were given. With weights
    about as large as the second-level cache, the slowest of eight builds of one variant took 4 to
    31 % longer than the fastest, as long as they lived (tools/false_verdicts.py). Drawn anew in
    every round, a bad place is noise like any other, which the interval covers (Curtsinger and
    Berger, "Stabilizer: statistically sound performance evaluation", ASPLOS 2013).
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        """weights: what is not contiguous memory of a CPU stays where it is."""
        distinct = {id(w): w for w in weights}.values()
        self.weights = [w for w in distinct if w.numel() and w.is_cpu and w.is_contiguous()]
        size = sum(w.nbytes for w in self.weights)
        if size > LIMIT:
            self.weights = []
        self.size = size + (PAGE + LINE) * len(self.weights)
        # Code that keeps an address keeps the first one, whose memory must not go to others.
        self._first = [w.data for w in self.weights]
        self._before: list[mmap.mmap] = []

    def move(self) -> bool:
        """Give every weight other memory, in another order; False where none can be moved.

        The tensors stay the same objects, so that compiled code finds them.
        """
        if not self.weights:
            return False
        # Pages that the system hands out now, while the last ones are still taken.
        space = mmap.mmap(-1, self.size)
        self._before = [*self._before[-1:], space]
        at = 0
        for weight in random.sample(self.weights, len(self.weights)):
            at = -(-at // LINE) * LINE + random.randrange(PAGE // LINE) * LINE
            place = torch.frombuffer(space, dtype=weight.dtype, count=weight.numel(), offset=at)
            place = place.view(weight.shape)
            place.copy_(weight.detach())
            weight.data = place
            at += weight.nbytes
        return True
