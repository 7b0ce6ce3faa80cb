"""Device functions: exact widening, single roundings to bf16, fp16 and e4m3, and the activations in float32.

INTERPRETED: Triton's interpreter truncates float32 to bf16, rounds e4m3 wrongly and reads its NaN as 480, so there the
conversions are done in integer arithmetic; compiled kernels use the hardware's. Activations are those of
arXiv:2002.05202 (SwiGLU, GEGLU), arXiv:2109.08668 (squared ReLU) and of the gpt-oss model card (swiglu_oai).
"""

import triton
import triton.language as tl

from moeguard.backends.triton_moe.device import interpreted


def device_function(function):
    """``triton.jit``; in the interpreter the plain function, since a call of a jitted one costs a millisecond there."""
    return function if interpreted() else triton.jit(function)


#: Numbers by which kernels know an activation; gated ones take the product with ``up``.
ACTIVATIONS = {"swiglu": 0, "silu": 0, "geglu": 1, "gelu": 1, "geglu_tanh": 2, "relu2": 3, "swiglu_oai": 4}


@device_function
def ceil_div(a, b):
    """ceil(a / b) of positive integers."""
    return (a + b - 1) // b


@device_function
def widen(x, INTERPRETED: tl.constexpr):
    """A bf16, fp16 or e4m3 tensor in float32, exactly."""
    if INTERPRETED:
        if x.dtype == tl.bfloat16:
            return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        if x.dtype == tl.float8e4nv:
            return _value_e4m3(x.to(tl.uint8, bitcast=True).to(tl.int32))
    return x.to(tl.float32)


@device_function
def narrow(x, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """Float32 rounded once, to nearest even, to DTYPE: bfloat16, float16 or float8e4nv (which saturates)."""
    if DTYPE == tl.float8e4nv:
        x = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    if INTERPRETED:
        if DTYPE == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        if DTYPE == tl.float8e4nv:
            return _code_e4m3(x).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    return x.to(DTYPE)


@device_function
def _code_e4m3(x):
    """The e4m3fn code (int32) of float32 ``x`` in [-448, 448] or NaN, rounded to nearest even (arXiv:2209.05433)."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6 the grid is 2**-9: adding 2**14 leaves float32 with exactly that step.
    shifted = magnitude.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    return sign | tl.where(x == x, code, 0x7F)


@device_function
def _value_e4m3(code):
    """Float32 of e4m3fn codes (int32): the same bits as a float32, whose exponent bias is larger by 120."""
    magnitude = ((code & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    value = tl.where((code & 0x80) != 0, -magnitude, magnitude)
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)


@device_function
def e4m3_scale(x, AXIS: tl.constexpr):
    """amax / 448 along AXIS (kept with size one); 1 where that is below the smallest normal float32."""
    scale = tl.div_rn(tl.max(tl.abs(x), axis=AXIS, keep_dims=True), 448.0)
    return tl.where(scale < 1.1754943508222875e-38, 1.0, scale)


@device_function
def _sigmoid_times(value, x):
    """value * sigmoid(x), without cancellation on either side."""
    return tl.div_rn(value, 1.0 + tl.exp(-x))


@device_function
def activate(gate, up, activation, alpha, beta, limit, GATED: tl.constexpr):
    """act(gate) * up (or act(gate)) in float32. activation: a number of ACTIVATIONS; alpha, beta, limit: of swiglu_oai."""
    value = gate
    if activation == 0:
        value = _sigmoid_times(gate, gate)
    elif activation == 1:
        value = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif activation == 2:
        value = _sigmoid_times(gate, 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    elif activation == 3:
        value = tl.where(gate < 0.0, 0.0, gate * gate)
    else:
        clamped = tl.where(gate > limit, limit, gate)
        value = _sigmoid_times(clamped, alpha * clamped)
    if GATED:
        if activation == 4:
            up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + beta
        value = value * up
    return value
