"""A step's begin and end, told in front of its tokens: once by what draws them, anew by what comes after."""

import time
from collections.abc import Callable

import pytest
import torch

from kernels.device_sampler import sample_decode
from kernels.sampler_tables import (
    MAX_LOGPROBS,
    LaneSampling,
    SamplerFlavour,
    allocate_lane_sampling,
    allocate_sampler_workspace,
)
from kernels.shared_draw import sample_decode_shared
from kernels.step_times import mark_begin, mark_end, mark_untold_end

PAUSE_SECONDS = 0.2
NUM_ROWS, NUM_LANES, VOCABULARY, UNTOUCHED = 3, 4, 40, -7
Draw = Callable[["Host", torch.Tensor], None]


class Host:
    """Memory for a step's times and tokens, which a device can write."""

    def __init__(self, device: str) -> None:
        self.words_W = torch.full((4 + NUM_ROWS,), UNTOUCHED, dtype=torch.int32, pin_memory=device == "cuda")
        self.times_2 = self.words_W[:4].view(torch.int64)
        self.times_2.fill_(UNTOUCHED)
        self.tokens_R = self.words_W[4:]
        self.told_2 = torch.tensor([self.tokens_R.data_ptr(), 0], device=device)
        """As a step's, not begun."""

    def read(self) -> tuple[int, int]:
        """Return begin and end."""
        if self.told_2.is_cuda:
            torch.cuda.synchronize()
        begin, end = self.times_2.tolist()
        return begin, end


def _tables(device: str) -> LaneSampling:
    """Return those of greedy lanes."""
    return allocate_lane_sampling(NUM_LANES, torch.device(device))


def _draw(host: Host, lanes_B: torch.Tensor, flavour: SamplerFlavour) -> None:
    device = lanes_B.device
    outs = [
        torch.zeros((NUM_ROWS, MAX_LOGPROBS + 1), dtype=dtype, device=device)
        for dtype in (torch.int32, torch.float32)
    ]
    sample_decode(
        torch.eye(NUM_ROWS, VOCABULARY, device=device),
        lanes_B,
        torch.ones_like(lanes_B),
        _tables(device.type),
        torch.zeros((NUM_LANES, 8), dtype=torch.int32, device=device),
        torch.zeros_like(lanes_B),
        flavour=flavour,
        workspace=allocate_sampler_workspace(NUM_ROWS, VOCABULARY, flavour=flavour, device=device),
        out_logprob_ids_BK=outs[0],
        out_logprobs_BK=outs[1],
        told_2=host.told_2,
    )


def _draw_shared(host: Host, lanes_B: torch.Tensor) -> None:
    sample_decode_shared(
        torch.eye(NUM_ROWS, VOCABULARY, device=lanes_B.device),
        lanes_B,
        torch.ones_like(lanes_B),
        _tables(lanes_B.device.type),
        torch.zeros((NUM_LANES, 8), dtype=torch.int32, device=lanes_B.device),
        torch.zeros_like(lanes_B),
        first_id=0,
        all_gather=lambda own_B4: own_B4[None],
        is_drawn=False,
        told_2=host.told_2,
    )


DRAWS: dict[str, Draw] = {
    "greedy": lambda host, lanes: _draw(host, lanes, SamplerFlavour.GREEDY),
    "sampled": lambda host, lanes: _draw(host, lanes, SamplerFlavour.SAMPLED),
    "full": lambda host, lanes: _draw(host, lanes, SamplerFlavour.FULL),
    "shared": _draw_shared,
}


@pytest.mark.parametrize("name", DRAWS)
def test_who_draws_tells_tokens_and_times(device: str, name: str) -> None:
    host = Host(device)
    host.told_2[1] = 55
    DRAWS[name](host, torch.tensor([2, -1, 0], dtype=torch.int32, device=device))
    begin, end = host.read()
    assert begin == 55
    # The interpreter's clock stands still.
    assert end > 0
    assert host.tokens_R.tolist() == [0, UNTOUCHED, 2]
    assert host.told_2[1] == 0, "the next step is to begin anew"


@pytest.mark.parametrize("name", DRAWS)
def test_padding_tells_nothing(device: str, name: str) -> None:
    host = Host(device)
    host.told_2[:] = torch.tensor([0, 55])
    DRAWS[name](host, torch.full((NUM_ROWS,), -1, dtype=torch.int32, device=device))
    assert host.read() == (UNTOUCHED, UNTOUCHED)
    assert host.told_2.tolist() == [0, 55]


def test_an_end_is_told_anew_and_the_begin_is_not(device: str) -> None:
    host = Host(device)
    mark_end(host.told_2)
    begin, end = host.read()
    assert begin == UNTOUCHED
    assert end > 0


def test_a_step_of_other_kernels_begins_once_and_tells_where_it_is_told_to(device: str) -> None:
    host = Host(device)
    told_2 = torch.tensor([0, 0], device=device)
    mark_begin(told_2)
    begun = int(told_2[1])
    mark_begin(told_2)
    assert int(told_2[1]) == begun
    mark_end(told_2, host.tokens_R)
    begin, end = host.read()
    assert 0 < begin == begun <= end
    assert told_2.tolist() == [0, 0]
    assert host.tokens_R.tolist() == [UNTOUCHED] * NUM_ROWS


def test_steps_follow_each_other(device: str) -> None:
    """The device's clock goes on: an end is never before its begin, nor a begin before the last end."""
    told_2, last = torch.zeros(2, dtype=torch.int64, device=device), 0
    for _ in range(3):
        host = Host(device)
        mark_begin(told_2)
        mark_end(told_2, host.tokens_R)
        begin, end = host.read()
        assert last <= begin <= end
        last = end


def test_what_steps_took_that_tell_nothing_is_the_next_one_s_and_a_pause_is_not(device: str) -> None:
    host = Host(device)
    host.told_2[1] = 0
    took = 0
    for _ in range(2):
        mark_begin(host.told_2)
        if device == "cpu":
            host.told_2[1] -= 27
        mark_untold_end(host.told_2)
        mark_untold_end(host.told_2)
        took, before = -int(host.told_2[1]), took
        assert took > before
        time.sleep(PAUSE_SECONDS)
    mark_begin(host.told_2)
    mark_end(host.told_2)
    begin, end = host.read()
    assert took <= end - begin < took + 1e9 * PAUSE_SECONDS / 2
    assert device == "cuda" or end - begin == 54
    assert host.told_2[1] == 0
