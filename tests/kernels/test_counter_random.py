"""The random numbers against their hashes in Python's own integers."""

import math

import pytest
import torch

from kernels.counter_random import LARGEST_UNIFORM, gumbel_noise_ref, uniform_ref

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def _mix_fast(bits: int) -> int:
    for _ in range(2):
        bits = ((bits ^ (bits >> 32)) * 0xDABA0B6EB09322E3) & MASK
    return bits ^ (bits >> 32)


def _uniform(seed: int, position: int, index: int) -> float:
    key = _mix((seed + (position + 1) * GAMMA) & MASK)
    pair = _mix_fast((key + (index // 2 + 1) * GAMMA) & MASK)
    word = pair & 0xFFFFFFFF if index % 2 else pair >> 32
    return float(torch.tensor(word).float().add(0.5).mul(2.0**-32))


def _signed(seeds: list[int]) -> torch.Tensor:
    return torch.tensor([seed - (1 << 64) if seed >> 63 else seed for seed in seeds])


def test_hash_is_splitmix64() -> None:
    # The first outputs of SplitMix64 from state 0, as published with it.
    assert _mix(GAMMA) == 0xE220A8397B1DCDAF
    assert _mix(2 * GAMMA & MASK) == 0x6E789E6AA1B965F4


@pytest.mark.parametrize("first_id", [6, 7])
@pytest.mark.parametrize("num_ids", [1, 2, 5])
def test_a_run_of_indices_is_that_of_all(first_id: int, num_ids: int) -> None:
    seeds, positions = torch.tensor([3, -9]), torch.tensor([0, 17])
    run_RV = uniform_ref(seeds, positions, num_ids, first_id=first_id)
    assert torch.equal(run_RV, uniform_ref(seeds, positions, 20)[:, first_id : first_id + num_ids])


@pytest.mark.parametrize("seed", [0, 1, 42, (1 << 63) - 1, 1 << 63, MASK])
def test_uniform_equals_integer_arithmetic(seed: int) -> None:
    positions = [0, 1, 5000, 131071]
    uniform_RV = uniform_ref(_signed([seed] * 4), torch.tensor(positions), 50)
    for row, position in enumerate(positions):
        expected = [_uniform(seed, position, index) for index in range(50)]
        assert uniform_RV[row].tolist() == expected


def test_uniform_is_uniform_and_inside() -> None:
    uniform = uniform_ref(torch.arange(64), torch.arange(64) * 3, 4096).flatten().double()
    num = uniform.numel()
    assert uniform.min() > 0
    assert uniform.max() <= LARGEST_UNIFORM < 1
    # Five standard errors of the mean and of a bin's count.
    assert abs(uniform.mean() - 0.5) < 5 * math.sqrt(1 / 12 / num)
    counts = torch.histc(uniform, bins=64, min=0, max=1)
    assert (counts - num / 64).abs().max() < 5 * math.sqrt(num / 64)


def test_neighbouring_seeds_positions_and_indices_are_unrelated() -> None:
    uniform_RV = uniform_ref(torch.tensor([7, 8, 7]), torch.tensor([3, 3, 4]), 20000).double()
    for first, second in ((0, 1), (0, 2), (1, 2)):
        correlation = torch.corrcoef(torch.stack((uniform_RV[first], uniform_RV[second])))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(20000)
    for left, right in ((uniform_RV[0, 1:], uniform_RV[0, :-1]), (uniform_RV[0, ::2], uniform_RV[0, 1::2])):
        assert abs(torch.corrcoef(torch.stack((left, right)))[0, 1]) < 5 / math.sqrt(len(left))


def test_noise_is_minus_log_of_an_exponential() -> None:
    seeds, positions = torch.tensor([3, 9]), torch.tensor([0, 17])
    uniform_RV = uniform_ref(seeds, positions, 30).double()
    expected_RV = -torch.log(-torch.log1p(-uniform_RV))
    noise_RV = gumbel_noise_ref(seeds, positions, 30)
    assert noise_RV.dtype == torch.float32
    torch.testing.assert_close(noise_RV.double(), expected_RV, rtol=1e-5, atol=1e-5)


def test_noise_is_finite_at_both_ends() -> None:
    ends = torch.tensor([0.5 * 2.0**-32, LARGEST_UNIFORM])
    noise = -torch.log(-torch.log1p(-ends))
    assert noise.isfinite().all()


def test_inputs_are_left_as_they_are() -> None:
    seeds, positions = torch.tensor([3]), torch.tensor([5])
    uniform_ref(seeds, positions, 4)
    assert (seeds.item(), positions.item()) == (3, 5)
