"""How often the harness sees a difference where there is none: builds of one variant, raced.

Half of the builds keep their weights where they are, half of them move (bench/placement.py).

    python tools/false_verdicts.py [VARIANT] [--builds 8] [--rounds 50] [--dtype float32]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import click

from fusebench.bench.contestant import Contestant, from_variant
from fusebench.bench.measure import Measurement, Race, compared, measure
from fusebench.bench.workload import DTYPES, Workload
from fusebench.studies.compare import model_task
from fusebench.variant import Variant

KINDS = ("moving", "staying")


def race(variant: Variant, workload: Workload, builds: int, rounds: int) -> Race:
    """Builds of one variant, `builds` of each kind, in one interleaved race."""

    def build(name: str) -> Contestant:
        contestant = from_variant(variant, workload.config, workload.weights)
        stays = name.startswith("staying")
        return replace(contestant, module=None) if stays else contestant  # without one, none moves

    names = [f"{kind} {i + 1}" for kind in KINDS for i in range(builds)]
    entrants = [(n, lambda n=n: build(n)) for n in names]
    return measure(model_task(workload), entrants, rounds=rounds)


def count(found: Race) -> Iterator[tuple[str, int, int, float]]:
    """For each kind: verdicts between its builds, pairs of them, and slowest over fastest."""
    for kind in KINDS:
        builds: Sequence[Measurement] = [m for m in found.timed if m.name.startswith(kind)]
        pairs = list(combinations(builds, 2))
        wrong = sum(compared(a, b).verdict() in ("faster", "slower") for a, b in pairs)
        medians = [m.median for m in builds]
        yield kind, wrong, len(pairs), max(medians) / min(medians)


@click.command()
@click.argument("variant", default="reference@default")
@click.option("--builds", type=click.IntRange(2), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(6), default=50, show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
def main(variant: str, builds: int, rounds: int, dtype: str) -> None:
    """Race builds of VARIANT of the seed model against each other."""
    found = race(Variant.parse(variant), Workload(dtype=dtype, device_name="cpu"), builds, rounds)
    for kind, wrong, pairs, spread in count(found):
        print(f"{kind}: {wrong} verdicts in {pairs} pairs; slowest over fastest {spread:.3f}")


if __name__ == "__main__":
    main()
