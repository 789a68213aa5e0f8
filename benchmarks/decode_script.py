"""The engine's messages for requests that only decode, without an engine.

The first step admits all lanes with one token left to compute, so that no step has prefill rows. Knows
nothing about streams or who runs the steps.
"""

from collections.abc import Iterator

import numpy as np
from stepwire.worker.v1 import worker_service_pb2 as pb

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import Int64Array

_BLOCK_SIZE = 16
_BLOCKS_PER_LANE = 256


def make_limits(num_rows: int) -> TableLimits:
    """Return the limits of a worker for so many requests."""
    return TableLimits(
        block_size=_BLOCK_SIZE,
        num_blocks=num_rows * _BLOCKS_PER_LANE,
        max_num_seqs=num_rows,
        max_num_batched_tokens=16384,
        max_model_len=_BLOCK_SIZE * _BLOCKS_PER_LANE,
        vocab_size=1024,
    )


def decode_steps(num_rows: int, *, lease_steps: int = 1) -> Iterator[pb.RunStepsRequest]:
    """Yield steps, or leases of so many iterations, with the blocks they need, until lanes are full."""
    lanes = np.arange(num_rows)
    # Lanes differ in when they need a block, as requests do; nobody begins at a block's first slot.
    positions = 1 + lanes % (_BLOCK_SIZE - 1)
    step_id = 0
    while (positions + lease_steps).max() < _BLOCK_SIZE * _BLOCKS_PER_LANE:
        step_id += 1
        num_steps = 1 if step_id == 1 else lease_steps
        request = pb.RunStepsRequest(step=_step(step_id, num_rows, num_steps=num_steps))
        columns = (positions + num_steps - 1) // _BLOCK_SIZE
        appends = lanes[columns > (positions - 1) // _BLOCK_SIZE]
        request.step.append_lanes = _int32(appends)
        request.step.append_block_ids = _int32(1 + appends * _BLOCKS_PER_LANE + columns[appends])
        if step_id == 1:
            request.step.admissions.extend(map(_admission, lanes.tolist(), positions.tolist()))
        yield request
        positions = positions + num_steps


def _step(step_id: int, num_rows: int, *, num_steps: int) -> pb.Step:
    step = pb.Step(
        step_id=step_id,
        row_lanes=_int32(np.arange(num_rows)),
        row_num_tokens=_int32(np.full(num_rows, num_steps)),
        row_samples=b"\1" * num_rows,
    )
    if num_steps > 1:
        step.num_steps = num_steps
    return step


def _admission(lane: int, num_computed: int) -> pb.Admission:
    return pb.Admission(
        lane=lane,
        incarnation=1,
        token_ids=_int32(np.zeros(num_computed + 1, np.int64)),
        num_prompt_tokens=num_computed + 1,
        num_computed_tokens=num_computed,
        block_ids=_int32(np.array([1 + lane * _BLOCKS_PER_LANE])),
        max_total_tokens=_BLOCK_SIZE * _BLOCKS_PER_LANE,
        sampling=pb.LaneSampling(
            temperature=0.6, top_p=1, repetition_penalty=1, stop_token_ids=_int32(np.array([5]))
        ),
    )


def _int32(values: Int64Array) -> bytes:
    return values.astype("<i4").tobytes()
