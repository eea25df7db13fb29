"""Checks that the CUDA kernels reach memory and instructions only through the wrappers of ptx.cuh.

What goes around them would compile for a GPU, but the simulator would not see it.

    python tools/lint_kernels.py [FILE...]     (default: csrc/cuda, but for the wrappers' files)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "csrc/cuda"
WRAPPERS = ("ptx.cuh", "ptx_sm90.cuh", "launch.cuh")

RULES = [
    (r"\basm\b", "inline assembly: add a wrapper to ptx.cuh, with its twin in csrc/sim/ptx_sim.h"),
    (r"__shared__|\b__cvta\w*", "shared memory by pointer: name it by smem_t addresses"),
    (r"<<<", "a launch without launch(): the simulator cannot start it"),
    (r"\b__(?!restrict__\b|FILE__\b|LINE__\b)\w+", "an intrinsic or attribute without a wrapper"),
    (r"\batomic[A-Z]\w*\s*\(", "an atomic without a wrapper: use atomic_add"),
    (r"\b(?:clock|clock64|nanosleep|printf|assert)\s*\(", "a device function without a wrapper"),
    (r"#\s*include\s*[<\"](?:cuda|mma\b|cooperative_groups|cub/|cute/|cutlass/)",
     "a CUDA header: ptx.cuh and launch.cuh include what there is"),
    (r"#\s*include\s*[<\"](?:torch|ATen|c10)/", "a torch header: kernels take raw pointers"),
    (r"\*\s*(?:reinterpret_cast|static_cast)\s*<",
     "memory read or written directly: use ldg or stg"),
]  # fmt: skip
POINTER = re.compile(
    r"\b(?:T|V|bf16|fp16|float[24]?|uint[24]|u?int\d*(?:_t)?|void)\s*(?:const\s*)?"
    r"((?:\*\s*\w+\s*(?:=[^,;()]*)?,?\s*)+)"
)
# Local arrays, references to arrays, and arrays of pointers.
ARRAYS = re.compile(
    r"\b(?:float2?|int|uint32_t|uint4|bool|smem_t|T)\s+((?:\w+\s*\[[^\]]*\][\s,]*)+)"
    r"|(\(&\w+\)\s*\[)|\*\s*(\w+\s*\[\w+::)"
)
CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.S)


def without_comments(text: str) -> str:
    """The code with comments blanked and strings emptied, its lines where they were."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        line_start = text.rfind("\n", 0, match.start()) + 1
        if found[0] == '"' and text[line_start : match.start()].lstrip().startswith("#"):
            return found  # the file an #include names
        return "".join(c if c == "\n" else " " for c in found)

    return CODE.sub(blank, text)


def problems(text: str) -> list[tuple[int, str]]:
    """(line, what is wrong) for each place in a kernel file."""
    code = without_comments(text)
    found = [
        (code.count("\n", 0, m.start()) + 1, f"{m.group().strip()}: {why}")
        for pattern, why in RULES
        for m in re.finditer(pattern, code)
    ]
    pointers = {n for m in POINTER.finditer(code) for n in re.findall(r"\*\s*(\w+)", m.group(1))}
    arrays = {n for m in ARRAYS.finditer(code) for n in re.findall(r"(\w+)\)?\s*\[", m.group())}
    for name in sorted(pointers - arrays):
        # `name[` reads memory; so does `*name` where nothing stands before it to multiply.
        access = rf"(?<![\w.&]){name}\s*\[|(?:[=(;{{}}?:]|return)\s*\*\s*{name}\b"
        for m in re.finditer(access, code):
            line = code.count("\n", 0, m.start()) + 1
            if not POINTER.search(code[code.rfind("\n", 0, m.end()) + 1 : m.end()]):
                found.append((line, f"{name}: memory read or written directly: use ldg or stg"))
    return sorted(set(found))


def main(arguments: list[str]) -> int:
    files = [Path(a) for a in arguments] or [
        p for p in sorted(KERNELS.glob("*.cu*")) if p.name not in WRAPPERS
    ]
    bad = 0
    for path in files:
        for line, why in problems(path.read_text()):
            print(f"{path}:{line}: {why}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
