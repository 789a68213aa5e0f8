"""Lane tables on the device, on a cpu(): what admissions and appends make of them."""

from typing import Any

import numpy as np
import pytest
import torch

from kernels import sampler_tables
from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch import checks
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.lane_parameters import LaneParameters, SamplingFlavour
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step_rows import BlockAppends
from worker_svc.errors import ProtocolError
from worker_svc.runner.cell_writer import CellWriter
from worker_svc.runner.device_sampler import DeviceSampler
from worker_svc.runner.device_tables import DeviceTables
from worker_svc.runner.packed_upload import PackedUpload
from worker_svc.runner.staging import StagingRing
from worker_svc.runner.warm_up import warm_up_steps

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=3, max_num_batched_tokens=40, max_model_len=12, vocab_size=100
)


def cpu() -> torch.device:
    return torch.device("cpu")


def make_tables() -> DeviceTables:
    return DeviceTables(LIMITS, make_writer(), device=cpu())


def make_writer() -> CellWriter:
    return CellWriter(PackedUpload(StagingRing(2, 64, device=cpu()), cpu()))


def test_an_admission_writes_its_own_lane() -> None:
    tables = make_tables()
    admissions = (
        admission(2, token_ids=int32([5, 6, 7, 8, 9]), block_ids=int32([3, 9])),
        admission(0, token_ids=int32([1]), block_ids=int32([4])),
    )
    make_writer().write(tables.list_writes(admissions))
    assert tables.token_pool_LP[:, :6].tolist() == [[1, 0, 0, 0, 0, 0], [0] * 6, [5, 6, 7, 8, 9, 0]]
    assert tables.block_table_LM.tolist() == [[4, 0, 0, 0], [0] * 4, [3, 9, 0, 0]]


def test_an_admission_writes_all_that_its_lane_is_sampled_with() -> None:
    sampler = DeviceSampler(LIMITS, torch.zeros(3, 13, dtype=torch.int32), device=cpu())
    asked = sampling(
        temperature=0.5, top_k=3, top_p=0.75, min_p=0.25, seed=2**64 - 3, presence_penalty=1.5,
        frequency_penalty=-2.0, repetition_penalty=1.25, bias_token_ids=int32([7, 9]),
        bias_values=np.array([1.5, -4.0], np.float32), stop_token_ids=int32([5]), min_tokens=2,
        num_logprobs_plus_one=4,
    )  # fmt: skip
    admissions = (admission(2, 4, (1,), sampling=asked), admission(0, 3, (2,), sampling=sampling(seed=8)))
    make_writer().write(sampler.list_writes(admissions))
    tables = sampler._tables
    assert [getattr(tables, f"{name}_L").tolist() for name in sampler_tables.WORD_DTYPES] == [
        [0, 0, 0.5], [0, 0, 3], [1, 1, 0.75], [0, 0, 0.25], [0, 0, 1.5], [0, 0, -2], [1, 1, 1.25],
        [3, 0, 4], [0, 0, 2], [0, 0, 4], [0, 0, 2], [0, 0, 1],
    ]  # fmt: skip
    assert tables.seed_L.tolist() == [8, 0, -3]
    assert tables.bias_token_ids_LX[2, :3].tolist() == [7, 9, 0]
    assert tables.bias_values_LX[2, :3].tolist() == [1.5, -4, 0]
    assert tables.stop_token_ids_LY[:, 0].tolist() == [0, 0, 5]


def test_appended_blocks_stand_behind_the_lanes_own() -> None:
    tables, host = make_tables(), SequenceTable(LIMITS)
    admissions = (admission(0, 4, (1,)), admission(2, 4, (2,)))
    rows = host.apply(
        step(
            1,
            admissions=admissions,
            append_lanes=int32([2, 0, 2]),
            append_block_ids=int32([7, 8, 9]),
        )
    )
    make_writer().write(tables.list_writes(admissions))
    tables.append(rows.appends)
    assert tables.block_table_LM.tolist() == [[1, 8, 0, 0], [0] * 4, [2, 7, 9, 0]]
    assert tables.block_table_LM.tolist() == host.block_table.tolist()


def test_the_spare_cell_is_no_lanes() -> None:
    tables = make_tables()
    tables.block_cells_W[tables.shape.spare_cell] = 99
    assert tables.block_table_LM.tolist() == [[0] * 4] * 3
    tables.append(BlockAppends(lanes=np.array([2]), columns=np.array([3]), block_ids=np.array([5], np.int32)))
    assert tables.block_table_LM[2].tolist() == [0, 0, 0, 5]


@pytest.mark.parametrize(
    ("changes", "flavour"),
    [
        ({}, SamplingFlavour.GREEDY),
        ({"stop_token_ids": int32([5])}, SamplingFlavour.GREEDY),
        ({"temperature": 0.5}, SamplingFlavour.DRAWN),
        ({"temperature": 0.5, "top_p": 0.9}, SamplingFlavour.SAMPLED),
        ({"temperature": 0.5, "min_p": 0.1}, SamplingFlavour.SAMPLED),
        ({"temperature": 0.5, "top_k": 3}, SamplingFlavour.SAMPLED),
        ({"repetition_penalty": 1.5}, SamplingFlavour.FULL),
        ({"num_logprobs_plus_one": 1}, SamplingFlavour.FULL),
        ({"bias_token_ids": int32([5]), "bias_values": np.ones(1, np.float32)}, SamplingFlavour.FULL),
    ],
)
def test_a_lane_takes_as_much_as_it_asks_for(changes: dict[str, Any], flavour: SamplingFlavour) -> None:
    parameters = LaneParameters(3)
    parameters.set(1, sampling(**changes), num_prompt=4)
    lanes, num_known = np.array([0, 1]), np.array([9, 9])
    assert parameters.flavour_of(lanes, num_known=num_known) == flavour
    assert parameters.flavour_of(lanes[:1], num_known=num_known[:1]) == SamplingFlavour.GREEDY


def test_the_streams_limits_are_those_of_the_samplers_tables() -> None:
    assert (checks.MAX_BIASES, checks.MAX_STOP_IDS, checks.MAX_LOGPROBS_PLUS_ONE) == (
        sampler_tables.MAX_BIASES,
        sampler_tables.MAX_STOP_IDS,
        sampler_tables.MAX_LOGPROBS + 1,
    )


def test_more_than_the_samplers_tables_hold_is_refused() -> None:
    table = SequenceTable(LIMITS)
    admitted = admission(1, sampling=sampling(num_logprobs_plus_one=22))
    with pytest.raises(ProtocolError, match="num_logprobs_plus_one of lane 1 is 22, but must be at most 21"):
        table.apply(step(1, admissions=(admitted,)))


def test_masks_are_full_until_min_tokens() -> None:
    parameters = LaneParameters(2)
    parameters.set(1, sampling(stop_token_ids=int32([5]), min_tokens=2), num_prompt=4)
    flavours = [
        parameters.flavour_of(np.array([1]), num_known=np.array([num_known])) for num_known in (4, 5, 6)
    ]
    assert flavours == [SamplingFlavour.FULL, SamplingFlavour.FULL, SamplingFlavour.GREEDY]


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    [(3, 40, 12), (8, 8, 100), (2, 64, 200), (1, 1, 4)],
)
def test_the_warm_up_is_as_large_as_the_limits_and_keeps_the_streams_rules(
    max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
) -> None:
    limits = TableLimits(
        block_size=4,
        num_blocks=1,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        vocab_size=100,
    )
    table = SequenceTable(limits)
    rows = [table.apply(a_step) for a_step in warm_up_steps(limits)]
    longest = max_model_len - 3
    assert rows[0].num_tokens_total == min(max_num_batched_tokens, max_num_seqs * longest)
    assert len(rows[-1].lanes) == max_num_seqs == rows[-1].num_tokens_total


def test_there_is_no_warm_up_for_requests_of_three_tokens() -> None:
    limits = TableLimits(
        block_size=4, num_blocks=1, max_num_seqs=1, max_num_batched_tokens=8, max_model_len=3, vocab_size=9
    )
    assert list(warm_up_steps(limits)) == []
