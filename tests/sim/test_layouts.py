"""The table of layouts against the PTX ISA's, written here as data; and probes that use them."""

import subprocess
from pathlib import Path

import pytest
from sim_programs import TIMINGS, run_cases

# PTX ISA 9.0: sections "Matrix Fragments for mma.m16n8k16", "ldmatrix", "Register Fragments and
# Shared Memory Matrix Layouts" of wgmma, "Swizzling Modes" of tensors. Row,column of each element a
# lane holds, in the order of its registers.
FRAGMENTS = """
lane 0
mma_a 0,0 0,1 8,0 8,1 0,8 0,9 8,8 8,9
mma_b 0,0 1,0 8,0 9,0
mma_c 0,0 0,1 8,0 8,1
ldmatrix 0,0 0,1
ldmatrix_trans 0,0 1,0
lane 1
mma_a 0,2 0,3 8,2 8,3 0,10 0,11 8,10 8,11
mma_b 2,0 3,0 10,0 11,0
mma_c 0,2 0,3 8,2 8,3
ldmatrix 0,2 0,3
ldmatrix_trans 2,0 3,0
lane 4
mma_a 1,0 1,1 9,0 9,1 1,8 1,9 9,8 9,9
mma_b 0,1 1,1 8,1 9,1
mma_c 1,0 1,1 9,0 9,1
ldmatrix 1,0 1,1
ldmatrix_trans 0,1 1,1
lane 7
mma_a 1,6 1,7 9,6 9,7 1,14 1,15 9,14 9,15
mma_b 6,1 7,1 14,1 15,1
mma_c 1,6 1,7 9,6 9,7
ldmatrix 1,6 1,7
ldmatrix_trans 6,1 7,1
lane 31
mma_a 7,6 7,7 15,6 15,7 7,14 7,15 15,14 15,15
mma_b 6,7 7,7 14,7 15,7
mma_c 7,6 7,7 15,6 15,7
ldmatrix 7,6 7,7
ldmatrix_trans 6,7 7,7
thread 0
wgmma_c 0,0 0,1 8,0 8,1 0,8 0,9 8,8 8,9
wgmma_a 0,0 0,1 8,0 8,1 0,8 0,9 8,8 8,9
thread 5
wgmma_c 1,2 1,3 9,2 9,3 1,10 1,11 9,10 9,11
wgmma_a 1,2 1,3 9,2 9,3 1,10 1,11 9,10 9,11
thread 33
wgmma_c 16,2 16,3 24,2 24,3 16,10 16,11 24,10 24,11
wgmma_a 16,2 16,3 24,2 24,3 16,10 16,11 24,10 24,11
thread 127
wgmma_c 55,6 55,7 63,6 63,7 55,14 55,15 63,14 63,15
wgmma_a 55,6 55,7 63,6 63,7 55,14 55,15 63,14 63,15
swizzle 1
row 0 1 2 3 4 5 6 7
row 1 0 3 2 5 4 7 6
row 2 3 0 1 6 7 4 5
row 3 2 1 0 7 6 5 4
row 4 5 6 7 0 1 2 3
row 5 4 7 6 1 0 3 2
row 6 7 4 5 2 3 0 1
row 7 6 5 4 3 2 1 0
swizzle 2
row 0 1 2 3
row 0 1 2 3
row 1 0 3 2
row 1 0 3 2
row 2 3 0 1
row 2 3 0 1
row 3 2 1 0
row 3 2 1 0
swizzle 3
row 0 1
row 0 1
row 0 1
row 0 1
row 1 0
row 1 0
row 1 0
row 1 0
k_major_none 4096 4224 4208 4352
k_major_128 4112 4240 5088 5120
mn_major_128 4112 4240 5120 12288
box_bytes 6144
descriptor 4096 128 1024 0 2
"""


def test_layouts_are_those_of_the_ptx_isa(sim_program) -> None:
    program = sim_program(Path(__file__).with_name("layouts_dump.cpp"))
    got = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert got.strip().splitlines() == FRAGMENTS.strip().splitlines()


@pytest.mark.parametrize("timing", TIMINGS)
def test_probes(sim_program, timing: str) -> None:
    reports = run_cases(sim_program(Path(__file__).with_name("probe.cu")), timing=timing)
    assert len(reports) == 19
    assert {n: r for n, r in reports.items() if r != "ok"} == {}
