"""The figures of docs/triton.md that no command measures: attention by head and length, backwards
too, the loss with its memory, and a training step. On a GPU:

    python tools/gpu_figures.py FILE.json

Every contestant is judged against float32 before it is timed. `--tiny` runs all of it in small on a
CPU, under TRITON_INTERPRET=1, where times mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusebench import GPT, GPTConfig, ops
from fusebench.bench import guard, statistics, timing, verify
from fusebench.bench.environment import environment
from fusebench.report.results import Results
from fusebench.report.table import Column, field, interval, significant
from fusebench.variant import Variant

Calls = dict[str, Callable[[], Any]]  # the first is ours, the second the reference of the accuracy
Figure = tuple[str, Calls, Callable[[], Any]]  # name, contestants, what is true
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
STEPS = (
    "triton@default", "reference@default", "triton,swiglu_ffn=triton_recompute@default",
    "reference@max-autotune-no-cudagraphs",
)  # fmt: skip


class Sizes:
    """What is measured on a GPU, or in small."""

    def __init__(self, tiny: bool) -> None:
        self.device = torch.device("cpu" if tiny else "cuda")
        self.lengths = (24,) if tiny else (2048, 4096, 8192, 16384)
        self.tokens, self.heads = (24, 2) if tiny else (16384, 16)
        self.head_dims = (64, 128)
        self.vocabulary, self.width = (301, 32) if tiny else (50304, 768)
        self.batch, self.seq = (1, 9) if tiny else (8, 1024)
        small = GPTConfig(vocab_size=97, n_embed=32, num_heads=2, num_layers=1)
        self.model = small if tiny else GPTConfig.preset("gpt2-small")
        self.steps = ("triton@eager", "reference@eager") if tiny else STEPS
        self.backends = ("MATH",) if tiny else BACKENDS
        self.rounds = 3 if tiny else 15

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).bfloat16()


def attention(sizes: Sizes) -> Iterator[Figure]:
    """Causal sdpa, forward and backward, ours and torch's backends."""
    for d in sizes.head_dims:
        for t in sizes.lengths:
            yield from _attention(sizes, d, t)


def _attention(sizes: Sizes, d: int, t: int) -> Iterator[Figure]:
    shape = (sizes.tokens // t, sizes.heads, t, d)
    leaves = [sizes.normal(*shape).requires_grad_() for _ in range(3)]
    wide = [x.detach().float().requires_grad_() for x in leaves]
    given = sizes.normal(*shape)

    def plain(*args: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*args, is_causal=True)

    def by(backend: str) -> Tensor:
        if backend == "triton":
            return ops.sdpa(*leaves, impl="triton")  # type: ignore[arg-type]
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return plain(*leaves)

    def forward(backend: str) -> Tensor:
        with torch.no_grad():
            return by(backend)

    outputs: dict[str, Tensor] = {}

    def backward(backend: str) -> tuple[Tensor, ...]:
        if backend not in outputs:  # not before its turn: a backend may refuse
            outputs[backend] = by(backend)
        return torch.autograd.grad(outputs[backend], leaves, given, retain_graph=True)

    contestants = ("triton", *sizes.backends)
    calls: Calls = {c: partial(forward, c) for c in contestants}
    yield f"sdpa forward, d{d}, T {t}", calls, lambda: plain(*wide)
    calls = {c: partial(backward, c) for c in contestants}
    truth = lambda: torch.autograd.grad(plain(*wide), wide, given.float())  # noqa: E731
    yield f"sdpa backward, d{d}, T {t}", calls, truth


def loss(sizes: Sizes) -> Iterator[Figure]:
    """Head and loss of a training batch, forward and backward."""
    x, weight = sizes.normal(sizes.tokens, sizes.width), sizes.normal(sizes.vocabulary, sizes.width)
    weight = weight * sizes.width**-0.5
    targets = torch.randint(sizes.vocabulary, (sizes.tokens,), device=sizes.device)

    def step(function: Callable[..., Tensor], *args: Tensor) -> tuple[Tensor, ...]:
        leaves = [a.detach().requires_grad_() for a in args]
        value = function(*leaves, targets)
        return value.detach(), *torch.autograd.grad(value, leaves)

    compiled = torch.compile(ops.linear_cross_entropy) if sizes.device.type == "cuda" else (
        ops.linear_cross_entropy
    )  # fmt: skip
    ours = partial(ops.linear_cross_entropy, impl="triton")
    calls: Calls = {"triton": partial(step, ours, x, weight)}
    calls["reference@default"] = partial(step, compiled, x, weight)
    name = f"loss forward + backward, V {sizes.vocabulary}, {sizes.tokens} tokens"
    yield name, calls, partial(step, ops.linear_cross_entropy, x.float(), weight.float())


def training(sizes: Sizes) -> Iterator[Figure]:
    """One forward and backward pass of a GPT: its loss is what is judged."""
    shape = (sizes.batch, sizes.seq + 1)
    tokens = torch.randint(sizes.model.vocab_size, shape, device=sizes.device)

    def step(variant: Variant | None, dtype: torch.dtype) -> Callable[[], Tensor]:
        torch.manual_seed(0)
        model = GPT(sizes.model, variant.plan if variant else "reference")
        model = model.to(sizes.device, dtype)
        run: Any = model
        if variant is not None and variant.mode.compiled:
            run = torch.compile(model, mode=variant.mode.name)

        def call() -> Tensor:
            value = run(tokens[:, :-1], targets=tokens[:, 1:])["loss"]
            value.backward()
            model.zero_grad(set_to_none=True)
            return value.detach()

        return call

    made: dict[str, Callable[[], Tensor]] = {}

    def once(name: str) -> Tensor:
        if name not in made:
            made[name] = step(Variant.parse(name), torch.bfloat16)
        return made[name]()

    calls: Calls = {name: partial(once, name) for name in sizes.steps}
    yield "training step", calls, lambda: step(None, torch.float32)()


def measure(figure: Figure, sizes: Sizes, clock: timing.Clock) -> Iterator[dict[str, Any]]:
    """A row per contestant: its median, our speed-up over it, and the memory that it took."""
    name, calls, truth = figure
    right = _doubled(truth())
    rows: dict[str, dict[str, Any]] = {}
    reference = None
    for contestant in (*list(calls)[1:], next(iter(calls))):  # ours last: judged like the second
        row = rows[contestant] = {"figure": name, "contestant": contestant, "failure": None}
        try:
            memory = torch.cuda.memory_allocated() if sizes.device.type == "cuda" else 0
            if memory:
                torch.cuda.reset_peak_memory_stats()
            result = calls[contestant]()
            if memory:
                peak = torch.cuda.max_memory_allocated() - memory
                row["memory_mib"] = peak / 2**20
            if reference is None and contestant == next(iter(calls)):
                raise RuntimeError("nothing of torch's ran that it could be judged by")
            reference = result if reference is None else reference
            row["failure"] = verify.judge(result, right, reference).reason
        except Exception as error:
            row["failure"] = guard.reason(error)
    running = {c: calls[c] for c in calls if rows[c]["failure"] is None}
    samples: dict[str, list[float]] = {c: [] for c in running}
    batches = lambda: [(), ()]  # noqa: E731
    for _, contestant, _, turn in timing.race(
        clock, running, batches, rounds=sizes.rounds, seed=0
    ):  # fmt: skip
        if isinstance(turn, BaseException):
            raise turn
        samples[contestant].append(turn.seconds)
    ours = samples.get(next(iter(calls)))
    for contestant, row in rows.items():
        if contestant in samples:
            row["median_ms"] = statistics.median(samples[contestant]) * 1e3
            if ours:
                row["triton_speedup"] = statistics.speedup(ours, samples[contestant]).as_dict()
        yield row


def _doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double()
    return tuple(_doubled(v) for v in value)


TABLE = (
    field("figure", left=True),
    field("contestant", left=True),
    field("median_ms", "ms", significant),
    field("triton_speedup", "triton is faster by [95%]", interval),
    Column("MiB", lambda r: f"{r['memory_mib']:.0f}" if "memory_mib" in r else "-"),
)


def main(path: str, tiny: bool) -> int:
    """Measure everything; Ctrl-C ends it and keeps what is there."""
    sizes, rows, interrupted = Sizes(tiny), [], False
    torch.manual_seed(0)
    clock = timing.clock(sizes.device)
    try:
        for figures in (attention, loss, training):
            for figure in figures(sizes):
                rows += measure(figure, sizes, clock)
                print(figure[0], flush=True)
    except KeyboardInterrupt:
        interrupted = True
    results = Results(
        "figures", rows, environment(), {"tiny": tiny, "dtype": "bfloat16"}, (TABLE,), [],
        interrupted,
    )  # fmt: skip
    results.to_json(path)
    print(results.table())
    return int(any(row["contestant"].startswith("triton") for row in results.failed))


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--tiny"]
    if len(arguments) != 1:
        sys.exit("usage: gpu_figures.py FILE.json [--tiny]")
    sys.exit(main(arguments[0], "--tiny" in sys.argv))
