"""The random numbers of kernels.counter_random inside Triton kernels: the same bits, noise in float32.

Knows nothing about logits. Functions are inlined into the kernels that call them.
Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import triton
import triton.language as tl

GOLDEN_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
MULTIPLIER_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = tl.constexpr(0x94D049BB133111EB)
LARGEST_UNIFORM = tl.constexpr(1 - 2**-24)
UNIT = tl.constexpr(2.0**-32)
HALF_UNIT = tl.constexpr(2.0**-33)
"""The smallest uniform number."""
IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""The interpreter knows no assembly."""


@triton.jit
def row_key(seed, position):
    """Return the key (uint64) of the token to draw at a position."""
    return _mix(seed.to(tl.uint64) + (position + 1).to(tl.uint64) * GOLDEN_GAMMA)


@triton.jit
def uniform(key, ids):
    """Return float32 strictly between 0 and 1: kernels.counter_random.uniform_ref."""
    bits = _mix(key + (ids + 1).to(tl.uint64) * GOLDEN_GAMMA)
    top = (bits >> 32).to(tl.uint32).to(tl.float32)
    # (top + 0.5) * 2^-32 with the same rounding: a power of two changes none.
    return tl.minimum(top * UNIT + HALF_UNIT, LARGEST_UNIFORM)


@triton.jit
def gumbel_noise(key, ids):
    """Return float32: -log(E) with E drawn from Exp(1)."""
    u = uniform(key, ids)
    # log1p(-u) exact to some roundings, as Triton has none: the error of 1 - u cancels in the quotient.
    rest = 1.0 - u
    taken = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    exponential = tl.where(rest == 1.0, u, -tl.log(rest) * tl.div_rn(u, taken))
    return -tl.log(exponential)


@triton.jit
def noise_bound(key, ids):
    """Return float32: the noise in base 2, or somewhat more, never less than 2^-20 under it.

    -log(u) is at least -log(E), as E = -log1p(-u) is at least u; a u cut to 23 bits only raises it.
    It takes one approximate logarithm and no conversion from an integer.
    """
    bits = _mix_but_last(key + (ids + 1).to(tl.uint64) * GOLDEN_GAMMA)
    # The hash's last step changes the lowest of the top 32 bits only, which is cut here.
    mantissa = (bits >> 41).to(tl.int32)
    cut = (mantissa | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    if IS_INTERPRETED:
        return -tl.log2(tl.maximum(cut, HALF_UNIT))
    return -tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [cut], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _mix(bits):
    bits = _mix_but_last(bits)
    return bits ^ (bits >> 31)


@triton.jit
def _mix_but_last(bits):
    bits ^= bits >> 30
    bits *= MULTIPLIER_1
    bits ^= bits >> 27
    bits *= MULTIPLIER_2
    return bits
