"""Projections of many rows to a vocabulary: products, and their summaries, are those of the reference.

Gluon has no interpreter: the kernel runs on Hopper GPUs only, and elsewhere is emulated.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kernels import (
    counter_noise,
    large_head,
    large_head_kernel,
    logit_chunks,
    logit_summary,
    ring_stage,
    tile_summary,
)
from kernels import streamed_projection as streamed
from kernels.counter_random import GROUP_IDS_FROM, gumbel_noise_ref, uniform_ref
from kernels.device_sampler import sample_decode, summary_of
from kernels.sampler_tables import SamplerFlavour, allocate_lane_sampling, allocate_sampler_workspace
from tests.kernels.emulated_gluon import Descriptor, run_emulated

MODULES = (large_head_kernel, tile_summary, counter_noise, logit_chunks, logit_summary, ring_stage)
CANARY = 7.0
NUM_OUTPUTS, NUM_INPUTS = 640, 192
PIECE_SIZE = 128
NUM_CHUNKS = 5


class Lanes:
    """What rows ask for, by lanes in another order."""

    def __init__(self, num_rows: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.lanes = generator.permutation(num_rows).astype(np.int32)
        self.lanes[num_rows // 2] = -1
        self.positions = generator.integers(0, 500, num_rows).astype(np.int32)
        self.temperature = generator.uniform(0.3, 2, num_rows).astype(np.float32)
        self.temperature[0] = 0
        self.top_k = np.where(np.arange(num_rows) % 5 == 1, 3, 0).astype(np.int32)
        self.top_p = np.where(np.arange(num_rows) % 3 == 1, 0.9, 1).astype(np.float32)
        self.min_p = np.where(np.arange(num_rows) % 7 == 1, 0.1, 0).astype(np.float32)
        self.seeds = generator.integers(-(2**62), 2**62, num_rows)

    @property
    def tables(self) -> tuple[Any, ...]:
        """Return the kernel's arguments."""
        lane_values = (self.temperature, self.top_k, self.top_p, self.min_p, self.seeds)
        return self.lanes, self.positions, *lane_values

    @property
    def lane_values(self) -> dict[str, Any]:
        """Return the tables by name."""
        names = ("temperature", "top_k", "top_p", "min_p", "seed")
        return dict(zip(names, self.tables[2:], strict=True))

    @property
    def is_live(self) -> Any:
        """Tell which rows are no padding."""
        return self.lanes >= 0

    @property
    def is_drawn(self) -> Any:
        """Tell which rows have a temperature."""
        return self.is_live & (self.temperature[self.lanes] > 0)

    @property
    def is_limited(self) -> Any:
        """Tell which of them have a limit."""
        lanes = self.lanes
        has_limit = (self.top_k[lanes] > 0) | (self.top_p[lanes] < 1) | (self.min_p[lanes] > 0)
        return self.is_drawn & has_limit

    def wanted(self, *, is_sampled: bool) -> tuple[Any, ...]:
        """Tell which rows want a maximum, a lift or a bound, and a sum."""
        if not is_sampled:
            nobody = np.zeros_like(self.is_live)
            return self.is_live, nobody, nobody
        is_bounded = self.is_drawn & (self.top_k[self.lanes] == 0)
        return self.is_live, is_bounded, is_bounded & (self.top_p[self.lanes] < 1)


def _expected(logits_RV: torch.Tensor, lanes: Lanes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return maxima, lifts or bounds, and sums of all rows' pieces."""
    lane_R = torch.from_numpy(lanes.lanes).long()
    scale_R1 = torch.from_numpy(lanes.temperature)[lane_R].clamp(min=1e-20)[:, None].double().reciprocal()
    seed_R, position_R = torch.from_numpy(lanes.seeds)[lane_R], torch.from_numpy(lanes.positions).long() + 1
    # Bounds take the first 23 bits, and what they lose is never less than nothing.
    uniform_RV = (uniform_ref(seed_R, position_R, logits_RV.shape[1]).double() * 2**23).floor() / 2**23
    pieces_RNO = logits_RV.double().view(len(logits_RV), -1, PIECE_SIZE)
    maxima_RN = pieces_RNO.amax(2)
    noisy_RV = logits_RV * scale_R1 - uniform_RV.log()
    sums_RN = ((pieces_RNO - maxima_RN[..., None]) * scale_R1[..., None]).exp().sum(2)
    bounds_RN = noisy_RV.view_as(pieces_RNO).amax(2) / np.log(2)
    noise_RN = gumbel_noise_ref(seed_R, position_R, sums_RN.shape[1], first_id=GROUP_IDS_FROM)
    lifts_RN = (sums_RN.log() + noise_RN) / np.log(2)
    is_limited_R1 = torch.from_numpy(lanes.is_limited)[:, None]
    return maxima_RN, torch.where(is_limited_R1, bounds_RN, lifts_RN), sums_RN


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A launch's shape."""

    num_rows: int
    row_blocks: tuple[int, ...] = (128,)
    summed_rows: int = 32
    num_programs: int = 2
    is_sampled: bool = True
    is_summarized: bool = True


def _run(case: Case, x: Any, weight: Any, out: Any, lanes: Lanes, outs: list[Any]) -> None:
    summarized = (*lanes.tables, *(numbers.ravel() for numbers in outs))
    xs, targets = (
        [Descriptor(numbers, (block_rows, 64)) for block_rows in case.row_blocks] for numbers in (x, out)
    )
    none = [None] * (large_head.MOST_BLOCKS - len(case.row_blocks))
    run_emulated(
        MODULES,
        *(*xs, *none, Descriptor(weight, (128, 64)), *targets, *none, out.ravel(), NUM_OUTPUTS),
        *(summarized if case.is_summarized else [None] * len(summarized)),
        *(NUM_CHUNKS, case.num_rows),
        num_programs=case.num_programs,
        I=NUM_INPUTS,
        O=NUM_OUTPUTS,
        STAGES=2,
        SUB=case.summed_rows,
        IS_SAMPLED=case.is_sampled,
        PDL=False,
    )


@pytest.mark.parametrize(
    "case",
    [
        Case(num_rows=70),
        Case(num_rows=128, num_programs=5),
        Case(num_rows=40, row_blocks=(64,), summed_rows=64, num_programs=3),
        Case(num_rows=33, row_blocks=(64,), is_sampled=False),
        Case(num_rows=33, row_blocks=(64,), is_sampled=False, is_summarized=False),
        Case(num_rows=130, row_blocks=(128, 16), num_programs=3),
        Case(num_rows=190, row_blocks=(128, 64), summed_rows=64),
    ],
    ids=lambda case: f"{case.num_rows} rows",
)
def test_emulated_products_and_summaries(case: Case) -> None:
    generator = np.random.default_rng(case.num_rows)
    num_rows = case.num_rows
    x, weight = (
        generator.standard_normal((size, NUM_INPUTS), np.float32) for size in (num_rows, NUM_OUTPUTS)
    )
    weight *= np.float32(NUM_INPUTS**-0.5)
    room, lanes = np.full((num_rows + 1, NUM_OUTPUTS), CANARY, np.float32), Lanes(num_rows)
    outs = [np.full((num_rows + 1, NUM_OUTPUTS // PIECE_SIZE), CANARY, np.float32) for _ in range(3)]
    _run(case, x, weight, room[:-1], lanes, outs)
    logits_RV = torch.from_numpy(x @ weight.T)
    _check_written(torch.from_numpy(room), logits_RV, lanes, case)
    wanted = lanes.wanted(is_sampled=case.is_sampled)
    for got, expected_RN, is_wanted in zip(outs, _expected(logits_RV, lanes), wanted, strict=True):
        is_there = is_wanted & case.is_summarized
        found = torch.from_numpy(got[:-1]).double()[is_there]
        torch.testing.assert_close(found, expected_RN[is_there], rtol=1e-5, atol=1e-5)
        assert (got[:-1][~is_there] == CANARY).all()
        assert (got[-1] == CANARY).all()


def _check_written(room_RV: torch.Tensor, logits_RV: torch.Tensor, lanes: Lanes, case: Case) -> None:
    """Check that logits are right where any are, all of rows with limits, and what others draw from."""
    is_there_RN = (room_RV[:-1] != CANARY).view(len(logits_RV), -1, PIECE_SIZE)
    assert (room_RV[-1] == CANARY).all()
    written = room_RV[:-1] != CANARY
    torch.testing.assert_close(room_RV[:-1][written], logits_RV[written], rtol=1e-5, atol=1e-5)
    is_piece_there_RN = is_there_RN.all(2)
    assert torch.equal(is_there_RN.any(2), is_piece_there_RN)
    if not case.is_summarized:
        assert is_piece_there_RN.all()
        return
    maxima_RN, lifts_RN, _ = _expected(logits_RV, lanes)
    is_live_R, is_drawn_R, is_limited_R = map(
        torch.from_numpy,
        (lanes.is_live, lanes.is_drawn & case.is_sampled, lanes.is_limited & case.is_sampled),
    )
    assert is_piece_there_RN[is_limited_R].all()
    assert not is_piece_there_RN[~is_live_R].any()
    temperature_R1 = torch.from_numpy(lanes.temperature)[torch.from_numpy(lanes.lanes).long()][:, None]
    values_RN = maxima_RN / temperature_R1 / np.log(2) + lifts_RN
    best_R = torch.where(is_drawn_R, values_RN.argmax(1), maxima_RN.argmax(1))
    assert is_piece_there_RN[torch.arange(len(best_R)), best_R][is_live_R].all()
    # Each program's first tile is always there; of the others only some.
    is_all_first = case.num_programs >= NUM_OUTPUTS // PIECE_SIZE
    assert is_piece_there_RN[is_live_R & ~is_limited_R].all() == is_all_first


def test_a_tile_is_there_for_the_rows_where_it_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_head, "runs_gluon", lambda _: True)
    weight = torch.empty(1024, 512, dtype=torch.bfloat16, device="meta")

    def tile_rows(num_rows: int, weight_OI: torch.Tensor = weight) -> int:
        tile = large_head.choose_large_tile(weight_OI, num_rows)
        return 0 if tile is None else tile.num_rows

    starts = {33: 64, 65: 80, 81: 96, 97: 128, 129: 144, 145: 160, 161: 192, 193: 256}
    ends = {num_rows: num_rows for num_rows in starts.values()}
    expected = starts | ends | {32: 0, 257: 0}
    assert {num_rows: tile_rows(num_rows) for num_rows in expected} == expected
    assert tile_rows(64, weight.new_empty(1024, 4096)) == 64
    assert tile_rows(144, weight.new_empty(1024, 2048)) == 144
    for num_rows, num_inputs in ((144, 4096), (192, 2048), (256, 2048)):
        assert tile_rows(num_rows, weight.new_empty(1024, num_inputs)) == 0
    assert tile_rows(64, weight[:, :320]) == 0  # strided
    for shape in ((1000, 512), (1024, 500), (1024, 320)):
        assert tile_rows(64, weight.new_empty(shape)) == 0
    assert tile_rows(64, weight.float()) == 0
    monkeypatch.undo()
    assert tile_rows(64) == 0


def test_of_what_is_in_the_way_streamed_projection_takes_care(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_head, "runs_gluon", lambda _: True)
    x, weight = torch.zeros(65, 512).half(), torch.zeros(1024, 512).half()
    assert streamed.can_stream(weight, 65)
    assert not streamed.can_stream(weight, 257)
    for out in (torch.zeros(65, 1028).half()[:, 2:1026], torch.zeros(65, 1024)):
        with pytest.raises(ValueError, match="at most 64 rows"):
            streamed.streamed_projection(x, weight, out)


@pytest.fixture
def _hopper() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [33, 64, 70, 90, 128, 130, 144, 160, 190, 192, 200, 250])
def test_draws_are_those_from_the_same_logits_read_once_more(num_rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(num_rows)
    x, weight = (
        torch.randn(size, 512, generator=generator, device="cuda").to(dtype) for size in (num_rows, 20_480)
    )
    weight *= 512**-0.5
    tables, lanes_B = allocate_lane_sampling(num_rows, "cuda"), torch.arange(num_rows).int().cuda()
    for name, values in Lanes(num_rows).lane_values.items():
        getattr(tables, f"{name}_L").copy_(torch.from_numpy(values))
    workspace = allocate_sampler_workspace(
        num_rows, len(weight), flavour=SamplerFlavour.SAMPLED, device="cuda"
    )
    options: dict[str, Any] = {"flavour": SamplerFlavour.SAMPLED, "workspace": workspace}
    summary = summary_of(lanes_B, lanes_B, tables, **options)
    logits = streamed.streamed_projection(x, weight)
    written = streamed.streamed_projection(x, weight, torch.full_like(logits, CANARY), summary=summary)
    torch.testing.assert_close(logits.float(), x.float() @ weight.float().t(), rtol=1e-2, atol=2e-2)
    pool_LP, outs = torch.zeros(num_rows, 600).int().cuda(), torch.full((2, num_rows), -1).int().cuda()
    for is_summarized, out_B in zip((True, False), outs, strict=True):
        arguments = (written if is_summarized else logits, lanes_B, lanes_B, tables, pool_LP, out_B)
        sample_decode(*arguments, **options, is_summarized=is_summarized)
    assert torch.equal(*outs)
    assert outs.min() >= 0


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("num_rows", [128, 192])
def test_a_row_is_the_same_alone(num_rows: int) -> None:
    x, weight = torch.randn(num_rows, 512).cuda().half(), torch.randn(2048, 512).cuda().half()
    tile = large_head.choose_large_tile(weight, num_rows)
    assert tile is not None
    options: dict[str, Any] = {"tile": tile, "summary": None, "is_dependent": False}
    together, alone = (
        large_head.large_head(x, weight, x.new_empty(num_rows, 2048), **options),
        x.new_empty(1, 2048),
    )
    large_head.large_head(x[77:78].clone(), weight, alone, **options)
    assert torch.equal(alone[0], together[77])
