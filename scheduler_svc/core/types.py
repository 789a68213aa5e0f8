"""Words of the core: ids, sampling parameters, requests and their states.

Knows nothing about gRPC, time or tensors. The picture that other files refer to:

    tokens of one running request, by absolute position

    |<------- prompt ------->|<------------- output ------------->|
    |  computed (folded)     |  scheduled, in flight |  not yet   |
    0        num_computed_tokens     num_scheduled_tokens_total   max_total_tokens
                                               |
                                   the token at this position is known, or will be
                                   when the row in flight that samples it is folded

A *lane* is a request's row in the worker's tables. A *slot* is one token's cell in the KV cache:
``block_id * block_size + offset``. Block 0 belongs to the worker; requests hold ids 1 .. N.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NewType

import numpy as np
import numpy.typing as npt

BlockId = NewType("BlockId", int)
BlockHash = NewType("BlockHash", bytes)
Lane = NewType("Lane", int)
Incarnation = NewType("Incarnation", int)

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class FinishReason(Enum):
    """Why a request ended; each way to end has its own."""

    STOP_TOKEN = auto()
    STOP_STRING = auto()
    LENGTH = auto()
    ABORT = auto()
    DISCONNECT = auto()
    DEADLINE = auto()
    SLOW_CONSUMER = auto()
    DOES_NOT_FIT = auto()
    WORKER_LOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen; ranges as in stepwire.worker.v1.LaneSampling."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the request, the model's own end-of-sequence ids among them unless ignored."""
    min_tokens: int = 0
    """No stop token ends the request before this many output tokens."""
    num_logprobs_plus_one: int = 0
    """0: none; k + 1: the sampled token's and those of the k likeliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """What one worker group can hold; lowered, never raised, by the scheduler's own flags."""

    block_size: int
    """Tokens a block holds."""
    num_blocks: int
    """Blocks that requests can hold: ids 1 .. num_blocks."""
    max_num_seqs: int
    """Lanes, and rows of one step."""
    max_num_batched_tokens: int
    """Tokens of one step."""
    max_model_len: int
    """Tokens of one request, prompt and output together."""
    max_num_waiting: int = 4096
    """Requests that may wait; one more is refused."""

    def __post_init__(self) -> None:
        """Refuse limits that no request could run under."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but must be at least "
                f"max_num_seqs, {self.max_num_seqs}: every decode row needs one token"
            )


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One generation asked for. Fields above the line are given; those below change in the core only."""

    request_id: str
    prompt_token_ids: Int32Array
    sampling: SamplingParams
    max_tokens: int | None = None
    """Output tokens at most; None: as many as fit."""
    cache_salt: str = ""
    runs_ahead: bool = True
    """False: never planned while one of its rows is in flight (grammar-constrained requests)."""
    owner: int = 0
    """Whose request this is: the core hands it back with every output and never reads it."""
    handle: int = 0
    """The owner's own number for it: handed back likewise."""
    known_output_token_ids: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Output from before it came here, which it goes on after: output like any, but not told again."""
    # ---- state ----
    status: RequestStatus = RequestStatus.WAITING
    token_ids: Int32Array = field(init=False)
    """Prompt and folded output, while the request holds no lane; else they stand in the lane's row."""
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the full blocks of its tokens, as far as they were needed."""
    hash_block_size: int = 0
    """Tokens of the blocks that were hashed; worker groups may differ."""
    arrival: int = 0
    """Order of arrival, from 1."""
    max_total_tokens: int = 0
    """Prompt and output together at most; set on arrival, and again when a new epoch lowers it."""
    lane: Lane = Lane(-1)
    incarnation: Incarnation = Incarnation(0)
    """Number of the latest admission; 0 before the first."""
    num_prefix_hit_tokens: int = 0
    """Prompt tokens that the prefix cache saved at the first admission; reported only."""
    num_late_rows: int = 0
    """Rows sent before a preemption and not yet folded: it is admitted again at 0."""
    num_preemptions: int = 0
    num_epochs_lost: int = 0
    """Workers that were lost while they ran it; epochs.py tells which count."""
    num_tokens_in_doubt: int = 0
    """Tokens it would have had, had the steps in flight come back when its worker was lost."""

    def __post_init__(self) -> None:
        """Begin with all that is known."""
        known = self.known_output_token_ids
        self.token_ids = (
            np.concatenate((self.prompt_token_ids, known)) if len(known) else self.prompt_token_ids
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known, prompt and folded output, as of when it last held no lane."""
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> Int32Array:
        """Folded output tokens, as of when it last held no lane."""
        return self.token_ids[len(self.prompt_token_ids) :]
