"""How the tokens of each lane are sampled, on the device, and the memory that a sampling step needs.

Kernels read a lane's row, so that a step uploads no parameter; whoever owns the tables writes a lane
when a request gets it. Knows nothing about requests, and computes nothing.

Shapes: L lanes, R rows, V vocabulary, X biases of a lane, Y stop ids of a lane, C chunks of a row's
logits, N candidates of a row, G programs that edit logits, S rows whose logits are summed up by the kernel
that computes them, P pieces of a row.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch

from kernels.id_groups import GROUP_SIZE

MAX_BIASES = 1024
"""Biases a lane can have."""
MAX_STOP_IDS = 128
"""Stop ids a lane can have."""
MAX_LOGPROBS = 20
"""Log-probabilities a row can have besides the drawn token's."""
CHUNK_SIZE = 1024
"""Neighbouring logits that are summed up together; a power of two."""
PIECE_SIZE = GROUP_SIZE
"""As CHUNK_SIZE, where the kernel that computes the logits sums them up: a group of kernels.sample."""
MAX_SUMMARIZED = 256
"""Rows of which it may."""
MAX_CANDIDATES = 1024
"""Tokens of a row that are ranked against each other; a power of two. More take the slow path."""
NUM_EDITORS = 128
"""Programs that apply penalties; each holds one count for every id of the vocabulary."""


class SamplerFlavour(IntEnum):
    """What a captured step can do; each can do all that the one before it can."""

    GREEDY = 0
    """Every row takes the likeliest token, whatever its temperature says."""
    SAMPLED = 1
    """Temperature, top_k, top_p, min_p."""
    FULL = 2
    """Also biases, penalties, masked stop ids and log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSampling:
    """Sampling parameters by lane. Ranges as in kernels.sample.SampleInputs."""

    temperature_L: torch.Tensor
    """float32; 0 takes the likeliest token."""
    top_k_L: torch.Tensor
    """int32; 0 keeps all."""
    top_p_L: torch.Tensor
    """float32; 1 keeps all."""
    min_p_L: torch.Tensor
    """float32; 0 keeps all."""
    seed_L: torch.Tensor
    """int64: the bits of the unsigned seed."""
    presence_L: torch.Tensor
    """float32; 0 changes nothing."""
    frequency_L: torch.Tensor
    """float32; 0 changes nothing."""
    repetition_L: torch.Tensor
    """float32; 1 changes nothing."""
    num_prompt_L: torch.Tensor
    """int32: tokens of the prompt; those after it are output."""
    min_tokens_L: torch.Tensor
    """int32: stop ids are masked before this many tokens of output."""
    num_logprobs_plus_one_L: torch.Tensor
    """int32: 0 for none, k + 1 for the drawn token and the k likeliest."""
    num_biases_L: torch.Tensor
    """int32."""
    bias_token_ids_LX: torch.Tensor
    """int32; the first num_biases count."""
    bias_values_LX: torch.Tensor
    """float32."""
    num_stop_ids_L: torch.Tensor
    """int32."""
    stop_token_ids_LY: torch.Tensor
    """int32; the first num_stop_ids count."""


WORD_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "presence": torch.float32,
    "frequency": torch.float32,
    "repetition": torch.float32,
    "num_prompt": torch.int32,
    "min_tokens": torch.int32,
    "num_logprobs_plus_one": torch.int32,
    "num_biases": torch.int32,
    "num_stop_ids": torch.int32,
}
"""A lane's parameters of four bytes; LaneSampling describes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerWorkspace:
    """Memory that launches in stream order share; its content means nothing between them."""

    chunk_size: int
    piece_size: int
    """Divides chunk_size."""
    is_edited_R: torch.Tensor
    """int32: 1 where edited_logits_RV has the row."""
    chunk_max_RC: torch.Tensor
    """float32: the largest logit of each chunk."""
    chunk_bound_RC: torch.Tensor
    """float32: no token of the chunk reaches more, noise included; of rows without a limit: by how much the
    best of its groups, noise included, is above the chunk's largest logit, base 2."""
    chunk_sum_RC: torch.Tensor
    """float32: the chunk's weights, relative to its largest logit's."""
    piece_max_SP: torch.Tensor
    """As chunk_max_RC, of pieces."""
    piece_bound_SP: torch.Tensor
    piece_sum_SP: torch.Tensor
    chunk_list_RC: torch.Tensor
    """int32: the chunks that hold candidates."""
    candidate_logits_RN: torch.Tensor
    """float32."""
    candidate_ids_RN: torch.Tensor
    """int32."""
    edited_logits_RV: torch.Tensor | None
    """float32: rows with biases, penalties or masks, after them. None: no flavour FULL."""
    counts_GV: torch.Tensor | None
    """int32: tokens of one row's history by id. All 0 between rows: who reads one puts 0 back."""


def allocate_lane_words(num_lanes: int, device: torch.device | str) -> torch.Tensor:
    """Return words_CL for allocate_lane_sampling, as int32: the parameters of WORD_DTYPES, a row each.

    Two rows more hold the seeds, of two words each.
    """
    return torch.zeros((len(WORD_DTYPES) + 2, num_lanes), dtype=torch.int32, device=device)


def allocate_lane_sampling(
    num_lanes: int, device: torch.device | str, words_CL: torch.Tensor | None = None
) -> LaneSampling:
    """Return tables in which every lane is greedy and without options.

    Args:
        num_lanes: L.
        device: where they lie.
        words_CL: holds the parameters and the seeds, so that its owner writes a lane's in one go.
    """
    words_CL = allocate_lane_words(num_lanes, device) if words_CL is None else words_CL
    words = {
        f"{name}_L": row_L.view(dtype)
        for (name, dtype), row_L in zip(WORD_DTYPES.items(), words_CL, strict=False)
    }
    words["top_p_L"].fill_(1)
    words["repetition_L"].fill_(1)

    def zeros(dtype: torch.dtype, *columns: int) -> torch.Tensor:
        return torch.zeros((num_lanes, *columns), dtype=dtype, device=device)

    return LaneSampling(
        **words,
        seed_L=words_CL[len(WORD_DTYPES) :].view(-1).view(torch.int64),
        bias_token_ids_LX=zeros(torch.int32, MAX_BIASES),
        bias_values_LX=zeros(torch.float32, MAX_BIASES),
        stop_token_ids_LY=zeros(torch.int32, MAX_STOP_IDS),
    )


def allocate_sampler_workspace(
    max_num_rows: int,
    vocab_size: int,
    *,
    flavour: SamplerFlavour,
    device: torch.device | str,
    chunk_size: int = CHUNK_SIZE,
    piece_size: int = PIECE_SIZE,
    max_candidates: int = MAX_CANDIDATES,
    num_editors: int = NUM_EDITORS,
) -> SamplerWorkspace:
    """Allocate what steps of up to this many rows and this flavour need.

    FULL takes 4 bytes for each row and id of the vocabulary: 156 MB for 256 rows of Qwen3, and 78 MB
    for counts.
    """
    num_chunks = -(-vocab_size // chunk_size)

    def zeros(dtype: torch.dtype, *columns: int) -> torch.Tensor:
        return torch.zeros((max_num_rows, *columns), dtype=dtype, device=device)

    def pieces() -> torch.Tensor:
        shape = (min(max_num_rows, MAX_SUMMARIZED), -(-vocab_size // piece_size))
        return torch.zeros(shape, dtype=torch.float32, device=device)

    is_full = flavour == SamplerFlavour.FULL
    num_editors = min(max_num_rows, num_editors)
    counts_GV = torch.zeros((num_editors, vocab_size), dtype=torch.int32, device=device) if is_full else None
    return SamplerWorkspace(
        chunk_size=chunk_size,
        piece_size=piece_size,
        is_edited_R=zeros(torch.int32),
        chunk_max_RC=zeros(torch.float32, num_chunks),
        chunk_bound_RC=zeros(torch.float32, num_chunks),
        chunk_sum_RC=zeros(torch.float32, num_chunks),
        piece_max_SP=pieces(),
        piece_bound_SP=pieces(),
        piece_sum_SP=pieces(),
        chunk_list_RC=zeros(torch.int32, num_chunks),
        candidate_logits_RN=zeros(torch.float32, max_candidates),
        candidate_ids_RN=zeros(torch.int32, max_candidates),
        edited_logits_RV=zeros(torch.float32, vocab_size) if is_full else None,
        counts_GV=counts_GV,
    )
