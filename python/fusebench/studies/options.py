"""What the commands share: options, the progress display, and how results leave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import click

from fusebench.bench import environment, guard, shapes
from fusebench.bench.workload import DEVICES, DTYPES
from fusebench.model import PRESETS
from fusebench.ops import checks, registry
from fusebench.report.progress import Progress
from fusebench.report.results import Results

F = TypeVar("F", bound=Callable[..., Any])


class Name(click.ParamType):
    """One of a few names; a wrong one is answered with the nearest."""

    name = "name"

    def __init__(self, kind: str, known: Any) -> None:
        self.kind, self.known = kind, known

    def convert(self, value: Any, param: Any, context: Any) -> Any:
        if value not in self.known:
            raise checks.unknown(self.kind, value, self.known)
        return value

    def get_metavar(self, param: Any, ctx: Any = None) -> str:
        return "|".join(self.known)


def _load(context: click.Context, param: click.Parameter, files: tuple[str, ...]) -> None:
    rules = guard.Rules()
    for file in files:
        with redirect_stdout(sys.stderr):
            registry.load_file(file)
        if changed := rules.put_back():
            click.echo(f"--with {file}: {'; '.join(changed)} (it was put back)", err=True)


def _writable(context: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse a file that cannot be written before the study runs, not after."""
    if path is None:
        return None
    if path == "-" and param.name != "json":
        raise checks.refuse(
            f"--{param.name}", "FILE", "is '-'", "a file: only --json writes to the standard output"
        )
    for other in ("json", "csv", "parquet"):
        taken = context.params.get(other)
        if other != param.name and taken and Path(taken).resolve() == Path(path).resolve():
            raise checks.refuse(
                f"--{param.name}", "FILE", f"is {path!r}, as for --{other}", "a file of its own"
            )
    if Path(path).is_dir() or not Path(path).resolve().parent.is_dir():
        raise checks.refuse(
            f"--{param.name}", "FILE", f"is {path!r}", "a file in a folder that exists"
        )
    return path


def with_files(command: F) -> F:
    """--with, which every command takes."""
    return click.option(
        "--with", "files", metavar="FILE.py", multiple=True, is_eager=True, expose_value=False,
        callback=_load, help="Import a file that registers implementations; may be repeated.",
    )(command)  # fmt: skip


def loaded() -> dict[str, list[str]]:
    """What the settings of a study say of the files that were imported with --with."""
    return {"with": files} if (files := registry.loaded_files()) else {}


def outputs(command: F) -> F:
    """--json, --csv, --parquet and --quiet, for commands that measure."""
    for option in (
        click.option("--quiet", is_flag=True, help="No progress display."),
        click.option(
            "--parquet", metavar="FILE", callback=_writable, help="Write rows as Parquet."
        ),
        click.option("--csv", metavar="FILE", callback=_writable, help="Write rows as CSV."),
        click.option(
            "--json",
            metavar="FILE",
            callback=_writable,
            help="Write everything as JSON; - for the standard output.",
        ),
    ):
        command = option(command)
    return with_files(command)


def shape(command: F) -> F:
    """--shape, for the commands that take an op by itself."""
    return click.option(
        "--shape", metavar="SHAPE", multiple=True,
        help=f"T=512,C=768 (letters {' '.join(shapes.LETTERS)}), a name ({', '.join(shapes.NAMED)})"
        " or both; repeatable. The model's sizes where not given.",
    )(command)  # fmt: skip


def workload(command: F) -> F:
    """The model, its input, the machine: the options that become a Workload."""
    for option in (
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--rounds", type=int, help="Interleaved samples of each contestant."),
        click.option("--threads", type=int, help="Threads of torch, set before compiling."),
        click.option("--device", type=Name("device", DEVICES), help="cuda where there is a GPU."),
        click.option(
            "--dtype", type=Name("dtype", tuple(DTYPES)), default="float32", show_default=True
        ),
        click.option("--seq", type=int, default=128, show_default=True, help="Tokens, T."),
        click.option("--batch", type=int, default=1, show_default=True, help="Sequences, B."),
        click.option(
            "--model", type=Name("model", tuple(PRESETS)), default="seed", show_default=True
        ),
    ):
        command = option(command)
    return command


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, so that a study's own defaults stand for the rest."""
    return {name: value for name, value in options.items() if value is not None}


def run(study: Callable[[Callable[[str, float], None]], Results], quiet: bool) -> Results:
    """Run a study under the progress display.

    What implementations print goes where the progress goes: the standard output is the table's.
    Finished rows are kept in FILE.partial on the way, for a process that does not live to the end.
    """
    context = click.get_current_context()
    path = context.params.get("json")
    partial = None if path in (None, "-") else Path(f"{path}.partial")
    so = Results(context.info_name or "?", [], {}, interrupted=True, command=context.obj)
    if partial is not None:
        so.environment = environment.environment()
    with redirect_stdout(sys.stderr), Progress(quiet=quiet, partial=partial, so=so) as progress:
        results = study(progress)
        results.command = context.obj
        progress.finished()
    return results


def leave(
    results: Results, *, json: str | None = None, csv: str | None = None,
    parquet: str | None = None,
) -> int:  # fmt: skip
    """Print the table, write the files, and return the exit code.

    json may be "-": JSON on the standard output, and the table on the standard error. An
    interrupted study leaves files of an earlier one as they are, and writes what it finished
    beside them: FILE.partial.
    """
    if json == "-":
        click.echo(results.table(color=sys.stderr.isatty()), err=True)
        click.echo(results.to_json(), nl=False)
        json = None
    else:
        click.echo(results.table(color=sys.stdout.isatty()))
    suffix = ".partial" if results.interrupted else ""
    for path, writer in (
        (json, results.to_json), (csv, results.to_csv), (parquet, results.to_parquet)
    ):  # fmt: skip
        if path is not None:
            writer(path + suffix)
            if suffix:
                click.echo(f"wrote what was finished to {path}{suffix}", err=True)
    if results.interrupted:
        return 130
    return 1 if results.failed else 0
