"""What compiled GPU kernels need: registers, spills, shared memory, and what their SASS holds.

Everything here works on machines with no GPU. Triton kernels are compiled ahead of time, CUDA
kernels are read from the built extension module; the tools are the CUDA binary utilities that
Triton's package carries.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

# Per architecture: shared memory of one block and of one SM in KiB (CUDA C++ Programming Guide,
# technical specifications per compute capability). All have 64 warps and 65536 registers per SM.
SHARED_KIB = {80: (163, 164), 86: (99, 100), 89: (99, 100), 90: (227, 228), 100: (227, 228)}
SHARED_KIB |= {103: (227, 228), 120: (99, 100), 121: (99, 100)}
WARPS_PER_SM = {86: 48, 89: 48, 120: 48, 121: 48}
TENSOR_CORE = ("HGMMA", "UTCHMMA", "HMMA")
# SASS mnemonics worth counting, by what a kernel author asks.
COUNTED = {
    "HGMMA": r"\bHGMMA\b", "UTCHMMA": r"\bUTC[A-Z]*MMA\b", "HMMA": r"\bHMMA\b",
    "tma": r"\bUTMA(LDG|STG)\b", "tma_stores": r"\bUTMASTG\b", "async_copies": r"\bLDGSTS\b",
    "loads_16": r"\bLDG\.\S*128\b", "stores_16": r"\bSTG\.\S*128\b",
    "loads": r"\bLDG\b", "stores": r"\bSTG\b",
    "local_loads": r"\bLDL\b", "local_stores": r"\bSTL\b",
}  # fmt: skip


@dataclass
class Resources:
    """One kernel in one configuration on one architecture.

    arch: compute capability * 10. size, configuration: which shapes it is for, and its tile sizes
    (empty for CUDA kernels). matrix: whether its work is matrix products.
    registers: per thread. stack: bytes of local memory per thread: spills, where a kernel has no
    local arrays. shared: bytes per block, static and dynamic. warps: per block (None where the
    launch decides). warps_per_sm: those that fit an SM at once.
    sass: instructions in the program text, by the names of COUNTED.
    problem: why this configuration should not ship, or None.
    """

    op: str
    impl: str
    kernel: str
    arch: int
    dtype: str
    size: str
    configuration: dict[str, object]
    matrix: bool
    registers: int
    stack: int
    shared: int
    warps: int | None
    warps_per_sm: int | None
    sass: dict[str, int] = field(default_factory=dict)
    problem: str | None = None

    @property
    def tensor_core(self) -> str:
        """The tensor-core instructions and their number, `HGMMA 16`, or `-`."""
        return next((f"{n} {self.sass[n]}" for n in TENSOR_CORE if self.sass.get(n)), "-")


def tool(name: str) -> str:
    """Path of a CUDA binary utility in Triton's package; RuntimeError where there is none."""
    try:
        import triton
    except ImportError as error:
        raise RuntimeError(
            f"resources: needs {name}, which the triton package carries; triton is not installed"
        ) from error
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise RuntimeError(f"resources: {path} is missing from the triton package")
    return str(path)


def parse_usage(text: str) -> dict[str, dict[str, int]]:
    """`cuobjdump --dump-resource-usage`: each function's REG, STACK, SHARED, LOCAL, ..."""
    found = {}
    for name, numbers in re.findall(r"Function (\S+):\s*\n\s*(REG:[^\n]*)", text):
        found[name] = {k: int(v) for k, v in re.findall(r"(\w+)(?:\[\d+\])?:(\d+)", numbers)}
    return found


def parse_sass(text: str) -> dict[str, dict[str, int]]:
    """`cuobjdump --dump-sass`: how often each function holds the instructions of COUNTED."""
    counts = {}
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name, _, body = part.partition("\n")
        counts[name.strip()] = {k: len(re.findall(p, body)) for k, p in COUNTED.items()}
    return counts


def warps_that_fit(arch: int, registers: int, shared: int, warps: int) -> int:
    """Occupancy: warps of one kernel that an SM holds at once; 0 where not one block fits.

    Registers are handed out to warps in units of 256; a block's shared memory costs 1 KiB more.
    """
    per_block, per_sm = SHARED_KIB[arch]
    if shared > per_block * 1024:
        return 0
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = 65536 // per_warp // warps if per_warp else 32
    by_shared = per_sm * 1024 // (shared + 1024)
    return min(by_registers, by_shared, WARPS_PER_SM.get(arch, 64) // warps, 32) * warps


def _problem(row: Resources) -> str | None:
    if row.stack or row.sass["local_loads"] or row.sass["local_stores"]:
        return f"spills: {row.stack} bytes of local memory per thread"
    limit = SHARED_KIB[row.arch][0] * 1024
    if row.shared > limit:
        return f"needs {row.shared} bytes of shared memory, sm_{row.arch} has {limit} per block"
    if row.warps_per_sm == 0:
        return f"{row.registers} registers x {row.warps} warps: no block fits an SM"
    if row.matrix and row.tensor_core == "-":
        return "its matrix products use no tensor cores"
    return None


def _dump(path: Path, what: str) -> str:
    return subprocess.run(
        [tool("cuobjdump"), what, str(path)], capture_output=True, text=True, check=True
    ).stdout


def triton_resources(
    op: str, arch: int, dtype_name: str = "bfloat16", only: Collection[str] | None = None
) -> Iterator[Resources]:
    """Compile each configuration of an op's Triton kernels for an architecture and look at it.

    only: the sizes to compile, as the rows name them; all where None.
    """
    from fusebench.triton_kernels import aot

    for spec in aot.specs(op, arch, getattr(torch, dtype_name)):
        if only is not None and spec.size not in only:
            continue
        compiled = spec.compile()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(compiled.asm["cubin"])
            (usage,) = parse_usage(_dump(path, "--dump-resource-usage")).values()
            (sass,) = parse_sass(_dump(path, "--dump-sass")).values()
        shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
        row = Resources(
            op, "triton", spec.kernel, arch, dtype_name, spec.size, spec.configuration,
            spec.matrix, usage["REG"], usage["STACK"] + usage.get("LOCAL", 0), shared, warps,
            warps_that_fit(arch, usage["REG"], shared, warps), sass,
        )  # fmt: skip
        row.problem = _problem(row)
        yield row


def cuda_resources(library: Path, archs: tuple[int, ...]) -> Iterator[Resources]:
    """The CUDA kernels in a built extension module, for those of `archs` it was compiled for.

    Which op a kernel serves is told by its name; block size and dynamic shared memory are chosen
    at launch, so occupancy is not known here.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [tool("cuobjdump"), "--extract-elf", "all", str(library.resolve())],
            cwd=folder, capture_output=True, check=True,
        )  # fmt: skip
        for cubin in sorted(Path(folder).glob("*.cubin")):
            match = re.search(r"sm_(\d+)", cubin.name)
            if match is None or int(match[1]) not in archs:
                continue
            usage = parse_usage(_dump(cubin, "--dump-resource-usage"))
            sass = parse_sass(_dump(cubin, "--dump-sass"))
            for name, counts in sass.items():
                yield _cuda_row(name, int(match[1]), usage[name], counts)


def _cuda_row(symbol: str, arch: int, usage: dict[str, int], sass: dict[str, int]) -> Resources:
    from fusebench.ops import registry

    # The function's own name, without its return type, namespace, template and call arguments.
    called = torch._C._demangle(symbol).replace("(anonymous namespace)::", "")
    name = re.split(r"[<(]", called)[0].split()[-1].rsplit("::", 1)[-1]
    longest_first = sorted(registry.OPS, key=len, reverse=True)
    op = next((o for o in longest_first if o in symbol), "shared")
    row = Resources(
        op, "cuda", name, arch, "", "", {}, False, usage["REG"],
        usage["STACK"] + usage.get("LOCAL", 0), usage.get("SHARED", 0), None, None, sass,
    )  # fmt: skip
    row.problem = _problem(row)
    return row
