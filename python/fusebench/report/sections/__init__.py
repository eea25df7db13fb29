"""Result files become the sections of a page: a file for each question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusebench.report import tables
from fusebench.report.sections.ablation import ablations
from fusebench.report.sections.account import accounts
from fusebench.report.sections.common import Chart, Section, Source, files_of, machine
from fusebench.report.sections.comparison import comparisons
from fusebench.report.sections.cost import costs
from fusebench.report.sections.lengths import lengths
from fusebench.report.sections.roofline import rooflines

__all__ = ["Chart", "Section", "Source", "machine", "sections"]

QUESTIONS = {
    "choose": "Which plan is the best?", "check": "Are the kernels right?",
    "inspect": "What did the compiler do?",
    "bindings": "What does the way a kernel is bound cost?", "diff": "What changed?",
    "resources": "What do the GPU kernels need?", "simulate": "What do the CUDA kernels do?",
    "tune": "Which parameters are the best?", "machine": "What can this machine do?",
}  # fmt: skip
CHARTED = ("compare", "ablate", "explain", "shapes", "op", "compile-cost")


def sections(sources: Sequence[Source]) -> list[Section]:
    """What the files hold, in the order of the questions; names and headings are unique."""
    found = [section for build in BUILDERS for section in build(sources)]
    alike: dict[str, list[Section]] = {}
    for section in found:
        alike.setdefault(section.name, []).append(section)
    for group in alike.values():
        for number, section in enumerate(group if len(group) > 1 else (), 1):
            section.name += f"-{number}"
            section.heading += f" ({', '.join(section.sources)})"
            section.charts = [Chart(f"{c.name}-{number}", c.draw) for c in section.charts]
    return found


def others(sources: Sequence[Source]) -> Iterator[Section]:
    """Every study that has no chart of its own: its rows as tables."""
    for study in dict.fromkeys(results.study for _, results in sources):
        if study not in CHARTED:
            heading = QUESTIONS.get(study, study)
            for section, results in files_of(sources, study, study, heading):
                section.add(*tables.anything(results.rows))
                yield section


BUILDERS = (comparisons, ablations, accounts, lengths, rooflines, costs, others)
