"""The clock, the warm-up and the race: order, fairness, and what they do with errors."""

import time

import pytest
import torch

from fusebench.bench import timing


def batches(calls=2):
    return [(i,) for i in range(calls + 1)]


def test_a_turn_times_all_calls_but_the_first():
    seen = []

    def call(i):
        seen.append(i)
        time.sleep(0.5 if i == 0 else 0.01)
        return i

    turn = timing.CpuClock().turn(call, batches(3), kept=1)
    assert seen == [0, 1, 2, 3]
    assert 0.01 <= turn.seconds < 0.25
    assert (turn.output, turn.last, turn.host_seconds) == (2, 3, None)


def test_every_round_holds_everyone_once_on_the_same_inputs():
    calls = {name: lambda i: i for name in "abcd"}
    made = []

    def make():
        made.append(batches())
        return made[-1]

    turns = list(timing.race(timing.CpuClock(), calls, make, rounds=6, seed=3))
    orders = ["".join(name for r, name, _, _ in turns if r == i) for i in range(6)]
    assert all(sorted(order) == list("abcd") for order in orders)
    assert len(set(orders)) > 1
    assert all(batch is made[index] for index, _, batch, _ in turns)
    again = list(timing.race(timing.CpuClock(), calls, make, rounds=6, seed=3))
    assert [t[:2] for t in again] == [t[:2] for t in turns]


def test_an_exception_stands_in_for_the_turn_and_a_contestant_may_leave():
    def broken(i):
        raise RuntimeError("no")

    calls = {"good": lambda i: i, "bad": broken}
    failures = 0
    for _, name, _, turn in timing.race(timing.CpuClock(), calls, batches, rounds=4, seed=0):
        if isinstance(turn, Exception):
            failures += 1
            del calls[name]
    assert failures == 1


def test_warm_up_waits_until_steady():
    slow = iter([0.02] * 8 + [0.002] * 1000)
    warm = timing.warm_up(timing.CpuClock(), lambda: time.sleep(next(slow)), lambda: [(), ()])
    if warm.steady:  # a busy machine may not let it become steady
        assert len(warm.seconds) >= 2 * timing.STEADY_WINDOW
    assert warm.seconds[0] > warm.seconds[-1]


def test_warm_up_gives_up_and_says_so():
    growing = iter(range(1, 1000))
    warm = timing.warm_up(
        timing.CpuClock(), lambda: time.sleep(0.001 * next(growing) ** 2), lambda: [(), ()],
        limit_s=0.05,
    )  # fmt: skip
    assert not warm.steady


@pytest.mark.parametrize("fastest, calls", [(5e-3, 1), (1e-4, 10), (1e-7, timing.MAX_CALLS)])
def test_a_sample_lasts_about_a_millisecond(fastest, calls):
    assert timing.calls_per_turn(fastest) == calls


@pytest.mark.gpu
def test_device_time_is_not_host_time():
    device = torch.device("cuda")
    x = torch.randn(2048, 2048, device=device)
    turn = timing.clock(device).turn(torch.mm, [(x, x)] * 4, 0)
    assert turn.host_seconds is not None and turn.host_seconds > 0
    assert 1e-5 < turn.seconds < 1e-1


@pytest.mark.gpu
def test_a_captured_call_gives_the_same_and_takes_no_longer():
    device = torch.device("cuda")
    x, y = (torch.randn(64, 64, device=device) for _ in range(2))

    def chain(a):
        for _ in range(20):
            a = a + 1
        return a

    graphed = timing.Graphed(chain, (x,))
    assert torch.equal(graphed(y).clone(), chain(y))
    clock = timing.clock(device)
    plain = min(clock.turn(chain, [(x,), (y,)], 0).seconds for _ in range(5))
    assert min(clock.turn(graphed, [(x,), (y,)], 0).seconds for _ in range(5)) <= 1.1 * plain
