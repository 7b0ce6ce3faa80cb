"""Device code of the fused verdict: what is asked of one execution, in float32, added up in one row of results.

``place_ptr`` holds the number of the execution, int64 [1]; patterns and results are indexed by it, so that a CUDA graph of one
execution serves all. Counts are atomic additions, shares of a limit atomic maxima of numbers that are not negative. Sizes that
align no access are not specialised: every variant is compiled, and stays.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens", "judged_tokens", "tile_columns"])
def tiles(word_ptr, pattern_ptr, place_ptr, first_ptr, y_ptr, weight_ptr, valid_ptr, order_ptr, row_ptr, column_ptr,
          tile_energy_ptr, result_ptr, tau, tokens, judged_tokens, columns, stride, guard, tile_columns,
          RESULTS: tl.constexpr, EXACT: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr):
    """One tile of the output: gaps, unwritten, bits that differ, values; sums of z^2 by row and column.

    ``order_ptr`` [tokens] names the rows of the output in the order in which they are visited: first the judged_tokens rows that
    reference and weight hold, in their order, then the others, whose values nobody judges.
    """
    place = tl.load(place_ptr)
    pattern = tl.load(pattern_ptr + place).to(tl.int32)
    result = result_ptr + place * RESULTS
    index, column = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = tl.load(order_ptr + index, mask=index < tokens, other=0)
    rows, across = row[:, None].to(tl.int64), column[None, :]
    inside = (index[:, None] < tokens) & (across < stride)
    body = (index[:, None] < tokens) & (across < columns)
    word = tl.load(word_ptr + guard + rows * stride + across, mask=inside, other=0).to(tl.int32)
    stray = tl.sum(tl.sum((inside & (across >= columns) & (word != pattern)).to(tl.float32), 1), 0)
    must = body & (tl.load(valid_ptr + row, mask=index < tokens, other=0) != 0)[:, None]
    kept = tl.sum(tl.sum((must & (word == pattern)).to(tl.float32), 1), 0)
    before = tl.load(first_ptr + rows * columns + across, mask=body, other=0).to(tl.int32)
    differing = tl.sum(tl.sum((must & (word != before)).to(tl.float32), 1), 0)
    if HALF:
        value = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        value = (word << 16).to(tl.float32, bitcast=True)
    flat, known = index[:, None].to(tl.int64) * columns + across, body & (index[:, None] < judged_tokens)
    weight = tl.load(weight_ptr + flat, mask=known, other=0.0)
    wanted = tl.load(y_ptr + flat, mask=known, other=0.0)
    judged = weight > 0
    finite = (value == value) & (tl.abs(value) != float("inf"))
    broken = tl.sum(tl.sum((judged & ~finite).to(tl.float32), 1), 0)
    tl.atomic_add(result, stray, mask=stray > 0)
    tl.atomic_add(result + 1, kept, mask=kept > 0)
    tl.atomic_add(result + 3, differing, mask=differing > 0)
    tl.atomic_add(result + 4, 2 * broken, mask=broken > 0)
    if EXACT:
        wrong = tl.sum(tl.sum((judged & (value != wanted)).to(tl.float32), 1), 0)
        tl.atomic_add(result + 5, 2 * wrong, mask=wrong > 0)
    else:
        z = tl.where(judged & finite, (value - wanted) * weight, 0.0)
        energy = z * z
        tl.atomic_max(result + 5, tl.max(tl.max(tl.abs(z), 1), 0) / tau)
        across_rows = tl.sum(energy, 1)
        if tl.program_id(0) * TILE < judged_tokens:
            tl.atomic_add(row_ptr + index, across_rows, mask=index < judged_tokens)
            tl.atomic_add(column_ptr + column, tl.sum(energy, 0), mask=column < columns)
            if tl.program_id(1) < tile_columns:
                limit = tl.load(tile_energy_ptr + tl.program_id(0) * tile_columns + tl.program_id(1))
                tl.atomic_max(result + 7, tl.sum(across_rows, 0) / limit)


@triton.jit(do_not_specialize=["tokens", "columns", "pairs"])
def blocks(place_ptr, row_ptr, row_energy_ptr, column_ptr, column_energy_ptr, pair_token_ptr, pair_expert_ptr, expert_ptr,
           result_ptr, tokens, columns, pairs, RESULTS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows and columns against their limits; rows added up by expert."""
    result = result_ptr + tl.load(place_ptr) * RESULTS
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(row_ptr + index, mask=index < tokens, other=0.0)
    row = row / tl.load(row_energy_ptr + index, mask=index < tokens, other=1.0)
    tl.atomic_max(result + 6, tl.max(row, 0))
    column = tl.load(column_ptr + index, mask=index < columns, other=0.0)
    column = column / tl.load(column_energy_ptr + index, mask=index < columns, other=1.0)
    tl.atomic_max(result + 8, tl.max(column, 0))
    token = tl.load(pair_token_ptr + index, mask=index < pairs, other=0)
    expert = tl.load(pair_expert_ptr + index, mask=index < pairs, other=0)
    tl.atomic_add(expert_ptr + expert, tl.load(row_ptr + token, mask=index < pairs, other=0.0), mask=index < pairs)


@triton.jit
def changed(place_ptr, live_ptr, copy_ptr, result_ptr, size, RESULTS: tl.constexpr, BLOCK: tl.constexpr):
    """Bytes of an input that are no longer those of its copy."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(live_ptr + index, mask=index < size, other=0)
    count = tl.sum((here != tl.load(copy_ptr + index, mask=index < size, other=0)).to(tl.float32), 0)
    tl.atomic_add(result_ptr + tl.load(place_ptr) * RESULTS + 2, count, mask=count > 0)


@triton.jit(do_not_specialize=["after", "area_after", "experts"])
def finish(place_ptr, word_ptr, pattern_ptr, after, area_ptr, byte_ptr, area_after, expert_ptr, expert_energy_ptr, result_ptr,
           experts, guard, area_guard, RESULTS: tl.constexpr, AREA: tl.constexpr, GUARD: tl.constexpr,
           AREA_GUARD: tl.constexpr, EXPERTS: tl.constexpr):
    """Guard bands and experts, and on to the next execution. The last launch of an execution, one program."""
    place = tl.load(place_ptr)
    result = result_ptr + place * RESULTS
    index = tl.arange(0, GUARD)
    pattern, mine = tl.load(pattern_ptr + place), index < guard
    stray = tl.sum((mine & (tl.load(word_ptr + index, mask=mine, other=0) != pattern)).to(tl.float32), 0)
    stray += tl.sum((mine & (tl.load(word_ptr + after + index, mask=mine, other=0) != pattern)).to(tl.float32), 0)
    if AREA:
        spot = tl.arange(0, AREA_GUARD)
        byte, ours = tl.load(byte_ptr + place), spot < area_guard
        stray += tl.sum((ours & (tl.load(area_ptr + spot, mask=ours, other=0) != byte)).to(tl.float32), 0)
        stray += tl.sum((ours & (tl.load(area_ptr + area_after + spot, mask=ours, other=0) != byte)).to(tl.float32), 0)
    tl.atomic_add(result, stray, mask=stray > 0)
    expert = tl.arange(0, EXPERTS)
    energy = tl.load(expert_ptr + expert, mask=expert < experts, other=0.0)
    share = energy / tl.load(expert_energy_ptr + expert, mask=expert < experts, other=1.0)
    tl.atomic_max(result + 9, tl.max(share, 0))
    tl.store(place_ptr, place + 1)
