"""The GEMM core: one persistent loop in grouped order, with prologue and epilogue as hooks.

Computes acc[M, N] = prologue(A)[M, K] @ B[N, K].T in float32, tile by tile, and hands each tile to
the epilogue, which stores what it likes. Every matrix product here but attention's is a kernel
whose body is one call of `gemm`; hooks are jitted functions with arguments of their own in a tuple:

    BEGIN(A, stride, rows, M, K, *prologue_args) -> s0, s1   a tile's row state, before the K loop
    APPLY(a, ks, K, s0, s1, *prologue_args) -> a, s0, s1     each tile of A on its way to the dot
    END(acc, K, s0, s1, *prologue_args) -> acc               the accumulator, after the K loop
    EPILOGUE(acc, rows, tile_n, M, N, *epilogue_args)        stores
"""

import triton
import triton.language as tl


@triton.jit
def tile_order(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile: GROUP_M tile rows are walked together, so that B stays in L2."""
    per_group = GROUP_M * tiles_n
    first_m = tile // per_group * GROUP_M
    group_m = tl.minimum(tiles_m - first_m, GROUP_M)
    return first_m + tile % per_group % group_m, tile % per_group // group_m


@triton.jit
def load_block(ptr, stride, outer, inner, n_outer, n_inner):
    """The elements at `outer` x `inner` of a row-major matrix, zero outside of it."""
    mask = (outer[:, None] < n_outer) & (inner[None, :] < n_inner)
    return tl.load(
        ptr + outer.to(tl.int64)[:, None] * stride + inner[None, :], mask=mask, other=0.0
    )


@triton.jit
def gemm(
    a_ptr, a_stride, b_ptr, b_stride,
    M, N, K,
    BEGIN: tl.constexpr, APPLY: tl.constexpr, END: tl.constexpr, prologue_args,
    EPILOGUE: tl.constexpr, epilogue_args,
    A_T: tl.constexpr, B_T: tl.constexpr, PAIR: tl.constexpr, pair,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A is stored [M, K], or [K, M] with A_T; B is stored [N, K], or [K, N] with B_T.

    PAIR orders the rows of B within a tile so that the epilogue finds the two columns it must
    combine in the same tile, as tile columns (group, half, i) of shape [G, 2, P]:
    - None: as stored;
    - "halves": i and i + pair, the two halves of B (gate and up), G = 1;
    - "heads": i and i + pair within each head of 2 * pair rows (rotary embeddings): whole heads,
      G = BLOCK_N / (2 * pair), if `pair` is a power of two, else BLOCK_N / 2 consecutive pairs.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    if TMA:
        if A_T:
            a_desc = tl.make_tensor_descriptor(a_ptr, [K, M], [a_stride, 1], [BLOCK_K, BLOCK_M])
        else:
            a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [a_stride, 1], [BLOCK_M, BLOCK_K])
        if PAIR == "halves":
            b_desc = tl.make_tensor_descriptor(
                b_ptr, [2, pair, K], [pair * b_stride, b_stride, 1], [2, BLOCK_N // 2, BLOCK_K]
            )
        elif B_T:
            b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [b_stride, 1], [BLOCK_K, BLOCK_N])
        else:
            b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [b_stride, 1], [BLOCK_N, BLOCK_K])

    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        local = tl.arange(0, BLOCK_N)
        if PAIR is None:
            cols = tile_n * BLOCK_N + local
        else:  # which pair each tile column belongs to, then the row of B that it is
            HALF: tl.constexpr = BLOCK_N // 2
            if PAIR == "heads" and pair & (pair - 1) == 0 and BLOCK_N % (2 * pair) == 0:
                cols = tile_n * BLOCK_N + local
            else:
                p = tile_n * HALF + local % HALF
                cols = p // pair * (2 * pair) + p % pair + local // HALF * pair
                cols = tl.where(p < N // 2, cols, N)
        s0, s1 = BEGIN(a_ptr, a_stride, rows, M, K, *prologue_args)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in tl.range(0, K, BLOCK_K):
            ks = k + tl.arange(0, BLOCK_K)
            if TMA:
                if A_T:
                    a = a_desc.load([k, tile_m * BLOCK_M]).T
                else:
                    a = a_desc.load([tile_m * BLOCK_M, k])
                if PAIR == "halves":
                    b = b_desc.load([0, tile_n * (BLOCK_N // 2), k]).reshape(BLOCK_N, BLOCK_K).T
                elif B_T:
                    b = b_desc.load([k, tile_n * BLOCK_N])
                else:
                    b = b_desc.load([tile_n * BLOCK_N, k]).T
            else:
                if A_T:
                    a = load_block(a_ptr, a_stride, ks, rows, K, M).T
                else:
                    a = load_block(a_ptr, a_stride, rows, ks, M, K)
                if B_T:
                    b = load_block(b_ptr, b_stride, ks, cols, K, N)
                else:
                    b = load_block(b_ptr, b_stride, cols, ks, N, K).T
            a, s0, s1 = APPLY(a, ks, K, s0, s1, *prologue_args)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        acc = END(acc, K, s0, s1, *prologue_args)
        EPILOGUE(acc, rows, tile_n, M, N, *epilogue_args)
