"""Progress of a study: a bar with time left on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO


class Progress:
    """Call it with a stage and how much of it is done, 0 to 1; use it as a context manager."""

    def __init__(self, stream: TextIO = sys.stderr, quiet: bool = False) -> None:
        self.stream, self.quiet = stream, quiet
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

    def __call__(self, stage: str, done: float) -> None:
        if self._bar is not None:
            # One bar per kind of stage, so that the time left means something.
            if stage.split()[0] != (self.stage.split() or [""])[0]:
                self._bar.reset(self._task, total=1.0)
            self._bar.update(self._task, description=stage, completed=done)
        elif not self.quiet and stage != self.stage:
            print(f"{stage} …", file=self.stream, flush=True)
        self.stage = stage
