"""Inductor's kernels: which ops each one fused, for which sites, and the bytes it moves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusebench.inspect import sites

# Ops that move nothing: they are part of a kernel's origin, but not of its work.
VIEWS = frozenset(
    "alias as_strided chunk detach expand getitem permute reshape select slice split "
    "split_with_sizes squeeze t transpose unsafe_split unsqueeze view _unsafe_view".split()
)
_HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+):(\d+)")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
# A frozen weight as the generated code lists it: its name, dtype and sizes.
_CONSTANT = re.compile(r"^(\w+) = None  # device\(.*?\) torch\.(\w+) \(([\d, ]*)\) \(([\d, ]*)\)")


@dataclass(frozen=True)
class Kernel:
    """One kernel call of a compiled graph.

    name: as the generated code calls it. handle: its number in Inductor's provenance.
    kind: "generated", "extern" (a library's), or "handwritten" (an op of fusebench).
    ops: the ATen ops (or the op of fusebench) that it computes, views left out.
    bytes_in, bytes_out: Inductor's own count: every buffer once, at most its size (a frozen weight
    whole, which Inductor does not count); None where the scheduler did not account for the call.
    """

    graph: str
    name: str
    handle: int
    kind: str
    ops: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    bytes_in: int | None = None
    bytes_out: int | None = None


@dataclass(frozen=True)
class Node:
    """A node of the graph that Inductor lowers: the op it was before decomposition, its site."""

    target: str
    op: str
    site: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Access:
    """The buffers that one scheduled node makes, and the bytes it reads and writes, by buffer."""

    makes: frozenset[str]
    reads: Mapping[str, int]
    writes: Mapping[str, int]


def op_name(target: Any) -> str:
    """`linear`, `aten.addmm`, `fusebench.swiglu_ffn_cpp`: a node's target as people write it."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket)
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def node(n: torch.fx.Node) -> Node:
    """What a node of the post-grad graph says about itself."""
    original = n.meta.get("original_aten")
    target = op_name(n.target)
    return Node(
        target,
        op_name(original) if original is not None else target,
        sites.of(n.meta.get("stack_trace") or ""),
        tuple(i.name for i in n.all_input_nodes),
    )


def access(scheduled: Any) -> Access:
    """Inductor's count for one scheduled node; a fused one counts a buffer as its largest reader.

    (A fused node's own count takes the whole buffer, also where an embedding reads some rows.)
    """
    parts = scheduled.get_nodes()
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    for part in parts:
        for total, wanted in ((reads, (True, False)), (writes, (False, True))):
            for name, size in part.get_read_write_buffer_accesses(*wanted).items():
                total[name] = max(total.get(name, 0), int(size))
    return Access(frozenset(scheduled.get_buffer_names()), reads, writes)


def kernels(
    code: str, graph: str, nodes: Mapping[str, Node], accesses: Sequence[Access]
) -> list[Kernel]:
    """The kernel calls in generated code, in order, with their bytes.

    A scheduled node belongs to the first call that mentions one of the buffers it makes; one whose
    buffers live on under another name (reused in place) belongs to the call of the next node.
    """
    found: list[Kernel] = []
    mentions: list[set[str]] = []
    lines = code.splitlines()
    constants = _constants(lines)
    for number, line in enumerate(lines):
        match = _HANDLE.search(line)
        if match:
            name = match.group(1)
            found.append(Kernel(graph, name, int(match.group(2)), _kind(name)))
            call = next((x for x in lines[number + 1 :] if _called(name, x)), "")
            mentions.append(set(_NAME.findall(call)))
    groups: list[list[Access]] = [[] for _ in found]
    waiting: list[Access] = []
    for entry in accesses:
        if not entry.reads and not entry.writes:
            continue  # names a part of another node's result
        waiting.append(entry)
        owner = next((i for i, names in enumerate(mentions) if names & entry.makes), None)
        if owner is not None:
            groups[owner] += waiting
            waiting = []
    return [
        _with_bytes(kernel, group, sum(constants.get(name, 0) for name in names))
        for kernel, group, names in zip(found, groups, mentions)
    ]


def _constants(lines: Sequence[str]) -> dict[str, int]:
    """Bytes of the frozen weights; a packed copy (stride 0) stands beside its plain original."""
    sizes = {}
    for match in filter(None, map(_CONSTANT.match, lines)):
        name, dtype, shape, strides = match.groups()
        if "0" not in strides.replace(" ", "").split(","):
            elements = math.prod(int(n) for n in shape.replace(" ", "").split(",") if n)
            sizes[name] = elements * getattr(torch, dtype).itemsize
    return sizes


def _called(name: str, line: str) -> bool:
    return not line.lstrip().startswith("#") and name.removesuffix(".default") in line


def _kind(name: str) -> str:
    if name.startswith("torch.ops.fusebench."):
        return "handwritten"
    if name.startswith(("extern_kernels.", "torch.ops.", "aten.")):
        return "extern"
    return "generated"


def _with_bytes(kernel: Kernel, group: list[Access], constants: int) -> Kernel:
    if not group:
        return kernel
    made = frozenset().union(*(entry.makes for entry in group))
    reads: dict[str, int] = {}
    for entry in group:
        for name, size in entry.reads.items():
            if name not in made:
                reads[name] = max(reads.get(name, 0), size)
    written = sum(sum(entry.writes.values()) for entry in group)
    return replace(kernel, bytes_in=sum(reads.values()) + constants, bytes_out=written)


def explained(
    found: Sequence[Kernel], mapping: Mapping[str, Sequence[str]], nodes: Mapping[str, Node]
) -> list[Kernel]:
    """Kernels with their ops and sites, from Inductor's map of kernels to post-grad nodes.

    The map lists the producers of a kernel's inputs too. What an extern kernel computes is the
    node of its name, and no generated kernel computes that one.
    """
    order = {name: number for number, name in enumerate(nodes)}
    origins = [
        sorted(
            {n for n in mapping.get(f"{k.name}:{k.handle}", ()) if n in nodes},
            key=lambda n: order[n],
        )
        for k in found
    ]
    itself = [
        [] if k.kind == "generated" else [n for n in names if _last(nodes[n].target) == _bare(k)]
        for k, names in zip(found, origins)
    ]
    taken = {name for names in itself for name in names}
    result = []
    for kernel, names, own in zip(found, origins, itself):
        work = own or _computed(names, taken, nodes)
        result.append(
            replace(
                kernel,
                ops=tuple(dict.fromkeys(nodes[n].op for n in work)),
                sites=sites.ordered(nodes[n].site for n in work),
            )
        )
    return result


def _computed(names: Sequence[str], taken: set[str], nodes: Mapping[str, Node]) -> list[str]:
    """What a generated kernel computes, of the nodes in its origin: its results, and what leads to
    them without passing through an extern kernel (`taken`)."""
    users: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        for source in nodes[name].inputs:
            users.get(source, []).append(name)

    def leads_on(name: str) -> bool:
        return any(user not in taken or leads_on(user) for user in users[name])

    reached: set[str] = set()
    ahead = [name for name in names if name not in taken and not leads_on(name)]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += [i for i in nodes[name].inputs if i in users and i not in taken]
    kept = [name for name in names if name in reached]
    return [name for name in kept if not _is_view(nodes[name])] or kept or list(names)


def _is_view(node: Node) -> bool:
    return _last(node.op) in VIEWS or _last(node.target) in VIEWS


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _bare(kernel: Kernel) -> str:
    """`addmm` of `extern_kernels.addmm`, `_mkl_linear` of `torch.ops.mkl._mkl_linear.default`."""
    return _last(kernel.name.removesuffix(".default"))
