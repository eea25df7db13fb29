"""Mutation tests: a one-line edit of an attention kernel, and the simulator or a result notices."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import Mutants, names, noticed, noticed_by

CASES = Path(__file__).with_name("sdpa_cases.cu")
SHARED, SM80, SM90, BACKWARD = "attention.cuh", "sdpa.cu", "sdpa_sm90.cu", "sdpa_backward.cu"

FORWARD_MUTANTS: Mutants = {
    "keys not waited for": (
        SM80,
        "cp_async_wait<0>(); sync_block(); // the keys",
        "sync_block(); // the keys",
    ),
    "values not waited for": (
        SM80,
        "cp_async_wait<0>(); sync_block(); // the values",
        "sync_block(); // the values",
    ),
    "no barrier before the scores": (SM80, "sync_block(); // the keys", "// the keys"),
    "no barrier before the values": (SM80, "sync_block(); // the values", "// the values"),
    "copies not committed": (SM80, "cp_async_commit();", ""),
    "keys and values share a tile": (SM80, "v_tile = k_tile + Tile::KV_BYTES", "v_tile = k_tile"),
    "last tile missing": (
        SM80,
        "ceil_div(shape.last_key(last_row) + 1, KEYS)",
        "(shape.last_key(last_row) + 1) / KEYS",
    ),
    "masked one tile late": (
        SM80,
        "(shape.last_key(row0) + 1) / KEYS",
        "(shape.last_key(row0) + 1) / KEYS + 1",
    ),
    "not rescaled": (
        SM80,
        "multiply_row(flat(acc[i]), h, softmax[i][h].step(flat(s[i]), h, shape.scale_log2));",
        "softmax[i][h].step(flat(s[i]), h, shape.scale_log2);",
    ),
    "splits overlap": (SM80, "first_tile + per_split)", "first_tile + per_split + 1)"),
    "splits weigh the same": (SM80, "acc[i] += weight *", "acc[i] +="),
    "lse of a split misplaced": (
        SM80,
        "stg(p.partial_lse + partial_row0 + row, lse)",
        "stg(p.partial_lse + row, lse)",
    ),
    "keys past the end": (SM80, "key < shape.k_tokens ? source", "key <= shape.k_tokens ? source"),
    "rows past the end stored": (SM80, "row < shape.q_rows ? p.out", "row <= shape.q_rows ? p.out"),
    "mask one key too far": (
        SHARED,
        "token(row) + k_tokens - q_tokens,",
        "token(row) + k_tokens - q_tokens + 1,",
    ),
    "mask one key too short": (SHARED, "if (i / 4 * 8 + e > mine)", "if (i / 4 * 8 + e >= mine)"),
    "a row without keys": (
        SHARED,
        "greatest == -INFINITY ? 0.f : greatest * scale_log2",
        "greatest * scale_log2",
    ),
    "greatest score of two lanes": (SHARED, "return fmaxf(v, shfl_xor(v, 2));", "return v;"),
    "sum of two lanes": (SHARED, "return v + shfl_xor(v, 2);", "return v;"),
    "sum not rescaled": (SHARED, "sum = sum * rescale + part", "sum = sum + part"),
    "lanes not gathered": (SHARED, "sync_warp();", ""),
    "values not transposed": (SHARED, "ldmatrix_x4_trans(b", "ldmatrix_x4(b"),
    "columns past the head": (SHARED, "max_of(0, min_of(8, head_dim - chunk * 8))", "8"),
    "rows of a group mixed": (
        SHARED,
        "kv_head * group + row % group",
        "kv_head * group + row / q_tokens",
    ),
}
HOPPER_MUTANTS: Mutants = {
    # --- barriers of the rings
    "full counts 2": (SM90, "mbar_init(full(s), 1);", "mbar_init(full(s), 2);"),
    "empty counts 7": (SM90, "mbar_init(empty(s), 8);", "mbar_init(empty(s), 7);"),
    "empty counts 9": (SM90, "mbar_init(empty(s), 8);", "mbar_init(empty(s), 9);"),
    "no init fence": (SM90, "fence_mbar_init();", ""),
    "no barrier after init": (SM90, "sync_block();", ""),
    "free keys not waited for": (SM90, "mbar_wait(k_ring.empty(ring.stage), ring.parity ^ 1);", ""),
    "free values not waited for": (
        SM90,
        "mbar_wait(v_ring.empty(ring.stage), ring.parity ^ 1);",
        "",
    ),
    "parity of free keys": (
        SM90,
        "k_ring.empty(ring.stage), ring.parity ^ 1)",
        "k_ring.empty(ring.stage), 1)",
    ),
    "ring parity stays": (SM90, "stage = 0, parity ^= 1;", "stage = 0;"),
    "too few bytes": (SM90, "(bar, Tile::TILE_BYTES)", "(bar, Tile::TILE_BYTES - 16)"),
    "too many bytes": (SM90, "(bar, Tile::TILE_BYTES)", "(bar, Tile::TILE_BYTES + 16)"),
    "queries not waited for": (SM90, "mbar_wait(q_full, 0);", ""),
    "first keys not waited for": (SM90, "mbar_wait(k_ring.full(0), 0);", ""),
    "keys not waited for": (SM90, "mbar_wait(k_ring.full(k_at.stage), k_at.parity);", ""),
    "values not waited for": (SM90, "mbar_wait(v_ring.full(v_at.stage), v_at.parity);", ""),
    "parity of keys": (SM90, "k_ring.full(k_at.stage), k_at.parity", "k_ring.full(k_at.stage), 0"),
    "first keys freed early": (
        SM90,
        "wgmma_wait<0>(); keep(scores); release(k_ring, 0);",
        "release(k_ring, 0); wgmma_wait<0>(); keep(scores);",
    ),
    "values freed early": (
        SM90,
        "wgmma_wait<0>(); keep(acc); release(v_ring, v_at.stage);",
        "release(v_ring, v_at.stage); wgmma_wait<0>(); keep(acc);",
    ),
    "keys not freed": (SM90, "release(k_ring, k_at.stage);", ""),
    "all lanes arrive": (SM90, "if (lane == 0) mbar_arrive", "mbar_arrive"),
    # --- turns
    "first turn not given": (SM90, "if (consumer == 1) named_barrier_arrive(1, 256);", ""),
    "turn not passed on": (SM90, "give_turn(tile == 0);", ""),
    "last turn given": (SM90, "if (consumer == 0 || !last)", ""),
    "turn not waited for": (
        SM90,
        "wait_for_turn(); multiply_scores<T, Tile>(scores, queries, k_tile(k_at",
        "multiply_scores<T, Tile>(scores, queries, k_tile(k_at",
    ),
    # --- multiplies
    "no wgmma fence": (SM90, "wgmma_fence();", ""),
    "no commit": (SM90, "wgmma_commit();", ""),
    "scores read early": (SM90, "wgmma_wait<1>();", "wgmma_wait<2>();"),
    "first scores read early": (
        SM90,
        "give_turn(tiles == 1); wgmma_wait<0>();",
        "give_turn(tiles == 1);",
    ),
    "probabilities replaced early": (
        SM90,
        "make_probabilities(tile); wgmma_wait<0>();",
        "make_probabilities(tile); pack_probabilities(); wgmma_wait<0>();",
    ),
    "sums scaled early": (
        SM90,
        "wgmma_wait<0>(); keep(acc); release(v_ring",
        "keep(acc); release(v_ring",
    ),
    "stale sums": (SM90, "tile < tiles - 2);", "1);"),
    "not rescaled": (SM90, "multiply_row(acc, h, rescale[h]);", ""),
    "k step of scores": (SM90, "kk % 64 * 2", "kk % 64"),
    "panel of scores": (SM90, "kk / 64 * Tile::PANEL_BYTES", "0"),
    "k step of values": (SM90, "kk * 2048", "kk * 1024"),
    "panel of values": (SM90, "Tile::PANEL_BYTES, 1024, kSwizzle128", "1024, 1024, kSwizzle128"),
    "both consumers the same rows": (
        SM90,
        "q_tile + static_cast<smem_t>(consumer * 64 * 128)",
        "q_tile",
    ),
    "too many registers": (SM90, "setmaxnreg_inc<240>", "setmaxnreg_inc<248>"),
    "tile not aligned": (SM90, "(smem_base() + 1023) & ~1023u", "smem_base()"),
    # --- mask and stores
    "mask one key too far": (
        SM90,
        "shape.last_key(my_row + h * 8) - tile * KEYS",
        "shape.last_key(my_row + h * 8) + 1 - tile * KEYS",
    ),
    "masked one tile late": (
        SM90,
        "(shape.last_key(row0) + 1) / KEYS",
        "(shape.last_key(row0) + 1) / KEYS + 1",
    ),
    "last tile missing": (
        SM90,
        "ceil_div(shape.last_key(last_row) + 1, KEYS)",
        "(shape.last_key(last_row) + 1) / KEYS",
    ),
    "lse past the rows": (SM90, "lane % 4 == 0 && row < shape.q_tokens", "lane % 4 == 0"),
    "output not fenced": (SM90, "fence_proxy_async();", ""),
    "output not gathered": (SM90, "named_barrier_sync(3 + consumer, 128);", ""),
    "output not committed": (SM90, "bulk_commit();", ""),
    "leaves before the output was read": (SM90, "bulk_wait_read<0>();", ""),
    "output not swizzled": (
        SM90,
        "swizzle128(panel, row, column % 64 * 2)",
        "panel + row * 128 + column % 64 * 2",
    ),
}
BACKWARD_MUTANTS: Mutants = {
    "tiles not waited for": (
        BACKWARD,
        "cp_async_wait<0>(); sync_block(); // this",
        "sync_block(); // this",
    ),
    "no barrier in the loop": (BACKWARD, "sync_block(); // this", "// this"),
    "copies not committed": (BACKWARD, "cp_async_commit();", ""),
    "one stage": (BACKWARD, "(step & 1) * Tile::STAGE_BYTES", "0"),
    "one stage of statistics": (BACKWARD, "(step & 1) * Tile::STATS_BYTES", "0"),
    "no first statistics": (BACKWARD, "if (first < end && thread", "if (false && thread"),
    "statistics of this step again": (
        BACKWARD,
        "row_stats((step + 1) * Tile::STREAMED + thread)",
        "row_stats(step * Tile::STREAMED + thread)",
    ),
    "statistics past the rows": (
        BACKWARD,
        "if (row >= shape.q_rows) return",
        "if (row > shape.q_rows) return",
    ),
    "delta ignored": (BACKWARD, "(grad_s[0][j][h * 2 + e] - s.y)", "grad_s[0][j][h * 2 + e]"),
    "delta of half the columns": (
        BACKWARD,
        "sum += a[e] * b[e];",
        "if (e < 4) sum += a[e] * b[e];",
    ),
    "lse not in log 2": (BACKWARD, "ldg(p.lse + at) * kLog2e", "ldg(p.lse + at)"),
    "mask one key too far": (
        BACKWARD,
        "if (key > shape.last_key(row))",
        "if (key > shape.last_key(row) + 1)",
    ),
    "mask one key too short": (
        BACKWARD,
        "if (key > shape.last_key(row))",
        "if (key >= shape.last_key(row))",
    ),
    "no mask": (BACKWARD, "shape.last_key(first_row) < end_key - 1", "false"),
    "first rows skipped": (
        BACKWARD,
        "shape.first_row(kept0) / Tile::STREAMED",
        "shape.first_row(kept0) / Tile::STREAMED + 1",
    ),
    "last keys skipped": (
        BACKWARD,
        "end = ceil_div(end, Tile::STREAMED)",
        "end = end / Tile::STREAMED",
    ),
    "rows past the end": (BACKWARD, "row < shape.q_rows ? source", "row <= shape.q_rows ? source"),
    "gradients not scaled": (BACKWARD, "grad_first[0][j][e] *= shape.scale;", ";"),
    "values for probabilities": (
        BACKWARD,
        "grad_second, probability, w)",
        "grad_second, grad_s, w)",
    ),
    "lanes not gathered": (SHARED, "sync_warp();", ""),
}
FAMILIES = {
    "forward": (FORWARD_MUTANTS, ("-DNO_SM90", "-DNO_BACKWARD")),
    "hopper": (HOPPER_MUTANTS, ("-DNO_SM80", "-DNO_BACKWARD")),
    "backward": (BACKWARD_MUTANTS, ("-DNO_SM80", "-DNO_SM90")),
}


def test_the_kernels_are_right_as_they_are(sim_program) -> None:
    assert noticed(sim_program(CASES)) == set()


def check(family: str, name: str, sim_program, folder: Path) -> None:
    mutants, flags = FAMILIES[family]
    cases, _ = noticed_by(sim_program, folder, CASES, mutants[name], *flags)
    assert cases


@pytest.mark.parametrize(
    "name",
    names(
        FORWARD_MUTANTS,
        {"keys not waited for", "no barrier before the values", "mask one key too far"},
    ),
)
def test_a_mutant_of_the_forward_is_noticed(sim_program, tmp_path: Path, name: str) -> None:
    check("forward", name, sim_program, tmp_path)


@pytest.mark.parametrize(
    "name",
    names(
        HOPPER_MUTANTS,
        {"parity of keys", "first keys freed early", "output not fenced", "mask one key too far"},
    ),
)
def test_a_mutant_of_the_hopper_forward_is_noticed(sim_program, tmp_path: Path, name: str) -> None:
    check("hopper", name, sim_program, tmp_path)


@pytest.mark.parametrize(
    "name", names(BACKWARD_MUTANTS, {"tiles not waited for", "one stage", "mask one key too short"})
)
def test_a_mutant_of_the_backward_is_noticed(sim_program, tmp_path: Path, name: str) -> None:
    check("backward", name, sim_program, tmp_path)
