"""The one place that times: a turn on the CPU's or the GPU's clock, warm-up, and the race."""

from __future__ import annotations

import importlib.util
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusebench.bench.statistics import median

Call = Callable[..., Any]
Batch = Sequence[tuple]


def _own_clock() -> Callable[[], float]:
    """Python's built-in perf_counter, from a copy of the module `time` that nobody else has.

    Code that replaces time.perf_counter, before this package is imported or after, does not reach
    it; `guard.Rules` says when somebody tries later.
    """
    spec = importlib.util.find_spec("time")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    clock = module.perf_counter
    if type(clock) is not types.BuiltinFunctionType or clock.__self__ is not module:
        raise ImportError(f"the clock is {clock!r}, expected Python's built-in time.perf_counter")
    return clock


now = _own_clock()

STEADY_WINDOW = 5  # samples in each of the two windows that are compared
STEADY_CHANGE = 0.03  # how little the median may change from one window to the next
MIN_TURN_S = 1e-3  # a turn times as many calls as this takes
MAX_CALLS = 64


@dataclass
class Turn:
    """What one contestant did in one turn.

    seconds: per call. host_seconds: per call until control came back, on a GPU; None on the CPU,
    where it is the same. output: of one of the timed calls, which `kept` names.
    last: of the last timed call.
    """

    seconds: float
    host_seconds: float | None
    kept: int
    output: Any
    last: Any


class CpuClock:
    """Wall time of a block of calls.

    Every turn begins with an untimed call, which brings the contestant's own weights back into
    whichever cache they fit (the contestants before it pushed them out) and wakes the threads.
    """

    def turn(self, call: Call, batch: Batch, kept: int) -> Turn:
        call(*batch[0])
        output = last = None
        start = now()
        for index, inputs in enumerate(batch[1:]):
            last = call(*inputs)
            if index == kept:
                output = last
        seconds = (now() - start) / (len(batch) - 1)
        return Turn(seconds, None, kept, output, last)


class Graphed:
    """A call captured in a CUDA graph, so that its launches cost the device nothing.

    For single ops on a GPU, whose kernels are shorter than their launch. The clock copies new
    inputs into the captured ones before it starts; `plain` is the call as it was.
    """

    def __init__(self, plain: Call, inputs: tuple) -> None:
        self.plain = plain
        self.inputs = tuple(i.clone() if isinstance(i, Tensor) else i for i in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                plain(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = plain(*self.inputs)

    def load(self, inputs: tuple) -> None:
        for old, new in zip(self.inputs, inputs):
            if isinstance(old, Tensor):
                old.copy_(new)

    def replay(self) -> Any:
        self.graph.replay()
        return self.output

    def __call__(self, *inputs: Any) -> Any:
        self.load(inputs)
        return self.replay()


class CudaClock:
    """Device time between CUDA events, each call with a cold L2 cache; the host's share apart.

    Before every timed call a buffer twice the size of L2 is overwritten, which also keeps the
    device busy long enough for the host to queue the call: the events then see no launch gaps
    unless the call itself leaves them.
    """

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.device = device
        self.flush = torch.empty(2 * properties.L2_cache_size, dtype=torch.int8, device=device)

    def turn(self, call: Call, batch: Batch, kept: int) -> Turn:
        graphed = call if isinstance(call, Graphed) else None
        plain = graphed.plain if graphed else call
        plain(*batch[0])
        torch.cuda.synchronize(self.device)
        begin = now()
        plain(*batch[0])  # the host's time per call: until control comes back, on an idle device
        host = now() - begin
        events = []
        output = last = None
        for index, inputs in enumerate(batch[1:]):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if graphed:
                graphed.load(inputs)
            self.flush.zero_()
            start.record()
            last = graphed.replay() if graphed else call(*inputs)
            end.record()
            events.append((start, end))
            if index == kept:
                output = last
        torch.cuda.current_stream(self.device).synchronize()
        seconds = sum(start.elapsed_time(end) for start, end in events) / len(events) / 1e3
        return Turn(seconds, host, kept, output, last)


Clock = CpuClock | CudaClock


def clock(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def synchronize(device: torch.device) -> None:
    """Wait for the device; the CPU has nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Warmup:
    """How a contestant warmed up: its seconds per call, call by call, and whether it settled."""

    seconds: list[float] = field(default_factory=list)
    steady: bool = False


def warm_up(
    timer: Clock, call: Call, batches: Callable[[], Batch], *, limit_s: float = 2.0
) -> Warmup:
    """Call until steady: the medians of the last five turns and of the five before differ by < 3%.

    Gives up after `limit_s` seconds (`steady` is False then, and the row says so).
    """
    result = Warmup()
    start = now()
    while not result.steady and (
        now() - start < limit_s or len(result.seconds) < 2 * STEADY_WINDOW
    ):
        result.seconds.append(timer.turn(call, batches(), 0).seconds)
        if len(result.seconds) >= 2 * STEADY_WINDOW:
            before = median(result.seconds[-2 * STEADY_WINDOW : -STEADY_WINDOW])
            after = median(result.seconds[-STEADY_WINDOW:])
            result.steady = abs(after - before) < STEADY_CHANGE * before
        if now() - start > 4 * limit_s:  # calls so slow that ten of them are too many
            break
    return result


def calls_per_turn(fastest_s: float) -> int:
    """How many calls one sample holds, the same for everyone in the race."""
    return max(1, min(MAX_CALLS, round(MIN_TURN_S / max(fastest_s, 1e-9))))


def race(
    timer: Clock,
    calls: Mapping[str, Call],
    batches: Callable[[], list[tuple]],
    *,
    rounds: int,
    seed: int,
) -> Iterator[tuple[int, str, list[tuple], Turn | BaseException]]:
    """Every contestant takes one turn a round, on the same inputs, in a new seeded random order.

    calls: may lose contestants while the race goes on. batches: the input sets of a round, all
    new, so that nobody can answer from memory: one for the untimed call, then one per timed call.
    Yields (round, name, input sets, turn) after every turn, the slow ones included; an exception
    that the contestant raised stands in for its turn, an attempt to end the process too.
    """
    order = list(calls)
    shuffle = random.Random(seed).shuffle
    pick = random.SystemRandom().randrange  # which output is looked at is nobody's business
    for index in range(rounds):
        batch = batches()
        shuffle(order)
        for name in order:
            if name not in calls:
                continue
            try:
                turn: Turn | BaseException = timer.turn(calls[name], batch, pick(len(batch) - 1))
            except (Exception, SystemExit) as error:
                turn = error
            yield index, name, batch, turn
