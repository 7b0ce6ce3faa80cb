"""The kernels: 1x128 quantisation of rows, gate/up product with activation, down product, weighted finalize.

Every row of a product belongs to a *block*: up to BLOCK_M slots of one expert (see ``alignment``). A slot is one
(token, rank) pair. All sums are float32; values are rounded where the recipe says so and nowhere else. Offsets that grow
with tokens, slots or experts are computed in 64 bits.

SCHEME: 0 plain 16-bit operands; 1 e4m3 with one scale a tensor and expert; 2 e4m3 with 1x128 and 128x128 scales.
UNIT: a divisor of H, I and the row stride of x, from which the compiler derives the width of loads.
RAGGED: the summed axis is no multiple of BLOCK_K. WIDE: e4m3 operands are multiplied as fp16, in full float32 sums.
"""

import triton
import triton.language as tl

from moeguard.backends.triton_moe.arithmetic import activate, ceil_div, device_function, e4m3_scale, narrow, widen


@triton.jit(do_not_specialize=["hidden", "row_stride", "scale_blocks"])
def quantize_rows(x_ptr, codes_ptr, scales_ptr, hidden, row_stride, scale_blocks,
                  GROUPS: tl.constexpr, INTERPRETED: tl.constexpr):
    """x [T, H] to e4m3 codes [T, H] and scales [T, ceil(H/128)]; a program takes GROUPS blocks of 128 of one row."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < hidden
    x = widen(tl.load(x_ptr + token * row_stride + column, mask=inside, other=0.0), INTERPRETED)
    scale = e4m3_scale(x, 1)
    code = narrow(tl.div_rn(x, scale), tl.float8e4nv, INTERPRETED)
    tl.store(codes_ptr + token * hidden + column, code, mask=inside)
    group = group[:, None]
    tl.store(scales_ptr + token * scale_blocks + group, scale, mask=group < scale_blocks)


@device_function
def _place(blocks, columns, group, BLOCK_N: tl.constexpr):
    """(block, column tile) of this program: ``group`` blocks share each column tile of weights before the next one."""
    program = tl.program_id(0)
    tiles = ceil_div(columns, BLOCK_N)
    band = group * tiles
    first = program // band * group
    height = tl.minimum(blocks - first, group)
    inside = program % band
    return first + inside % height, inside // height


@device_function
def _operand(pointer, mask, RAGGED: tl.constexpr, WIDE: tl.constexpr, INTERPRETED: tl.constexpr):
    """A tile as it enters the dot product."""
    if RAGGED:
        value = tl.load(pointer, mask=mask, other=0.0)
    else:
        value = tl.load(pointer)
    if INTERPRETED:
        value = widen(value, INTERPRETED)
    elif WIDE:
        value = value.to(tl.float16)
    return value


@device_function
def _accumulate(a, b, total, row_scale_at, column_scale_at, SCHEME: tl.constexpr, WIDE: tl.constexpr,
                INTERPRETED: tl.constexpr):
    """total + a @ b, with the block's scales in float32; e4m3 partial sums are promoted to float32 once a tile."""
    if SCHEME == 2:
        product = tl.dot(a, b, input_precision="ieee")
        return total + (product * tl.load(row_scale_at)[:, None]) * tl.load(column_scale_at)
    if SCHEME == 1:
        if not WIDE:
            if not INTERPRETED:
                return tl.dot(a, b, total, max_num_imprecise_acc=a.shape[1])
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit(do_not_specialize=["hidden", "inter", "row_stride", "inter_stride", "blocks", "top_k", "group", "scale_step",
                               "has_bias", "activation", "alpha", "beta", "limit"])
def gate_up(x_ptr, x_scale_ptr, gate_ptr, up_ptr, gate_scale_ptr, up_scale_ptr, gate_bias_ptr, up_bias_ptr,
            static_scale_ptr, inter_ptr, inter_scale_ptr, order_ptr, block_ptr,
            hidden, inter, row_stride, inter_stride, blocks, top_k, group, scale_step, has_bias,
            activation, alpha, beta, limit,
            SCHEME: tl.constexpr, GATED: tl.constexpr, WIDE: tl.constexpr, UNIT: tl.constexpr, RAGGED: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INTERPRETED: tl.constexpr):
    """h = round(act(x @ gate.T + bias) * (x @ up.T + bias)), [S, inter_stride] in expert order.

    ``hidden`` (H), ``inter`` (I) and both strides come divided by UNIT. scale_step: 1 for a scale an expert, 0 for one.
    """
    hidden, inter, row_stride, inter_stride = hidden * UNIT, inter * UNIT, row_stride * UNIT, inter_stride * UNIT
    block, tile = _place(blocks, inter, group, BLOCK_N)
    count = tl.load(block_ptr + 2 * blocks + block)
    if count == 0:
        return
    expert = tl.load(block_ptr + block).to(tl.int64)
    start = tl.load(block_ptr + blocks + block)
    row = tl.arange(0, BLOCK_M)
    used = row < count
    token = tl.load(order_ptr + start + row, mask=used, other=0) // top_k
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = tl.minimum(column, inter - 1).to(tl.int64)
    depth = tl.arange(0, BLOCK_K)
    x_at = x_ptr + (token.to(tl.int64) * row_stride)[:, None] + depth[None, :]
    weight_at = expert * inter * hidden + (safe * hidden)[None, :] + depth[:, None]
    gate_at, up_at = gate_ptr + weight_at, up_ptr + weight_at
    steps = ceil_div(hidden, BLOCK_K)
    x_scale_at = x_scale_ptr + token.to(tl.int64) * steps
    weight_scale_at = (expert * ceil_div(inter, 128) + tile * BLOCK_N // 128) * steps
    gate_total = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    up_total = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for step in range(0, steps):
        left = hidden - step * BLOCK_K
        x = _operand(x_at, depth[None, :] < left, RAGGED, WIDE, INTERPRETED)
        w = _operand(gate_at, depth[:, None] < left, RAGGED, WIDE, INTERPRETED)
        gate_total = _accumulate(x, w, gate_total, x_scale_at + step, gate_scale_ptr + weight_scale_at + step,
                                 SCHEME, WIDE, INTERPRETED)
        if GATED:
            w = _operand(up_at, depth[:, None] < left, RAGGED, WIDE, INTERPRETED)
            up_total = _accumulate(x, w, up_total, x_scale_at + step, up_scale_ptr + weight_scale_at + step,
                                   SCHEME, WIDE, INTERPRETED)
        x_at += BLOCK_K
        gate_at += BLOCK_K
        up_at += BLOCK_K
    if SCHEME == 1:
        x_scale = tl.load(x_scale_ptr)
        gate_total = (gate_total * x_scale) * tl.load(gate_scale_ptr + expert * scale_step)
        if GATED:
            up_total = (up_total * x_scale) * tl.load(up_scale_ptr + expert * scale_step)
    biased = column < inter * has_bias
    gate_total += tl.load(gate_bias_ptr + expert * inter + column, mask=biased, other=0.0)[None, :]
    if GATED:
        up_total += tl.load(up_bias_ptr + expert * inter + column, mask=biased, other=0.0)[None, :]
    value = activate(gate_total, up_total, activation, alpha, beta, limit, GATED)
    row_at = (start + row).to(tl.int64)
    if SCHEME == 1:
        value = tl.div_rn(value, tl.load(static_scale_ptr))
    if SCHEME == 2:
        value = tl.where(column[None, :] < inter, value, 0.0)
        scale = e4m3_scale(value, 1)
        value = tl.div_rn(value, scale)
        tl.store(inter_scale_ptr + row_at[:, None] * ceil_div(inter, 128) + tile, scale, mask=used[:, None])
    value = narrow(value, inter_ptr.dtype.element_ty, INTERPRETED)
    inter_at = inter_ptr + (row_at * inter_stride)[:, None] + column[None, :]
    tl.store(inter_at, value, mask=used[:, None] & (column < inter)[None, :])


@triton.jit(do_not_specialize=["hidden", "inter", "inter_stride", "blocks", "slots", "splits", "group", "scale_step",
                               "has_bias"])
def down(inter_ptr, inter_scale_ptr, static_scale_ptr, down_ptr, down_scale_ptr, bias_ptr, partial_ptr, order_ptr,
         block_ptr, hidden, inter, inter_stride, blocks, slots, splits, group, scale_step, has_bias,
         SCHEME: tl.constexpr, WIDE: tl.constexpr, UNIT: tl.constexpr, RAGGED: tl.constexpr,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INTERPRETED: tl.constexpr):
    """partial[split, slot] = h @ down.T (+ bias in split 0), float32 [splits, S, H]; split s sums its share of I.

    ``hidden`` (H), ``inter`` (I) and ``inter_stride`` come divided by UNIT.
    """
    hidden, inter, inter_stride = hidden * UNIT, inter * UNIT, inter_stride * UNIT
    block, tile = _place(blocks, hidden, group, BLOCK_N)
    split = tl.program_id(1)
    count = tl.load(block_ptr + 2 * blocks + block)
    if count == 0:
        return
    expert = tl.load(block_ptr + block).to(tl.int64)
    start = tl.load(block_ptr + blocks + block)
    row = tl.arange(0, BLOCK_M)
    used = row < count
    row_at = tl.where(used, start + row, start).to(tl.int64)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = tl.minimum(column, hidden - 1).to(tl.int64)
    steps = ceil_div(inter, BLOCK_K)
    share = ceil_div(steps, splits)
    begin = split * share
    depth = tl.arange(0, BLOCK_K)
    inter_at = inter_ptr + (row_at * inter_stride)[:, None] + (begin * BLOCK_K + depth)[None, :]
    down_at = down_ptr + expert * hidden * inter + (safe * inter)[None, :] + (begin * BLOCK_K + depth)[:, None]
    inter_scale_at = inter_scale_ptr + row_at * steps
    down_scale_at = down_scale_ptr + (expert * ceil_div(hidden, 128) + tile * BLOCK_N // 128) * steps
    total = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for step in range(begin, tl.minimum(begin + share, steps)):
        left = inter - step * BLOCK_K
        h = _operand(inter_at, depth[None, :] < left, RAGGED, WIDE, INTERPRETED)
        w = _operand(down_at, depth[:, None] < left, RAGGED, WIDE, INTERPRETED)
        total = _accumulate(h, w, total, inter_scale_at + step, down_scale_at + step, SCHEME, WIDE, INTERPRETED)
        inter_at += BLOCK_K
        down_at += BLOCK_K
    if SCHEME == 1:
        total = (total * tl.load(static_scale_ptr)) * tl.load(down_scale_ptr + expert * scale_step)
    biased = column < hidden * has_bias * (1 - tl.minimum(split, 1))
    total += tl.load(bias_ptr + expert * hidden + column, mask=biased, other=0.0)[None, :]
    slot = tl.load(order_ptr + start + row, mask=used, other=0).to(tl.int64)
    partial_at = partial_ptr + ((split.to(tl.int64) * slots + slot) * hidden)[:, None] + column[None, :]
    tl.store(partial_at, total, mask=used[:, None] & (column < hidden)[None, :])


@triton.jit(do_not_specialize=["hidden", "top_k", "slots", "splits", "first", "local", "out_stride"])
def finalize(partial_ptr, ids_ptr, weights_ptr, out_ptr, hidden, top_k, slots, splits, first, local, out_stride,
             BLOCK: tl.constexpr, INTERPRETED: tl.constexpr):
    """out[t] = sum over ranks k, in order, of weight * (sum over splits), rounded once; ids of other ranks are dropped."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.full([BLOCK], 0.0, tl.float32)
    for rank in range(0, top_k):
        slot = token.to(tl.int64) * top_k + rank
        expert = tl.load(ids_ptr + slot)
        if (expert >= first) & (expert < first + local):
            value = tl.full([BLOCK], 0.0, tl.float32)
            for split in range(0, splits):
                value += tl.load(partial_ptr + (slot + tl.cast(split, tl.int64) * slots) * hidden + column, mask=inside,
                                 other=0.0)
            total += value * tl.load(weights_ptr + slot)
    value = narrow(total, out_ptr.dtype.element_ty, INTERPRETED)
    tl.store(out_ptr + token.to(tl.int64) * out_stride + column, value, mask=inside)
