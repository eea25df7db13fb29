"""Mutation tests: a one-line edit of a GEMM loop, and the simulator or the result notices."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import Mutants, names, noticed, noticed_by

CASES = Path(__file__).with_name("gemm_cases.cu")
SM80, SM90, FEW_ROWS = "gemm_sm80.cuh", "gemm_sm90.cuh", "gemm_few_rows.cuh"
EPILOGUES = "epilogues.cuh"

MUTANTS: Mutants = {
    # --- sm_90a: barriers
    "full counts 2": (SM90, "mbar_init(full + s * 8, 1);", "mbar_init(full + s * 8, 2);"),
    "empty counts 9": (SM90, "mbar_init(empty + s * 8, 8);", "mbar_init(empty + s * 8, 9);"),
    "empty counts 7": (SM90, "mbar_init(empty + s * 8, 8);", "mbar_init(empty + s * 8, 7);"),
    "empty counts 4": (SM90, "mbar_init(empty + s * 8, 8);", "mbar_init(empty + s * 8, 4);"),
    "no init fence": (SM90, "fence_mbar_init();", ""),
    "no barrier after init": (SM90, "sync_block();", ""),
    "empty not waited for": (SM90, "mbar_wait(empty + ring.stage * 8, ring.parity ^ 1);", ""),
    "empty parity": (
        SM90,
        "empty + ring.stage * 8, ring.parity ^ 1)",
        "empty + ring.stage * 8, 1)",
    ),
    "too few bytes": (SM90, "(bar, Tile::STAGE_BYTES)", "(bar, Tile::STAGE_BYTES - 16)"),
    "too many bytes": (SM90, "(bar, Tile::STAGE_BYTES)", "(bar, Tile::STAGE_BYTES + 16)"),
    "full not waited for": (SM90, "mbar_wait(full + ring.stage * 8, ring.parity);", ""),
    "full parity": (SM90, "(full + ring.stage * 8, ring.parity)", "(full + ring.stage * 8, 0)"),
    "ring parity stays": (SM90, "stage = 0, parity ^= 1;", "stage = 0;"),
    "arrives early": (SM90, "if (step > 0) release(behind);", "release(ring.stage);"),
    "last stage kept": (SM90, "keep(acc); release(behind);", "keep(acc);"),
    "all lanes arrive": (SM90, "if (lane == 0) mbar_arrive", "mbar_arrive"),
    "lanes not gathered": (SM90, "sync_warp();", ""),
    # --- sm_90a: multiplies
    "no wgmma fence": (SM90, "wgmma_fence();", ""),
    "no commit": (SM90, "wgmma_commit();", ""),
    "waits for 2 groups": (SM90, "wgmma_wait<1>();", "wgmma_wait<2>();"),
    "no last wait": (SM90, "wgmma_wait<0>();", ""),
    "one set of fragments": (SM90, "multiply(step + 1, odd)", "multiply(step + 1, even)"),
    "stale accumulators": (SM90, "step + i > 0);", "1);"),
    "descriptor stride": (SM90, "i * 32, 16, 1024, kSwizzle128", "i * 32, 16, 512, kSwizzle128"),
    "descriptor swizzle": (SM90, "i * 32, 16, 1024, kSwizzle128", "i * 32, 16, 1024, kSwizzle64"),
    "k step of W": (SM90, "Tile::A_BYTES + i * 32", "Tile::A_BYTES + i * 64"),
    "both halves the same rows": (SM90, "stage + half * 64 * Tile::ROW_BYTES", "stage"),
    "fragments not swizzled": (
        SM90,
        "swizzle128(tile, lane % 16, i * 32 + lane / 16 * 16)",
        "tile + lane % 16 * 128 + i * 32 + lane / 16 * 16",
    ),
    "norm columns": (SM90, "i * 16 + h * 8 + lane % 4 * 2", "i * 16 + h * 8 + lane / 8 * 2"),
    "norm rows": (SM90, "apply(k16[i][2 * h + 1], high", "apply(k16[i][2 * h + 1], low"),
    # --- sm_90a: tiles
    "tile not aligned": (SM90, "(smem_base() + 1023) & ~1023u", "smem_base()"),
    "W overlaps A": (SM90, "a + Tile::A_BYTES + b *", "a + Tile::A_BYTES - 1024 + b *"),
    "half a box of A": (SM90, "{64, Tile::BM}", "{64, Tile::BM / 2}"),
    "box order of W": (SM90, "{row, 8 * row, 2 * row}", "{row, 2 * row, 8 * row}"),
    "second chunk": (SM90, "b % 2 * pairs.half", "b % 2 * 8"),
    "tiles skipped": (SM90, "tile += blocks", "tile += 2 * blocks"),
    "rows out of bounds": (SM90, "if (row + h * 8 >= m) continue;", ""),
    "rows swapped": (SM90, "i / 2 * 4 + h * 2 + i % 2", "i / 2 * 4 + (1 - h) * 2 + i % 2"),
    "columns of the first block": (SM90, "e.place(pair, pairs);", ""),
    "one chunk for both": (SM90, "acc[at(b, h, i) + c * 16]", "acc[at(b, h, i)]"),
    "too many registers": (SM90, "setmaxnreg_inc<240>", "setmaxnreg_inc<248>"),
    # --- sm_90a: stores
    "store not fenced": (SM90, "fence_proxy_async();", ""),
    "slot not waited for": (SM90, "if (storer) bulk_wait_read<Tile::SLOTS - 1>();", ""),
    "waits for one store too few": (SM90, "<Tile::SLOTS - 1>", "<Tile::SLOTS>"),
    "slot overwritten early": (
        SM90,
        "named_barrier_sync(1 + half, 128); // the slot",
        "// the slot",
    ),
    "results not gathered": (
        SM90,
        "named_barrier_sync(1 + half, 128); // and holds",
        "// and holds",
    ),
    "store not committed": (SM90, "bulk_commit();", ""),
    "leaves before the store has read": (SM90, "if (storer) bulk_wait_read<0>();", ""),
    "one barrier for both consumers": (SM90, "sync(1 + half, 128)", "sync(1, 128)"),
    "one slot": (SM90, "b % Tile::SLOTS * Tile::SLOT_BYTES", "0"),
    "consumers share slots": (SM90, "half * Tile::SLOTS * Tile::SLOT_BYTES", "0"),
    "everyone stores": (SM90, "threadIdx.x % 128 == 0", "threadIdx.x % 64 == 0"),
    "chunks of a row swapped": (SM90, "+ lane % 4 * 16;", "+ (3 - lane % 4) * 16;"),
    "both boxes to one place": (EPILOGUES, "kBoxBytes, second, row", "kBoxBytes, first, row"),
    # --- sm_80
    "no barrier": (SM80, "sync_block();", ""),
    "no first wait": (SM80, "cp_async_wait<Tile::STAGES - 2>(); if (steps > 0)", "if (steps > 0)"),
    "waits for one group too few": (
        SM80,
        "cp_async_wait<Tile::STAGES - 2>(); if (step + 1",
        "cp_async_wait<Tile::STAGES - 1>(); if (step + 1",
    ),
    "loads one stage too far": (SM80, "step + Tile::STAGES - 1;", "step + Tile::STAGES;"),
    "no commit in the loop": (SM80, "cp_async_commit(); const", "const"),
    "A read past its rows": (
        SM80,
        "count > 0 && row + i * Tile::ROWS_PER_PASS < a_rows",
        "count > 0",
    ),
    "columns past k": (SM80, "max_of(0, min_of(8, k - k0))", "8"),
    "W row order": (SM80, "r / 8 % 4 * 2 + r % 2", "r % 8"),
    "prologue one stage behind": (SM80, "apply_prologue(step + 1)", "apply_prologue(step)"),
    "no first prologue": (SM80, "if (steps > 0) apply_prologue(0);", ""),
    "store past the rows": (SM80, "if (row >= g.m) continue;", ""),
    "chunks of A misplaced": (SM80, "ROWS_PER_PASS, chunk);", "ROWS_PER_PASS, chunk ^ 1);"),
    # --- few rows
    "sums not gathered": (FEW_ROWS, "sync_block();", ""),
    "finished rows not gathered": (FEW_ROWS, "sync_warp();", ""),
    "slices overlap": (FEW_ROWS, "warp * Tile::SLICE", "warp * 32"),
    "slices skipped": (FEW_ROWS, "k0 += Tile::WARPS *", "k0 += 2 * Tile::WARPS *"),
    "k taken in two orders": (
        FEW_ROWS,
        "low, rows[s][i].x, rows[s][i].y",
        "low, rows[s][i].x, rows[s][i].z",
    ),
    "chunks of a pair swapped": (
        FEW_ROWS,
        "low[4] = {u.x, v.x, u.y, v.y}",
        "low[4] = {v.x, u.x, v.y, u.y}",
    ),
    "rows of A past the end": (FEW_ROWS, "row < g.m ? g.a", "row <= g.m ? g.a"),
    "rows stored past the end": (FEW_ROWS, "lane >= 8 || row >= g.m", "lane >= 8"),
    "columns of W past the end": (FEW_ROWS, "&& column < g.n", ""),
    "read past k": (FEW_ROWS, "|| at >= end", ""),
    "statistics of another row": (
        FEW_ROWS,
        "ldg(prologue.stats + row)",
        "ldg(prologue.stats + line)",
    ),
    "one group of sums": (FEW_ROWS, "(i * Tile::GROUPS + warp) * 32", "i * Tile::GROUPS * 32"),
}
FAST = (
    "empty counts 7", "full parity", "no last wait", "store not fenced", "slot not waited for",
    "no barrier", "sums not gathered",
)  # fmt: skip


def test_the_loops_are_right_as_they_are(sim_program) -> None:
    assert noticed(sim_program(CASES)) == set()


@pytest.mark.parametrize("name", names(MUTANTS, FAST))
def test_a_mutant_is_noticed(sim_program, tmp_path: Path, name: str) -> None:
    own = {SM80: "SM80", FEW_ROWS: "FEW_ROWS"}.get(MUTANTS[name][0], "SM90")
    others = [f"-DNO_{loop}" for loop in ("SM80", "SM90", "FEW_ROWS") if loop != own]
    cases, places = noticed_by(sim_program, tmp_path, CASES, MUTANTS[name], *others)
    # What stands in both loops, with and without a norm, must be noticed in both.
    assert len(cases) >= min(places, 2)
