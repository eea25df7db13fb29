"""Command-line options beyond the usual: lists of whole numbers, and what a study leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fusebench.ops import checks

F = TypeVar("F", bound=Callable[..., Any])


def without(*names: str) -> Callable[[F], F]:
    """Take options of a shared set back: `rounds` from a study that times nothing."""

    def leave_out(function: F) -> F:
        options = getattr(function, "__click_params__", [])
        options[:] = [option for option in options if option.name not in names]
        return function

    return leave_out


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 10 and int(text) >= 1


class Numbers(click.ParamType):
    """`64,128` as a tuple; ValueError for what is not a list of numbers of at least 1."""

    name = "numbers"

    def convert(self, value: Any, param: Any, context: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        items = value.split(",")
        if not all(_is_count(item.strip()) for item in items):
            option = f"--{param.name}" if param is not None else "numbers"
            raise checks.refuse(option, "the list", f"is {value!r}", "whole numbers like 64,128")
        return tuple(int(item) for item in items)
