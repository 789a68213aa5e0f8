"""Random numbers that are a counter: a function of (seed, position, vocabulary index) and nothing else.

So a token drawn alone, in a batch, after a preemption or ahead of time is the same token. Knows
nothing about logits, and keeps no state.

Shapes: R rows, V vocabulary, U pairs of neighbouring indices. int64 tensors carry the bits of uint64 values
and wrap as those do.
Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), whose
finalizer makes keys; Lea's mixing function, the one of Java's generators, makes what many are needed of
(Steele and Vigna, "LXM: better splittable pseudorandom number generators", 2021): without shifts but those
by half a word it takes a GPU little more than half the instructions.
"""

import torch

GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MULTIPLIER_2 = 0x94D049BB133111EB - (1 << 64)
LEA_MULTIPLIER = 0xDABA0B6EB09322E3 - (1 << 64)
LARGEST_UNIFORM = 1 - 2**-24
"""The largest float32 below 1."""
GROUP_IDS_FROM = 1 << 30
"""Indices that no vocabulary has: those of groups of token ids, whose noise is not that of a token."""


def gumbel_noise_ref(
    seed_R: torch.Tensor, position_R: torch.Tensor, vocab_size: int, *, first_id: int | torch.Tensor = 0
) -> torch.Tensor:
    """Return noise_RV in float32: -log(E) with E drawn from Exp(1).

    The argmax of logits plus this noise is a draw from the logits' softmax.

    Args:
        seed_R: (R,) int64, the bits of each row's seed.
        position_R: (R,) int64, the absolute position of the token to draw.
        vocab_size: V.
        first_id: the vocabulary index of the first column; a tensor, (R,) int64: an even one for each row.
    """
    uniform_RV = uniform_ref(seed_R, position_R, vocab_size, first_id=first_id)
    return uniform_RV.neg_().log1p_().neg_().log_().neg_()


def uniform_ref(
    seed_R: torch.Tensor, position_R: torch.Tensor, vocab_size: int, *, first_id: int | torch.Tensor = 0
) -> torch.Tensor:
    """Return uniform_RV in float32, each strictly between 0 and 1; arguments as gumbel_noise_ref's.

    Two neighbouring indices share a hash: the even one has its high 32 bits, the odd one its low ones.
    """
    key_R = _mix(seed_R + (position_R + 1) * GOLDEN_GAMMA)
    num_before = first_id % 2 if isinstance(first_id, int) else 0
    pair_U = torch.arange((num_before + vocab_size + 1) // 2, device=seed_R.device)
    first_pair = first_id // 2 if isinstance(first_id, int) else first_id[:, None] // 2
    hash_RU = _mix_fast(key_R[:, None] + (first_pair + pair_U + 1) * GOLDEN_GAMMA)
    bits_RV = torch.stack((hash_RU >> 32, hash_RU), -1).flatten(1)[:, num_before:][:, :vocab_size]
    bits_RV = bits_RV.bitwise_and(0xFFFFFFFF)
    # Half a step up keeps 0 out; float32 would round the highest ones to 1.
    return bits_RV.float().add_(0.5).mul_(2.0**-32).clamp_(max=LARGEST_UNIFORM)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """Finalize the hash, in place."""
    bits ^= _shift_right(bits, 30)
    bits *= MULTIPLIER_1
    bits ^= _shift_right(bits, 27)
    bits *= MULTIPLIER_2
    bits ^= _shift_right(bits, 31)
    return bits


def _mix_fast(bits: torch.Tensor) -> torch.Tensor:
    """Finalize a pair's hash, in place."""
    for _ in range(2):
        bits ^= _shift_right(bits, 32)
        bits *= LEA_MULTIPLIER
    bits ^= _shift_right(bits, 32)
    return bits


def _shift_right(bits: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Shift as unsigned integers shift; >> on int64 copies the sign down."""
    return (bits >> num_bits).bitwise_and_((1 << (64 - num_bits)) - 1)
