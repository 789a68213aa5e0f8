"""The random numbers of kernels.counter_random inside Triton kernels: the same bits, noise in float32.

Knows nothing about logits. Functions are inlined into the kernels that call them.
Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014); Lea's
mixing function (Steele and Vigna, "LXM: better splittable pseudorandom number generators", 2021).
"""

import triton
import triton.language as tl

from kernels.counter_random import GROUP_IDS_FROM
from kernels.interpreter import IS_INTERPRETED

GOLDEN_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
MULTIPLIER_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = tl.constexpr(0x94D049BB133111EB)
LEA_MULTIPLIER = tl.constexpr(0xDABA0B6EB09322E3)
LARGEST_UNIFORM = tl.constexpr(1 - 2**-24)
UNIT = tl.constexpr(2.0**-32)
HALF_UNIT = tl.constexpr(2.0**-33)
"""The smallest uniform number."""
LN_2 = tl.constexpr(0.6931471805599453)
LEAST_NORMAL = tl.constexpr(2.0**-126)
"""Of float32: numpy warns of the logarithm of 0."""
GROUP_IDS = tl.constexpr(GROUP_IDS_FROM)
"""Of groups of tokens, from here on."""


@triton.jit
def row_key(seed, position):
    """Return the key (uint64) of the token to draw at a position."""
    return _mix(seed.to(tl.uint64) + (position + 1).to(tl.uint64) * GOLDEN_GAMMA)


@triton.jit
def uniform(key, ids):
    """Return float32 strictly between 0 and 1: kernels.counter_random.uniform_ref."""
    bits = hash_pairs(key, ids >> 1)
    word = tl.where((ids & 1) == 0, bits >> 32, bits).to(tl.uint32).to(tl.float32)
    # (word + 0.5) * 2^-32 with the same rounding: a power of two changes none.
    return tl.minimum(word * UNIT + HALF_UNIT, LARGEST_UNIFORM)


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
def quick_exponential(key, ids):
    """Return float32 above 0, drawn from Exp(1), to 3e-6 of it: a sixth of the instructions."""
    u = uniform(key, ids)
    # -log1p(-u) by its series where the logarithm's error would show.
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5)))))
    return tl.where(u < 1 / 16, series, quick_log2(1.0 - u) * -LN_2)


@triton.jit
def uniform_bounds(keys, first_id, NUM_IDS: tl.constexpr):
    """Return log2 of neighbouring ids' uniform numbers, (keys, NUM_IDS) in float32, or somewhat less.

    The first id is even.

    Minus it bounds the noise in base 2, but for 2^-20: -log(u) is at least -log(E), as E = -log1p(-u) is at
    least u; a u cut to 23 bits only raises it. It takes one approximate logarithm and no conversion from an
    integer.
    """
    bits = hash_pairs(keys[:, None], (first_id // 2 + tl.arange(0, NUM_IDS // 2))[None, :])
    words = tl.join((bits >> 32).to(tl.uint32), bits.to(tl.uint32))
    return log2_of_word(tl.reshape(words, (keys.shape[0], NUM_IDS)))


@triton.jit
def log2_of_word(word):
    """Return log2 of the uniform number that a word makes, cut to 23 bits: no integer is converted."""
    cut = ((word >> 9) + 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    return quick_log2(cut)


@triton.jit
def quick_log2(number):
    """Return log2 of what is not negative, to 2^-22 or one rounding of float32, in one instruction."""
    if IS_INTERPRETED:
        return tl.log2(tl.maximum(number, LEAST_NORMAL))
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [number], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def hash_pairs(key, pairs):
    """Return the uint64 that two neighbouring ids share: the even one's word is its high half."""
    # A product of 32 bits takes half the instructions of one of 64.
    bits = key + (pairs + 1).to(tl.uint32).to(tl.uint64) * GOLDEN_GAMMA
    bits ^= bits >> 32
    bits *= LEA_MULTIPLIER
    bits ^= bits >> 32
    bits *= LEA_MULTIPLIER
    return bits ^ (bits >> 32)


@triton.jit
def _mix(bits):
    bits ^= bits >> 30
    bits *= MULTIPLIER_1
    bits ^= bits >> 27
    bits *= MULTIPLIER_2
    return bits ^ (bits >> 31)
