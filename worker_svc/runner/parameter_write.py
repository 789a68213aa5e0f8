"""The sampling parameters of admitted lanes as one write into their table on the device.

Knows nothing about what the parameters mean.
Legend: L lanes, A admissions, C words of a lane: its parameters in the order of WORD_DTYPES, then its seed.
"""

from typing import Any

import numpy as np
import torch

from kernels.sampler_tables import WORD_DTYPES
from worker_svc.batch.step import Admission, Int32Array
from worker_svc.runner.cell_writer import CellWrite

_NUM_PARAMETERS = len(WORD_DTYPES)
_DTYPE = np.dtype(
    [(name, "<f4" if dtype.is_floating_point else "<i4") for name, dtype in WORD_DTYPES.items()]
    + [("seed", "<u8")]
)


def parameter_write(words_W: torch.Tensor, admissions: tuple[Admission, ...], *, num_lanes: int) -> CellWrite:
    """Make the write of all parameters of these lanes.

    Args:
        words_W: What allocate_lane_words made, in one dimension.
        admissions: At least one.
        num_lanes: L.
    """
    lanes_A = np.array([admission.lane for admission in admissions])
    # A parameter's words stand together, and so do the seeds, of two words each.
    first_C = np.array(
        [*range(0, (_NUM_PARAMETERS + 1) * num_lanes, num_lanes), _NUM_PARAMETERS * num_lanes + 1]
    )
    stride_C = np.array([1] * _NUM_PARAMETERS + [2, 2])
    cells_AC = first_C + lanes_A[:, None] * stride_C
    return CellWrite(table_W=words_W, cells=cells_AC.ravel(), values=parameter_words(admissions).ravel())


def parameter_words(admissions: tuple[Admission, ...]) -> Int32Array:
    """Return words_AC."""
    rows: Any = np.array([_parameters(admission) for admission in admissions], _DTYPE)
    words_AC: Int32Array = rows.view(np.int32).reshape(len(admissions), -1)
    return words_AC


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
