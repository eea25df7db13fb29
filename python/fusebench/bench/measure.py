"""Verify, warm up, race, verify again: what every study that times something goes through."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import Any

import torch
from torch import Tensor

from fusebench.bench import guard, memory, statistics, timing, verify, watch
from fusebench.bench.contestant import Contestant, snapshot
from fusebench.bench.environment import Noise
from fusebench.bench.keep import EVERY_S, Progress, keep

PROBES = 3  # input sets verified before timing
AUDITS = 4  # rounds, besides the last, whose timed outputs are verified after the race
LIMIT_SLACK = 1.05  # how far the limit, a measurement too, may be exceeded before it is noted


@dataclass(frozen=True)
class Task:
    """What everyone in a race is asked to do.

    inputs: index -> a set of input tensors, new for every index and the same for the same one.
    reference: the plain composition, (inputs) -> outputs; in float64 on inputs and weights made
        float64 it is the oracle (`truth`), in the task's own dtype it sets the budget.
    device: where it runs. flops: of one call, and `limit`: the floating-point operations per
        second that this machine cannot exceed, None where it is not known.
    hard: more input sets to verify on, of kinds that kernels get wrong.
    """

    inputs: Callable[[int], tuple[Any, ...]]
    reference: Callable[..., Any]
    truth: Callable[..., Any]
    device: torch.device
    flops: float | None = None
    limit: float | None = None
    hard: Sequence[tuple[Any, ...]] = ()


@dataclass
class Measurement:
    """What became of one contestant. Seconds are per call, one sample per round, none dropped.

    placements: how often its weights were moved in memory.
    """

    name: str
    verified: bool = False
    failure: str | None = None
    detail: str | None = None
    error: float | None = None
    error_budget: float | None = None
    first_call_s: float | None = None
    peak_bytes: int | None = None
    calls_per_sample: int | None = None
    placements: int = 0
    steady: bool | None = None
    samples: list[float] = field(default_factory=list)
    host_samples: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    flag: str | None = None
    contestant: Contestant | None = field(default=None, repr=False)

    @property
    def timed(self) -> bool:
        return self.failure is None and bool(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def still(self) -> bool:
        """Whether its weights stay in one place although it matters: compiled code holds them."""
        return self.contestant is not None and self.contestant.still

    def fail(self, reason: str, detail: str | None = None) -> None:
        self.verified, self.failure, self.detail = False, reason, detail

    def row(self) -> dict[str, Any]:
        """The fields that every study's rows share (docs/results-schema.md)."""
        row: dict[str, Any] = {
            "verified": self.verified,
            "failure": self.failure,
            "median_ms": self.median * 1e3 if self.timed else None,
            "p95_ms": statistics.p95(self.samples) * 1e3 if self.timed else None,
            "first_call_s": self.first_call_s,
            "peak_bytes": self.peak_bytes,
            "error": self.error,
            "error_budget": self.error_budget,
        }
        if compilations := self.contestant and self.contestant.compilations:
            row.update(
                graphs=compilations.graphs,
                graph_breaks=compilations.graph_breaks,
                recompiles=compilations.recompiles,
                break_reasons=compilations.break_reasons,
                cache_hits=compilations.cache_hits,
                prepared=self.contestant.prepared if self.contestant else False,
            )
        else:
            row.update(graphs=None, graph_breaks=None, recompiles=None, prepared=None)
        row.update(
            steady=self.steady,
            outliers=statistics.outliers(self.samples) if self.timed else None,
            calls_per_sample=self.calls_per_sample,
            placements=self.placements,
            samples_ms=[round(s * 1e3, 6) for s in self.samples],
            flag=self.flag,
            warnings=self.warnings,
        )
        if self.host_samples:
            row["host_ms"] = statistics.median(self.host_samples) * 1e3
        return row


def compared(m: Measurement, baseline: Measurement) -> statistics.Interval:
    """How many times faster a measurement is than another one of its race."""
    return careful(statistics.speedup(m.samples, baseline.samples), m, baseline)


def careful(interval: statistics.Interval, *of: Measurement) -> statistics.Interval:
    """The interval with the margin that the measurements behind it call for."""
    still = any(m.still for m in of)
    return replace(interval, margin=statistics.STILL_MARGIN) if still else interval


@dataclass
class Race:
    """The measurements of one race, in the order asked for, and how noisy the machine was."""

    measurements: list[Measurement]
    noise: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def __getitem__(self, name: str) -> Measurement:
        return next(m for m in self.measurements if m.name == name)

    def rows(self) -> list[dict[str, Any]]:
        """What is known so far of those that were verified or failed."""
        done = (m for m in self.measurements if m.verified or m.failure)
        return [{"variant": m.name, **m.row()} for m in done]

    @property
    def timed(self) -> list[Measurement]:
        return [m for m in self.measurements if m.timed]


Entrant = tuple[str, Callable[[], Contestant]]


def measure(
    task: Task,
    entrants: Iterable[Entrant],
    *,
    rounds: int,
    seed: int = 0,
    untimed: Callable[[str], str | None] = lambda name: None,
    progress: Progress = lambda stage, done: None,
) -> Race:
    """Build, verify, warm up and race contestants, then verify what they gave while timed.

    entrants: a name and a function that builds the contestant (what it raises becomes the
    reason of its failure; the others go on). untimed: why a contestant is verified only, or None.
    Ctrl-C ends the race early; what was finished is in the result. A progress that keeps rows
    gets them on the way, so that they outlive a contestant that ends the process.
    """
    entrants = list(entrants)
    result = Race([Measurement(name) for name, _ in entrants])
    timer, noise = timing.clock(task.device), Noise()
    with torch.no_grad():  # as contestants are called; grad mode is a setting, too
        answers = _Answers(task, seed)
    try:
        for index, (m, (name, build)) in enumerate(zip(result.measurements, entrants)):
            progress(f"compiling and verifying {name}", index / len(entrants))
            keep(progress, id(result), result.rows())
            _attempt(m, answers, lambda m=m, build=build: _enter(m, build, answers))
        racing = {}
        for m in result.measurements:
            if m.verified and (reason := untimed(m.name)):
                m.warnings.append(reason)
            elif m.verified:
                racing[m.name] = m
        fastest = float("inf")
        for index, m in enumerate(list(racing.values())):
            progress(f"warming up {m.name}", index / len(racing))
            warm = _attempt(m, answers, lambda m=m: _warm_up(m, timer, answers))
            if warm is None:
                del racing[m.name]
            else:
                fastest = min(fastest, warm)
        noise = Noise()
        if racing:
            calls = timing.calls_per_turn(fastest)
            with torch.no_grad():
                _race(result, racing, timer, answers, rounds, seed, calls, noise, progress)
    except KeyboardInterrupt:
        result.interrupted = True
        _cut_short(result)
    result.noise = noise.report()
    return result


def _cut_short(race: Race) -> None:
    """Keep whole rounds only, and only where there are enough of them for a result."""
    running = [len(m.samples) for m in race.measurements if m.samples and not m.failure]
    whole = min(running, default=0)
    for m in race.measurements:
        del m.samples[whole if whole >= statistics.MIN_SAMPLES else 0 :]
        if not m.verified and m.failure is None:
            m.failure = "interrupted before it was verified"


class _Answers:
    """The inputs of a run, and what they should give.

    Input set number n of a run is always the same one, and never used twice by accident:
    `new` counts on. The last few answers are kept, because contestants share probes and audits.
    rules: what must stay as it is meanwhile.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.base, self.count = task, (seed + 1) << 24, 0
        self.rules = guard.Rules()
        self._known: dict[int, tuple[tuple, tuple]] = {}

    def new(self) -> int:
        self.count += 1
        return self.base + self.count

    def inputs(self, index: int) -> tuple[Any, ...]:
        """The input set of that number; negative numbers are the task's hard ones."""
        if index < 0:
            return tuple(t.clone() if isinstance(t, Tensor) else t for t in self.task.hard[~index])
        return self.task.inputs(index)

    def fresh(self) -> tuple[Any, ...]:
        return self.inputs(self.new())

    def judge(self, index: int, outputs: tuple[Tensor, ...]) -> verify.Verdict:
        """The verdict on outputs for that input set."""
        if index not in self._known:
            inputs = self.inputs(index)
            answer = (
                guard.tensors(self.task.truth(*inputs)),
                guard.tensors(self.task.reference(*inputs)),
            )
            while len(self._known) >= PROBES + len(self.task.hard):
                self._known.pop(next(iter(self._known)))
            self._known[index] = answer
        truth, reference = self._known[index]
        return verify.judge(outputs, truth, reference)

    def unchanged(self, numbers: Sequence[int], batch: Sequence[tuple]) -> None:
        """Raise guard.Cheat where an input set no longer holds what it did."""
        for number, inputs in zip(numbers, batch):
            before = {f"input {i}": t for i, t in enumerate(self.inputs(number))}
            guard.unchanged("inputs", {f"input {i}": t for i, t in enumerate(inputs)}, before)


def _attempt(m: Measurement, answers: _Answers, body: Callable[[], Any]) -> Any:
    """Run a step for one contestant; what it raises becomes its failure, with the reason."""
    try:
        with torch.no_grad():
            found = body()
            answers.rules.kept()
            return found
    except guard.Cheat as cheat:
        m.fail(str(cheat))
    except (Exception, SystemExit) as error:
        m.fail(guard.reason(error), "".join(traceback.format_exception(error)))
    with torch.no_grad():
        if found := answers.rules.put_back():  # the likelier reason
            m.fail(f"{'; '.join(found)} (it was put back); {m.failure}", m.detail)
    return None


def _enter(m: Measurement, build: Callable[[], Contestant], answers: _Answers) -> None:
    """Build it, make the first call, and verify it on inputs of several kinds."""
    m.contestant = c = build()
    first, second = answers.fresh(), answers.fresh()
    try:
        with c.compiling():
            start = timing.now()
            c.call(*first)
            timing.synchronize(answers.task.device)
            m.first_call_s = timing.now() - start
            c.call(*second)  # CUDA graphs record on the second call
    except (Exception, SystemExit):
        watch.look(c, answers.fresh())  # names the op, where it is the fault of one
        raise
    m.warnings += watch.look(c, answers.fresh())
    probes = range(answers.base - PROBES, answers.base)
    for index in (*probes, *(~i for i in range(len(answers.task.hard)))):
        inputs = answers.inputs(index)
        with c.compilations.watch():
            output = c.call(*inputs)
        guard.plain(output, (*inputs, *c.weights.values()))
        copies = guard.complete(output)
        answers.unchanged([index], [inputs])
        try:
            _judge(m, answers, index, copies)
        except guard.Cheat as cheat:
            _blame(c, answers.inputs(index), cheat)
            raise
        guard.poison(output)
    if not c.reuses_output:
        guard.distinct(c.call, answers.fresh(), answers.fresh())
    guard.unchanged("weights", c.weights, c.pristine)
    inputs = answers.fresh()
    m.peak_bytes = memory.peak_of(lambda: c.call(*inputs), answers.task.device)
    m.verified = True


def _blame(c: Contestant, inputs: tuple[Any, ...], cheat: guard.Cheat) -> None:
    """Raise the same again with the op whose own result is wrong, where there is one."""
    try:
        watch.look(c, inputs, values=True)
    except guard.Cheat as culprit:
        raise guard.Cheat(f"{cheat}; {culprit}") from cheat


def _judge(m: Measurement, answers: _Answers, index: int, copies: tuple[Tensor, ...]) -> None:
    verdict = answers.judge(index, copies)
    if m.error is None or verdict.error >= m.error:
        m.error, m.error_budget = verdict.error, verdict.budget
    if not verdict.ok:
        raise guard.Cheat(verdict.reason or "the result is wrong")


def _warm_up(m: Measurement, timer: timing.Clock, answers: _Answers) -> float:
    assert m.contestant is not None
    with m.contestant.compilations.watch():
        warm = timing.warm_up(
            timer, m.contestant.call, lambda: (answers.fresh(), answers.fresh())
        )  # fmt: skip
    m.steady = warm.steady
    if not warm.steady:
        m.warnings.append("did not become steady while warming up")
    return statistics.median(warm.seconds[-timing.STEADY_WINDOW :])


def _race(
    result: Race, racing: dict[str, Measurement], timer: timing.Clock, answers: _Answers,
    rounds: int, seed: int, calls: int, noise: Noise, progress: Progress,
) -> None:  # fmt: skip
    """Time everyone, and verify a secret sample of what the timed calls gave."""
    audited = {rounds - 1, *SystemRandom().sample(range(rounds), min(AUDITS, rounds))}
    audits: list[tuple[int, Measurement, tuple[Tensor, ...]]] = []
    numbers: list[int] = []
    calls_of = {name: m.contestant.call for name, m in racing.items() if m.contestant}

    def batches() -> list[tuple]:
        for m in racing.values():
            if not m.failure and m.contestant:
                m.placements += m.contestant.move()
        numbers[:] = [answers.new() for _ in range(calls + 1)]
        return [answers.inputs(n) for n in numbers]

    def leave(m: Measurement) -> None:
        """A contestant that failed takes no further part, and harms nobody's inputs."""
        del calls_of[m.name]
        batch[:] = [answers.inputs(n) for n in numbers]

    before, round_now, kept_at = snapshot(), 0, timing.now()
    for index, name, batch, turn in timing.race(
        timer, calls_of, batches, rounds=rounds, seed=seed
    ):  # fmt: skip
        if index != round_now and timing.now() - kept_at > EVERY_S:  # between two rounds
            keep(progress, id(result), result.rows())
            kept_at = timing.now()
        round_now = index
        m = racing[name]
        assert m.contestant is not None
        before = m.contestant.compilations.add_since(before)
        if isinstance(turn, BaseException):
            m.fail(f"{guard.reason(turn)} (in round {index + 1})")
            answers.rules.put_back()
            leave(m)
            continue
        m.calls_per_sample = calls
        m.samples.append(turn.seconds)
        if turn.host_seconds is not None:
            m.host_samples.append(turn.host_seconds)
        try:
            answers.rules.kept()
            guard.plain(turn.last, (*batch[-1], *m.contestant.weights.values()))
            if index in audited:
                copies = guard.complete(turn.last)
                kept = calls - 1  # of a contestant that reuses its output, only the last is left
                if not m.contestant.reuses_output:
                    kept, copies = turn.kept, guard.copies(turn.output)
                audits.append((numbers[kept + 1], m, copies))
                answers.unchanged(numbers, batch)
        except guard.Cheat as cheat:
            m.fail(f"{cheat} (in round {index + 1} of the race)")
            leave(m)
        guard.poison(turn.last)
        noise.tick(index)
        progress("timing", (index + 1) / rounds)
    for number, m, copies in sorted(audits, key=lambda audit: audit[0]):
        if not m.failure:
            _attempt(m, answers, lambda m=m, n=number, c=copies: _judge(m, answers, n, c))
            if m.failure:
                m.fail(f"{m.failure}, in a timed call; it passed before timing")
    for m in racing.values():
        if not m.failure and m.contestant:
            c = m.contestant
            _attempt(m, answers, lambda c=c: watch.look(c, answers.fresh()))
            if m.failure:
                m.fail(f"{m.failure} (after timing; it passed before)")
                continue
            _attempt(m, answers, lambda c=c: guard.unchanged("weights", c.weights, c.pristine))
            if task_limit := answers.task.limit:
                _flag(m, answers.task.flops, task_limit)


def _flag(m: Measurement, flops: float | None, limit: float) -> None:
    """Note a contestant that seems to do more than the machine can."""
    if flops and m.timed and flops / m.median > LIMIT_SLACK * limit:
        m.flag = (
            f"faster than the machine's limit: {flops / m.median / 1e9:.0f} GFLOP/s, "
            f"of {limit / 1e9:.0f} measured by `fusebench machine`"
        )


guard.protect(watch.__name__, __name__)
