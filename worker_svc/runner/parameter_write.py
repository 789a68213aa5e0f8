"""The sampling parameters of admitted lanes as one write into their table on the device.

Knows nothing about what the parameters mean.
Legend: L lanes, A admissions, C words of a lane: its parameters in the order of WORD_DTYPES, then its seed.
"""

from functools import cache
from struct import Struct

import numpy as np
import torch

from kernels.sampler_tables import WORD_DTYPES
from worker_svc.batch.step import Admission, Int32Array, Int64Array
from worker_svc.runner.cell_writer import CellWrite

_NUM_PARAMETERS = len(WORD_DTYPES)
WORDS_PER_LANE = _NUM_PARAMETERS + 2
_WORDS = Struct(
    "<" + "".join("f" if dtype.is_floating_point else "i" for dtype in WORD_DTYPES.values()) + "Q"
)


def parameter_write(words_W: torch.Tensor, admissions: tuple[Admission, ...], *, num_lanes: int) -> CellWrite:
    """Make the write of all parameters of these lanes.

    Args:
        words_W: What allocate_lane_words made, in one dimension.
        admissions: At least one.
        num_lanes: L.
    """
    cells_W = parameter_cells(admissions, num_lanes=num_lanes)
    return CellWrite(words_W, cells_W, parameter_words(admissions))


def parameter_cells(admissions: tuple[Admission, ...], *, num_lanes: int) -> Int64Array:
    """Return where the parameters of these lanes are, one lane's after another's; see ``parameter_write``."""
    lanes_A1 = np.array([[admission.lane] for admission in admissions], np.int64)
    first_C, stride_C = _cells_of_first_lanes(num_lanes)
    cells_AC = first_C + lanes_A1 * stride_C
    return cells_AC.ravel()


def parameter_words(admissions: tuple[Admission, ...]) -> Int32Array:
    """Return what they become, likewise."""
    # A record array takes ten times as long to make.
    data = b"".join([_WORDS.pack(*_parameters(admission)) for admission in admissions])
    return np.frombuffer(data, np.int32)


@cache
def _cells_of_first_lanes(num_lanes: int) -> tuple[Int64Array, Int64Array]:
    """Return where lane 0 has each of its words, and how far from there the next lane has it."""
    # A parameter's words stand together, and so do the seeds, of two words each.
    first_C = np.array(
        [*range(0, (_NUM_PARAMETERS + 1) * num_lanes, num_lanes), _NUM_PARAMETERS * num_lanes + 1]
    )
    return first_C, np.array([1] * _NUM_PARAMETERS + [2, 2])


def _parameters(admission: Admission) -> tuple[float, ...]:
    sampling = admission.sampling
    return (
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        admission.num_prompt_tokens,
        sampling.min_tokens,
        sampling.num_logprobs_plus_one,
        len(sampling.bias_token_ids),
        # Stop ids that are never masked stay on the host.
        len(sampling.stop_token_ids) if sampling.min_tokens else 0,
        sampling.seed,
    )
