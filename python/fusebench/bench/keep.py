"""Rows handed on as soon as they are finished: a process that ends early loses none of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, runtime_checkable

Progress = Callable[[str, float], None]
EVERY_S = 5.0  # how often a running race hands on what it has


@runtime_checkable
class Keeper(Protocol):
    """A progress display that keeps finished rows as well."""

    def keep(self, part: Hashable, rows: list[dict[str, Any]]) -> None: ...


def keep(progress: Progress, part: Hashable, rows: list[dict[str, Any]]) -> None:
    """Hand the rows of one part of a study to a progress that keeps them; others take none.

    part: the same again for newer rows of the same part.
    """
    if isinstance(progress, Keeper):
        progress.keep(part, rows)
