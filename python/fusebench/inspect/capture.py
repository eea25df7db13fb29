"""What torch.compile captured: graphs by op, graph breaks, recompiles, and Inductor's kernels.

Everything comes from what PyTorch offers for looking inside: the structured trace that tlparse
reads, Inductor's provenance, and Inductor's hooks for graph and scheduler passes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

from fusebench.inspect import generated, sites

TRACE_LOG = "torch.__trace"  # where PyTorch writes what tlparse reads


@dataclass(frozen=True)
class Break:
    """A graph break: why Dynamo stopped capturing, and at which line."""

    reason: str
    where: str


@dataclass(frozen=True)
class Recompile:
    """A compilation of a frame that had been compiled: which guard failed, and in which frame."""

    graph: str
    reason: str
    where: str


@dataclass
class Graph:
    """One captured graph. id: Dynamo's compile id, `frame/compilation of that frame`."""

    id: str
    ops: list[tuple[str, str]] = field(default_factory=list)  # (site, op), in order
    kernels: list[generated.Kernel] = field(default_factory=list)
    where: str = ""
    dynamo_graph: str = ""
    post_grad_graph: str = ""
    code: str = ""


@dataclass
class Observation:
    """What the compilations inside `observe` did. compilations: PyTorch's own metrics of each."""

    graphs: list[Graph] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    compilations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kernels(self) -> list[generated.Kernel]:
        return [kernel for graph in self.graphs for kernel in graph.kernels]


@contextlib.contextmanager
def observe(*, kernels: bool = True) -> Iterator[Observation]:
    """Watch every compilation inside the block; the Observation is filled as they happen.

    kernels: also follow Inductor's kernels back to their ops. Compilations then use no cache (a
    cached graph has no scheduler to ask) and C++ kernels show up by name in the profiler.
    """
    observation = Observation()
    handler = _TraceHandler(observation)
    log = logging.getLogger(TRACE_LOG)
    level = log.level
    options: dict[str, Any] = {}
    if kernels:
        options = {
            "force_disable_caches": True,
            "trace.provenance_tracking_level": 1,
            "cpp.enable_kernel_profile": True,
            "pre_grad_custom_pass": _Pass(lambda graph: handler.captured(graph)),
            "post_grad_custom_post_pass": _Pass(lambda graph: handler.lowered(graph)),
            "_post_fusion_custom_pass": lambda scheduled: handler.fused(scheduled),
        }
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with inductor_config.patch(options), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
            yield observation
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _Pass(CustomGraphPass):
    """A graph pass that only looks. `look`: a plain function, as configurations are deep-copied."""

    def __init__(self, look) -> None:
        self.look = look

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.look(graph)

    def uuid(self) -> str:
        return "fusebench.inspect"


class _TraceHandler(logging.Handler):
    """Collects the records of the structured trace, and what the passes saw in between."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(logging.DEBUG)
        self.observation = observation
        self.graph_ops: list[tuple[str, str]] = []
        self.nodes: dict[str, generated.Node] = {}
        self.accesses: list[generated.Access] = []

    def captured(self, graph: torch.fx.Graph) -> None:
        self.graph_ops = [
            (sites.of(n.meta.get("stack_trace") or ""), generated.op_name(n.target))
            for n in graph.nodes
            if n.op in ("call_function", "call_method")
        ]

    def lowered(self, graph: torch.fx.Graph) -> None:
        self.nodes = {n.name: generated.node(n) for n in graph.nodes if n.op == "call_function"}

    def fused(self, scheduled: list[Any]) -> list[Any]:
        self.accesses = [generated.access(node) for node in scheduled]
        return scheduled

    def emit(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        payload = getattr(record, "payload", None)
        text = payload if isinstance(payload, str) else ""
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        artifact = (metadata.get("artifact") or {}).get("name")
        if "dynamo_output_graph" in metadata:
            self._graph(compile_id).dynamo_graph = text
        elif "inductor_output_code" in metadata:
            graph = self._graph(compile_id)
            graph.ops, graph.code = self.graph_ops, text
            graph.kernels = generated.kernels(text, compile_id, self.nodes, self.accesses)
        elif artifact == "inductor_post_grad_graph":
            self._graph(compile_id).post_grad_graph = text
        elif artifact == "inductor_provenance_tracking_node_mappings" and text:  # none when cached
            graph = self._graph(compile_id)
            mapping = json.loads(text).get("cppCodeToPost", {})
            graph.kernels = generated.explained(graph.kernels, mapping, self.nodes)
        elif artifact == "dynamo_graph_break_reason":
            self.observation.breaks.append(_break(text))
        elif artifact == "recompile_reasons":
            self.observation.recompiles.append(Recompile(compile_id, _newest(text), ""))
        elif "compilation_metrics" in metadata:
            self._finished(compile_id, metadata["compilation_metrics"])

    def _graph(self, compile_id: str) -> Graph:
        for graph in self.observation.graphs:
            if graph.id == compile_id:
                return graph
        self.observation.graphs.append(Graph(compile_id))
        return self.observation.graphs[-1]

    def _finished(self, compile_id: str, metrics: dict[str, Any]) -> None:
        self.observation.compilations.append(metrics)
        where = f"{metrics.get('co_filename')}:{metrics.get('co_firstlineno')}"
        where += f" in {metrics.get('co_name')}"
        for graph in self.observation.graphs:
            if graph.id == compile_id:
                graph.where = where
        self.observation.recompiles[:] = [
            Recompile(r.graph, r.reason, where) if r.graph == compile_id else r
            for r in self.observation.recompiles
        ]


def _newest(text: str) -> str:
    """The first of the reasons, which are one for each earlier compilation: what changed since.

    One reason comes as it is, several as a JSON list.
    """
    text = text.strip()
    reasons = json.loads(text) if text.startswith("[") else text.splitlines()
    return str(reasons[0]) if reasons else "no reason given"


_BREAK_WHERE = re.compile(r"Graph break in user code at (\S+:\d+)")
_BREAK_REASON = re.compile(r"Graph Break Reason: (.*?)(?:\n\s*Hint:|\n\s*Developer debug|\Z)", re.S)


def _break(text: str) -> Break:
    where, reason = _BREAK_WHERE.search(text), _BREAK_REASON.search(text)
    words = " ".join((reason.group(1) if reason else text).split())
    return Break(words, where.group(1) if where else "")
