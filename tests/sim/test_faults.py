"""Each detector of the simulator catches its planted fault, whatever the schedule."""

import re
from pathlib import Path

import pytest
from sim_programs import ROOT, TIMINGS, compile_cxx, run_cases

# Case of faults.cu -> what its report must say. A race may show in several ways.
UNORDERED = "without being ordered after"
FAULTS = {
    "global1": "4 bytes at offset 512 of buffer 0 are out of bounds",
    "global2": "is not aligned to its 4 bytes",
    "global3": "buffer 0 is declared read-only",
    "global4": "buffer 1 is read at offset .* before anything wrote it",
    "global5": "nothing wrote its bytes from offset 308 on",
    "global6": "race: global store at offset 0 of buffer 1",
    "global7": "race: global load at offset .* of buffer 2 is not ordered after a write by block",
    "global8": "buffer 2 is written in this launch",
    "global9": "trap: as asked",
    "global10": "4 bytes at offset -4 of buffer 2 are out of bounds",
    "global11": "race: global load at offset .* of buffer 2 is not ordered after a write by block",
    "global12": "of buffer 2 are out of bounds",
    "overlap": "buffers 0 and 1 of the launch overlap",
    "shared1": "is outside the 256 bytes of the launch",
    "shared2": "is not aligned to 8 bytes",
    "shared3": "deadlock.*sync_warp; lanes 00000020 have exited",
    "shared4": "reads shared .*, which nothing has written",
    "shared5": f"race: shared load reads .* {UNORDERED} its writer",
    "shared6": f"race: shared store overwrites .* {UNORDERED} its last write",
    "shared7": "warp diverged: some lanes are at",
    "shared8": f"race: shared store overwrites .* {UNORDERED} a read of it",
    "shared9": "deadlock.*lanes ffffff00 have exited",
    "shared10": "deadlock.*barrier 0: 32 of 64 threads have arrived",
    "shared11": "deadlock.*shfl; lanes 55555555 have exited",
    "shared12": "barrier 1: some expect|deadlock.*barrier 1: 32 of 64",
    "shared13": "deadlock.*barrier 2: 32 of 64 threads have arrived",
    "shared14": "is outside the 256 bytes of the launch",
    "uninitialised": "reads shared .*, which nothing has written",
    "arrive1": f"race: shared load reads .* {UNORDERED} its writer",
    "arrive2": "race: shared load reads|which nothing has written",
    "arrive3": "barrier 1( waiting)?: 32 of 64 threads have arrived",
    "copy1": "cp.async: source .* is not aligned to 16 bytes",
    "copy2": "cp.async copies 0 to 16 bytes, not 17",
    "copy3": "while an asynchronous copy into it is in flight",
    "copy4": "shared store writes .* while an asynchronous copy into it is in flight",
    "copy5": "while an asynchronous copy into it is in flight",
    "copy6": f"{UNORDERED} its writer|in flight|nothing has written",
    "copy7": "cp.async copies not waited for",
    "copy8": f"{UNORDERED} its writer|in flight|nothing has written",
    "copy9": "cp.async: 16 bytes at offset 2048 of buffer 0 are out of bounds",
    "hopper1": "is not a multiple of the swizzle pattern's 1024 bytes",
    "hopper2": "the descriptor has swizzle mode 2, but the TMA load wrote with mode 1",
    "hopper3": "mbarrier at .* is not initialised",
    "hopper4": r"deadlock.*full\[0\]: in phase 0, arrivals missing 1 of 2, bytes missing 0",
    "hopper5": r"full\[0\] was initialised without a fence to the async proxy",
    "hopper6": r"full\[0\] is already initialised",
    "hopper7": "deadlock.*bytes missing -1",
    "hopper8": "deadlock.*bytes missing 16",
    "hopper9": f"race: TMA load (writes .* in flight|overwrites .* {UNORDERED})",
    "hopper10": "shared store overwrites an mbarrier",
    "hopper11": "is not initialised|race: mbar_try_wait uses .* its mbar_init",
    "hopper12": f"race: wgmma .* reads .*(in flight|{UNORDERED} its writer)",
    "hopper13": "race: wgmma .* in flight|deadlock.*to complete parity 1",
    "hopper14": "accumulators used without wgmma_fence",
    "hopper15": "operand B does not start on a row 0 of its swizzle pattern",
    "hopper16": "operand A's registers were modified while the multiply was in flight",
    "hopper17": "operands differ within the warp group",
    "hopper18": "accumulator register 3 was modified while its multiply was in flight",
    "hopper19": f"race: (shared store|wgmma) .*(in flight|{UNORDERED})",
    "hopper20": "an accumulator is read while its multiply is in flight",
    "hopper21": "thread exits with multiplies not waited for",
    "hopper22": "TMA store reads .* without fence_proxy_async",
    "hopper23": f"TMA store reads .*({UNORDERED} its writer|nothing has written)",
    "hopper24": "thread exits with a TMA store not committed",
    "hopper25": "race: shared store overwrites .* asynchronous read of it is in flight",
    "hopper26": "thread exits before its TMA store was waited for",
    "hopper27": "setmaxnreg: warp 1 has 0 registers, warp 0 of its group 232",
    "hopper28": "setmaxnreg_inc<32>, but the warp has 248 registers",
    "hopper29": f"race: (TMA store reads|shared store overwrites) .*({UNORDERED}|in flight)",
    "hopper30": r"exits with full\[0\] inside phase 1: .* bytes missing 64",
    "hopper31": "TMA load: 128 bytes at offset 7936 of buffer 0 are out of bounds",
    "registers": "the warps ask for 66560 registers",
    "endless": "still running after 20000 steps",
    "bad_map": "tensor map: stride 0 is 120 bytes, not a multiple of 16",
}
RIGHT = ["global0", "shared0", "arrive0", "copy0", "hopper0", "atomic"]


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_planted_fault_is_caught(sim_program, timing: str, seed: int) -> None:
    program = sim_program(Path(__file__).with_name("faults.cu"))
    reports = run_cases(program, seed=seed, timing=timing)
    assert sorted(reports) == sorted([*FAULTS, *RIGHT])
    missed = {n: reports[n] for n, want in FAULTS.items() if not re.search(want, reports[n])}
    assert not missed
    assert {n: reports[n] for n in RIGHT} == dict.fromkeys(RIGHT, "ok")


def test_the_portable_switch(sim_program, sim_objects, tmp_path: Path) -> None:
    """Machines that are not x86-64 switch fibres with ucontext."""
    portable = tmp_path / "fiber.o"
    compile_cxx("-DFUSEBENCH_SIM_UCONTEXT", "-c", ROOT / "csrc/sim/fiber.cpp", "-o", portable)
    objects = [portable, *(o for o in sim_objects if o.name != "fiber.o")]
    program = tmp_path / "faults"
    source = Path(__file__).with_name("faults.cu")
    compile_cxx("-o", program, "-x", "c++", source, "-x", "none", *objects)
    reports = run_cases(program, *RIGHT, "shared5", "hopper12")
    assert {n: reports[n] for n in RIGHT} == dict.fromkeys(RIGHT, "ok")
    assert "race" in reports["shared5"] and "race" in reports["hopper12"]


def test_report_names_kernel_block_thread_and_line(sim_program) -> None:
    program = sim_program(Path(__file__).with_name("faults.cu"))
    report = run_cases(program, "shared14")["shared14"]
    lines = Path(__file__).with_name("faults.cu").read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "fault == 14) v +=" in text)
    assert report.startswith(
        "simulated kernel shared (grid 1x1x1, 64 threads, 256 bytes of shared memory): "
        f"block (0, 0, 0), thread 3 (warp 0, lane 3), faults.cu:{line}: shared load: "
    )
