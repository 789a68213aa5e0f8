"""The random numbers of Triton kernels against their reference."""

import torch
import triton
import triton.language as tl

from kernels.counter_noise import gumbel_noise, quick_exponential, row_key, uniform, uniform_bounds
from kernels.counter_random import gumbel_noise_ref, uniform_ref

SEEDS = [0, 42, -1, (1 << 63) - 1, -(1 << 63)]
POSITIONS = [0, 1, 4096, 131071, 7]


# No annotations but constexpr: where it is compiled, a kernel cannot see this module's names.
@triton.jit  # type: ignore[untyped-decorator]
def _noise_kernel(seeds_ptr, positions_ptr, out_ptr, V, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    ids = tl.arange(0, BLOCK)
    out_ptr += row * 4 * V + ids
    tl.store(out_ptr, uniform(key, ids), mask=ids < V)
    tl.store(out_ptr + V, gumbel_noise(key, ids), mask=ids < V)
    tl.store(
        out_ptr + 2 * V,
        -tl.reshape(uniform_bounds(key + tl.zeros((1,), tl.uint64), 0, BLOCK), (BLOCK,)),
        mask=ids < V,
    )
    tl.store(out_ptr + 3 * V, quick_exponential(key, ids), mask=ids < V)


def _numbers(device: str, vocab_size: int) -> tuple[torch.Tensor, ...]:
    """Return uniform numbers, noise, its bounds and quick numbers of Exp(1)."""
    seeds = torch.tensor(SEEDS, device=device)
    positions = torch.tensor(POSITIONS, device=device, dtype=torch.int32)
    results = torch.full((len(SEEDS), 4, vocab_size), float("nan"), device=device)
    block = triton.next_power_of_2(vocab_size)
    _noise_kernel[(len(SEEDS),)](seeds, positions, results, vocab_size, BLOCK=block)
    return results.cpu().unbind(1)


def test_bits_are_those_of_the_reference(device: str) -> None:
    uniform_RV, *_ = _numbers(device, 3001)
    expected_RV = uniform_ref(torch.tensor(SEEDS), torch.tensor(POSITIONS), 3001)
    assert torch.equal(uniform_RV, expected_RV)


def test_noise_is_the_reference_to_a_few_roundings(device: str) -> None:
    _, noise_RV, *_ = _numbers(device, 3001)
    expected_RV = gumbel_noise_ref(torch.tensor(SEEDS), torch.tensor(POSITIONS), 3001)
    # 8 roundings: logarithms differ from library to library.
    torch.testing.assert_close(noise_RV, expected_RV, rtol=8 * 2**-24, atol=8 * 2**-24)


def test_quick_numbers_are_the_noise_s(device: str) -> None:
    _, _, _, exponential_RV = _numbers(device, 3001)
    expected_RV = gumbel_noise_ref(torch.tensor(SEEDS), torch.tensor(POSITIONS), 3001).double().neg().exp()
    torch.testing.assert_close(exponential_RV.double(), expected_RV, rtol=4e-6, atol=0)


def test_bounds_are_above_the_noise_and_tight_where_noise_is_high(device: str) -> None:
    _, noise_RV, bound_RV, _ = _numbers(device, 3001)
    noise_2_RV = noise_RV * 1.4426950408889634
    assert (bound_RV >= noise_2_RV - 2**-20).all()
    is_high = (noise_RV > 4) & (noise_RV < 9)
    assert is_high.sum() > 100
    assert (bound_RV - noise_2_RV)[is_high].max() < 0.05
