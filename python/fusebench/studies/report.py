"""`fusebench report`: one page of everything in result files, and its charts as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fusebench.ops import checks
from fusebench.report import page
from fusebench.report.results import load, write
from fusebench.report.sections import Source, sections
from fusebench.studies import options

OUTPUT = "report.html"


def report(
    results: Sequence[str | Path], output: str | Path | None = OUTPUT, *,
    svg: str | Path | None = None, png: str | Path | None = None,
) -> list[Path]:  # fmt: skip
    """Write result files as one self-contained HTML page; the paths of what was written.

    results: JSON files of any studies. output: the page, or None for no page. svg, png: folders
    for each chart as a file of its own; PNG needs matplotlib.
    Raises ValueError for files that are no results, and for places that cannot be written.
    """
    sources = sources_of(results)
    written = []
    for folder, form in ((svg, "svg"), (png, "png")):
        if folder is not None:
            written += page.export(sources, folder, form)
    if output is not None:
        write(output, page.render(sources))
        written.append(Path(output))
    return written


def sources_of(paths: Sequence[str | Path]) -> list[Source]:
    """The results under the shortest names that tell the files apart; ValueError for others."""
    names = [Path(path).name for path in paths]
    found = []
    for name, path in zip(names, paths):
        results = load(path)
        source = (name if names.count(name) == 1 else str(path), results)
        try:
            sections([source])
        except (AttributeError, KeyError, TypeError) as error:
            raise checks.refuse(
                "report", str(path), f"has rows that are not of {results.study!r} ({error})",
                "a file as the study wrote it",
            ) from error  # fmt: skip
        found.append(source)
    return found


@click.command("report")
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...")
@click.option("-o", "--output", metavar="FILE.html", default=OUTPUT, show_default=True)
@click.option("--svg", metavar="FOLDER", help="Also each chart as SVG.")
@click.option("--png", metavar="FOLDER", help="Also each chart as PNG (needs matplotlib).")
@options.with_files
def command(results: tuple[str, ...], output: str, svg: str | None, png: str | None) -> int:
    """One page of everything in result files: charts, tables, environment, commands.

    RESULTS are files that studies wrote with --json.
    """
    for path in report(results, output, svg=svg, png=png):
        click.echo(f"wrote {path}")
    return 0
