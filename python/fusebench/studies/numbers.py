"""A command-line option that is a list of whole numbers: `64,128,256`."""

from __future__ import annotations

from typing import Any

import click

from fusebench.ops import checks


class Numbers(click.ParamType):
    """`64,128` as a tuple; ValueError for what is not a list of numbers of at least 1."""

    name = "numbers"

    def convert(self, value: Any, param: Any, context: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        items = value.split(",")
        if not all(item.strip().isdecimal() and int(item) >= 1 for item in items):
            option = f"--{param.name}" if param is not None else "numbers"
            raise checks.refuse(option, "the list", f"is {value!r}", "whole numbers like 64,128")
        return tuple(int(item) for item in items)
