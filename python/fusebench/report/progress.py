"""Progress of a study: a bar with time left on a terminal, a line per stage elsewhere.

It also keeps the rows that are finished in a file, in case the process does not live to the end.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from fusebench.report.results import Results


class Progress:
    """Call it with a stage and how much of it is done, 0 to 1; use it as a context manager.

    partial: where finished rows are kept until the study ends; so: what else the file says.
    """

    def __init__(
        self, stream: TextIO = sys.stderr, quiet: bool = False, *, partial: Path | None = None,
        so: Results | None = None,
    ) -> None:  # fmt: skip
        self.stream, self.quiet = stream, quiet
        self.partial, self.so = partial, so
        self._parts: dict[Hashable, list[dict[str, Any]]] = {}
        self.stage = ""
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self.stream.isatty() and not self.quiet:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(),
                TextColumn("left"), TimeRemainingColumn(), console=Console(file=self.stream),
                transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar is not None:
            self._bar.stop()

    def keep(self, part: Hashable, rows: list[dict[str, Any]]) -> None:
        """Write the rows of every part so far, and what is being done now."""
        if self.partial is None or self.so is None:
            return
        self._parts[part] = rows
        self.so.rows = [row for rows in self._parts.values() for row in rows]
        self.so.notes = [f"unfinished: {self.stage}"]
        self.so.to_json(self.partial)

    def finished(self) -> None:
        """The study ended, and its results are elsewhere: the kept rows can go."""
        if self.partial is not None and self._parts:
            self.partial.unlink(missing_ok=True)

    def __call__(self, stage: str, done: float) -> None:
        if self._bar is not None:
            # One bar per kind of stage, so that the time left means something.
            if stage.split()[0] != (self.stage.split() or [""])[0]:
                self._bar.reset(self._task, total=1.0)
            self._bar.update(self._task, description=stage, completed=done)
        elif not self.quiet and stage != self.stage:
            print(f"{stage} …", file=self.stream, flush=True)
        self.stage = stage
