"""The lanes of the stand-in worker: applies steps as a real worker would, without a model.

Holds every step to the protocol and "samples" a known function of (seed, absolute position). Its KV
cache holds token ids, so that a wrong block table or a wrong prefix hit shows. numpy over rows: a
step of 256 decode rows takes about 0.1 ms. Knows nothing about gRPC streams or time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from stepwire.worker.v1 import worker_service_pb2 as pb

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
UInt64Array = npt.NDArray[np.uint64]

_NOTHING = -1


class ProtocolFaultError(Exception):
    """A step broke the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInLimits:
    """What the stand-in worker says it can hold, and its model."""

    block_size: int = 4
    num_blocks: int = 64
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 64
    max_steps_in_flight: int = 4
    vocab_size: int = 1000
    config_hash: str = "c0ffee"
    tokenizer_hash: str = ""


def sampled_tokens(seeds: UInt64Array, positions: Int64Array, *, vocab_size: int) -> Int32Array:
    """Give the token "sampled" at each absolute position: a hash (SplitMix64) of seed and position."""
    bits = seeds + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    token_ids: Int32Array = (bits % np.uint64(vocab_size)).astype(np.int32)
    return token_ids


def expected_tokens(seed: int, first_position: int, count: int, *, vocab_size: int = 1000) -> list[int]:
    """Give the tokens that a request with ``first_position`` prompt tokens must get."""
    seeds = np.full(count, seed, np.uint64)
    token_ids: list[int] = sampled_tokens(
        seeds, first_position + np.arange(count), vocab_size=vocab_size
    ).tolist()
    return token_ids


def check(is_right: bool | np.bool_, message: str) -> None:
    # Messages name no arrays: writing those out, right or wrong, cost 1 ms a step.
    if not is_right:
        raise ProtocolFaultError(message)


def ints(data: bytes) -> Int64Array:
    check(len(data) % 4 == 0, f"{len(data)} bytes are no int32 array")
    return np.frombuffer(data, "<i4").astype(np.int64)


def is_distinct(values: Int64Array) -> bool:
    return len(np.unique(values)) == len(values)


class StandInLanes:
    """All lanes of one epoch."""

    def __init__(
        self,
        limits: StandInLimits,
        *,
        checks_cache: bool = True,
        script: Int32Array | None = None,
        counts_from_output: bool = False,
    ) -> None:
        """Begin an epoch with no lane held.

        Args:
            limits: what the lanes can hold.
            checks_cache: read each row's whole context back from the cache; costs its length.
            script: "sample" the tokens of this text, at (seed + position) modulo its length.
            counts_from_output: of the script, positions count from the first token of output.
        """
        lanes, max_blocks = limits.max_num_seqs, -(-limits.max_model_len // limits.block_size)
        self._limits = limits
        self._checks_cache = checks_cache
        self._script = script
        self._counts_from_output = counts_from_output
        self._last_step_id = 0
        self._last_incarnation = 0
        self.is_held = np.zeros(lanes, np.bool_)
        self._num_computed = np.zeros(lanes, np.int64)
        self._num_known = np.zeros(lanes, np.int64)
        self._num_prompt = np.zeros(lanes, np.int64)
        self._max_total = np.zeros(lanes, np.int64)
        self._tokens = np.zeros((lanes, limits.max_model_len + 1), np.int64)
        self._table = np.zeros((lanes, max_blocks), np.int64)
        self._num_blocks = np.zeros(lanes, np.int64)
        self._seeds = np.zeros(lanes, np.uint64)
        self._num_logprobs = np.zeros(lanes, np.int64)
        self._masked_until = np.zeros(lanes, np.int64)
        """Stop ids are masked where the sampled token's position is below this."""
        self._stop_ids: dict[int, frozenset[int]] = {}
        self._num_holders = np.zeros(limits.num_blocks + 1, np.int64)
        self._cache = np.full((limits.num_blocks + 1) * limits.block_size, _NOTHING, np.int64)

    def apply(self, step: pb.Step) -> pb.StepResult:
        """Run one step that is no lease.

        Raises:
            ProtocolFaultError: if it breaks the protocol.
        """
        self._apply_changes(step)
        samples = np.frombuffer(step.row_samples, np.uint8).astype(np.bool_)
        return self._run_rows(ints(step.row_lanes), ints(step.row_num_tokens), samples, step.step_id)

    def _apply_changes(self, step: pb.Step) -> None:
        check(step.step_id == self._last_step_id + 1, f"step {step.step_id} after {self._last_step_id}")
        self._last_step_id = step.step_id
        self._release(ints(step.released_lanes))
        for admission in step.admissions:
            self._admit(admission)
        self._append(ints(step.append_lanes), ints(step.append_block_ids))

    def _release(self, lanes: Int64Array) -> None:
        self._check_lanes(lanes, "released")
        check(is_distinct(lanes), "released lanes are not distinct")
        self.is_held[lanes] = False
        for lane in lanes.tolist():
            self._num_holders[self._table[lane, : self._num_blocks[lane]]] -= 1

    def _admit(self, admission: pb.Admission) -> None:
        lane, limits = admission.lane, self._limits
        token_ids, block_ids = ints(admission.token_ids), ints(admission.block_ids)
        check(lane < limits.max_num_seqs and not self.is_held[lane], f"lane {lane} is not free")
        check(
            admission.incarnation > self._last_incarnation, f"incarnation {admission.incarnation} is not new"
        )
        check(0 < admission.num_prompt_tokens <= len(token_ids), "no prompt")
        check(admission.num_computed_tokens < len(token_ids), "no token is left to compute")
        check(len(token_ids) < admission.max_total_tokens <= limits.max_model_len, "too many tokens")
        check(admission.num_computed_tokens <= len(block_ids) * limits.block_size, "cached but no block")
        self._check_blocks(block_ids)
        num_cached = admission.num_computed_tokens // limits.block_size
        check((self._num_holders[block_ids[num_cached:]] == 0).all(), "a new block is held already")
        self._last_incarnation = admission.incarnation
        self.is_held[lane] = True
        self._num_holders[block_ids] += 1
        self._table[lane, : len(block_ids)] = block_ids
        self._num_blocks[lane] = len(block_ids)
        self._tokens[lane, : len(token_ids)] = token_ids
        self._num_known[lane] = len(token_ids)
        self._num_prompt[lane] = admission.num_prompt_tokens
        self._num_computed[lane] = admission.num_computed_tokens
        self._max_total[lane] = admission.max_total_tokens
        sampling = admission.sampling
        self._seeds[lane] = sampling.seed
        self._num_logprobs[lane] = sampling.num_logprobs_plus_one
        self._masked_until[lane] = (
            admission.num_prompt_tokens + sampling.min_tokens if sampling.min_tokens else 0
        )
        self._stop_ids[lane] = frozenset(ints(sampling.stop_token_ids).tolist())

    def _append(self, lanes: Int64Array, block_ids: Int64Array) -> None:
        check(len(lanes) == len(block_ids), "appended lanes and blocks differ in number")
        if not len(lanes):
            return
        self._check_lanes(lanes, "appended to")
        self._check_blocks(block_ids)
        check((self._num_holders[block_ids] == 0).all(), "an appended block is held already")
        # A lane may get several blocks: its k-th one goes k places after its last.
        order = np.argsort(lanes, kind="stable")
        ordered = lanes[order]
        rank = np.arange(len(lanes)) - np.searchsorted(ordered, ordered)
        columns = self._num_blocks[ordered] + rank
        check(columns.max() < self._table.shape[1], "more blocks than max_model_len needs")
        self._table[ordered, columns] = block_ids[order]
        np.add.at(self._num_blocks, lanes, 1)
        self._num_holders[block_ids] += 1

    def _run_rows(
        self, lanes: Int64Array, num_tokens: Int64Array, samples: npt.NDArray[np.bool_], step_id: int
    ) -> pb.StepResult:
        check(len(lanes) == len(num_tokens) == len(samples), "row arrays differ in length")
        self._check_lanes(lanes, "run")
        check(is_distinct(lanes), "row lanes are not distinct")
        check(num_tokens.sum() <= self._limits.max_num_batched_tokens, "more tokens than a step may have")
        starts = self._num_computed[lanes]
        ends = starts + num_tokens
        known = self._num_known[lanes]
        check((num_tokens >= 1).all(), "a row computes no token")
        check((ends <= known).all(), "a row computes a token that is not known")
        check((samples == (ends == known)).all(), "a row samples early, or does not sample at its end")
        check((known + samples <= self._max_total[lanes]).all(), "a row samples past max_total_tokens")
        self._write_cache(lanes, starts, num_tokens)
        self._num_computed[lanes] = ends
        if self._checks_cache:
            self._read_cache(lanes, ends)
        sampling, positions = lanes[samples], ends[samples]
        token_ids = self._sample(sampling, positions)
        self._tokens[sampling, positions] = token_ids
        self._num_known[sampling] = positions + 1
        result = pb.StepResult(
            step_id=step_id, token_ids=token_ids.tobytes(), step_time_ns=1, num_iterations=1, is_last=True
        )
        self._add_logprobs(result, sampling, token_ids)
        return result

    def _slots(
        self, lanes: Int64Array, starts: Int64Array, counts: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Give slot and token of ``counts`` positions from ``starts`` on, one row after another."""
        rows = np.repeat(lanes, counts)
        first = np.repeat(np.cumsum(counts) - counts - starts, counts)
        positions = np.arange(len(rows)) - first
        blocks = self._table[rows, positions // self._limits.block_size]
        return blocks * self._limits.block_size + positions % self._limits.block_size, self._tokens[
            rows, positions
        ]

    def _write_cache(self, lanes: Int64Array, starts: Int64Array, counts: Int64Array) -> None:
        check(
            (starts + counts <= self._num_blocks[lanes] * self._limits.block_size).all(), "a row has no block"
        )
        slots, token_ids = self._slots(lanes, starts, counts)
        check(is_distinct(slots), "two tokens are written to one slot")
        check((self._num_holders[slots // self._limits.block_size] == 1).all(), "a shared block is written")
        self._cache[slots] = token_ids

    def _read_cache(self, lanes: Int64Array, ends: Int64Array) -> None:
        slots, token_ids = self._slots(lanes, np.zeros_like(ends), ends)
        check((self._cache[slots] == token_ids).all(), "the cache holds another request's tokens")

    def _sample(self, lanes: Int64Array, positions: Int64Array) -> Int32Array:
        if self._script is not None:
            first = self._num_prompt[lanes] if self._counts_from_output else 0
            indices = self._seeds[lanes] + (positions - first).astype(np.uint64)
            scripted: Int32Array = self._script[indices % np.uint64(len(self._script))]
            return scripted
        token_ids = sampled_tokens(self._seeds[lanes], positions, vocab_size=self._limits.vocab_size)
        for index in np.flatnonzero(positions < self._masked_until[lanes]).tolist():
            while int(token_ids[index]) in self._stop_ids[int(lanes[index])]:
                token_ids[index] = (token_ids[index] + 1) % self._limits.vocab_size
        return token_ids

    def _add_logprobs(self, result: pb.StepResult, lanes: Int64Array, token_ids: Int32Array) -> None:
        """Tell k + 1 entries where asked: the sampled token, then its successors; -0.5 apart."""
        counts = self._num_logprobs[lanes]
        if not counts.any():
            return
        ranks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = (np.repeat(token_ids, counts) + ranks) % self._limits.vocab_size
        result.logprob_counts = counts.astype("<i4").tobytes()
        result.logprob_token_ids = entries.astype("<i4").tobytes()
        result.logprob_values = (-0.5 * (ranks + 1)).astype("<f4").tobytes()

    def _check_lanes(self, lanes: Int64Array, verb: str) -> None:
        is_known = ((lanes >= 0) & (lanes < self._limits.max_num_seqs)).all()
        check(is_known and self.is_held[lanes].all(), f"lanes are {verb} but not all held")

    def _check_blocks(self, block_ids: Int64Array) -> None:
        is_known = ((block_ids >= 1) & (block_ids <= self._limits.num_blocks)).all()
        check(is_known and is_distinct(block_ids), "blocks are unknown or not distinct")
