"""All that the core remembers, and the few transitions that keep it consistent.

One release path serves every way to end or preempt a request. Knows nothing about how a step is
chosen (planning.py) or folded (folding.py).
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.core.block_hash import extend_block_hashes
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.cache_events import BlocksStored, CacheCleared, CacheJournal, runs
from scheduler_svc.core.lanes import LaneTable
from scheduler_svc.core.open_leases import OpenLeases
from scheduler_svc.core.plan import FinishedRequest
from scheduler_svc.core.queues import RequestQueues
from scheduler_svc.core.types import (
    CoreLimits,
    FinishReason,
    Incarnation,
    Int64Array,
    Lane,
    Request,
    RequestStatus,
)


class InFlightStep(NamedTuple):
    """The rows of a step that was planned and not yet folded; a named tuple as Admission is."""

    step_id: int
    num_rows: Int64Array
    """By lane: 1, or 0 where the lane has no row."""
    num_tokens: Int64Array
    """By lane; 0 where the lane has no row."""
    incarnations: Int64Array
    """By lane, as of when it was planned; 0 where the lane has no row."""
    sample_lanes: Int64Array
    """The lane of each token that comes back."""
    num_steps: int
    """Above 1: a lease, whose rows each compute up to ``num_tokens`` tokens, one an iteration."""


@dataclass(slots=True)
class Totals:
    """Counts since the start."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: int = 0
    num_preemptions: int = 0


class SchedulerState:
    """The core's memory."""

    def __init__(self, limits: CoreLimits) -> None:
        self.queues = RequestQueues()
        self.requests: dict[str, Request] = {}
        """All live requests."""
        self.totals = Totals()
        self.num_arrivals = 0
        self.num_admissions = 0
        self.journal = CacheJournal()
        self.start_epoch(limits)

    def start_epoch(self, limits: CoreLimits) -> None:
        """Forget everything that a worker held. Running requests must have left their lanes."""
        self.limits = limits
        self.clear_pool()
        self.lanes = LaneTable(limits.max_num_seqs, limits.max_model_len)
        self.in_flight: deque[InFlightStep] = deque()
        self.num_iterations_folded = 0
        """Of the oldest step in flight."""
        self.open_leases = OpenLeases()
        self.late_requests: dict[Incarnation, Request] = {}
        """Preempted requests with rows in flight, by the incarnation of those rows."""
        self.pending_releases: list[Lane] = []
        """Lanes vacated since the last plan: the worker is told with the next one."""
        self.unregistered: list[int] = []
        """Lanes with blocks that the last plan fills, of which the prefix cache is yet to learn."""
        self.suspect: Request | None = None
        """The latest request that started on its last chance; epochs.py tells what that means."""
        self.next_step_id = 1

    def clear_pool(self) -> None:
        """Begin with a pool that holds nothing; no request may hold a block."""
        self.pool = BlockPool(self.limits.num_blocks, self.journal)
        if self.journal.is_kept:
            self.journal.note(CacheCleared())

    def preempt(self, lane: Lane) -> None:
        """Take a lane from its request, which runs again once its rows in flight are folded."""
        request = self.lanes.request(lane)
        request.num_late_rows = int(self.lanes.num_rows_in_flight[lane])
        request.num_tokens_in_doubt = int(self.lanes.num_known[lane])
        if request.num_late_rows:
            self.late_requests[request.incarnation] = request
            # It runs again once they are folded, which a lease would put off.
            self.open_leases.ask_end()
        self._release_lane(request)
        self.queues.push_preempted(request)
        request.num_preemptions += 1
        self.totals.num_preemptions += 1

    def end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        matched_stop_token_id: int | None = None,
        num_tokens: int | None = None,
        message: str = "",
    ) -> FinishedRequest:
        """End a live request in whatever state it is, and free all it held."""
        if request.status is RequestStatus.RUNNING:
            self._release_lane(request)
        else:
            self.queues.remove(request)
            self.late_requests.pop(request.incarnation, None)
        request.status = RequestStatus.FINISHED
        del self.requests[request.request_id]
        self.totals.num_finished += 1
        num_output_tokens = request.num_tokens - request.num_prompt_tokens
        return FinishedRequest(
            request_id=request.request_id,
            owner=request.owner,
            handle=request.handle,
            reason=reason,
            matched_stop_token_id=matched_stop_token_id,
            num_output_tokens=num_output_tokens if num_tokens is None else num_tokens,
            num_prefix_hit_tokens=request.num_prefix_hit_tokens,
            message=message,
        )

    def register_planned(self) -> None:
        """Offer the prompts' blocks that the last plan fills to the next one; the worker runs steps in order.

        Done when the next call comes, before a lane is vacated or planned anew: it takes 0.8 us a block, and
        the worker may wait for the plan.
        """
        for lane in self.unregistered:
            # Of a row that samples, the new token is not known yet: only blocks of known tokens count.
            num_tokens = min(int(self.lanes.num_scheduled[lane]), int(self.lanes.num_folded[lane]))
            self.register_blocks(lane, num_tokens // self.limits.block_size)
        self.unregistered.clear()

    def register_blocks(self, lane: int, num_blocks: int) -> None:
        """Offer the first ``num_blocks`` blocks of a lane's table to the prefix cache."""
        num_registered = self.lanes.num_registered[lane]
        if num_blocks <= num_registered:
            return
        request, block_ids = self.lanes.request(lane), self.lanes.block_ids[lane]
        extend_block_hashes(
            request.block_hashes,
            self.lanes.token_ids[lane],
            num_blocks=num_blocks,
            block_size=self.limits.block_size,
            cache_salt=request.cache_salt,
        )
        if self.journal.is_kept:
            self._note_stored(lane, num_registered, num_blocks)
        self.pool.register(
            block_ids[num_registered:num_blocks], request.block_hashes[num_registered:num_blocks]
        )
        self.lanes.num_registered[lane] = num_blocks

    def _note_stored(self, lane: int, first: int, end: int) -> None:
        """Write down which of a lane's blocks the prefix cache will learn of."""
        request, block_size = self.lanes.request(lane), self.limits.block_size
        hashes = request.block_hashes
        for start, stop in runs([index for index in range(first, end) if not self.pool.holds(hashes[index])]):
            self.journal.note(
                BlocksStored(
                    parent_hash=hashes[start - 1] if start else None,
                    block_hashes=tuple(hashes[start:stop]),
                    token_ids=self.lanes.token_ids[lane, start * block_size : stop * block_size].copy(),
                    cache_salt=request.cache_salt,
                )
            )

    def num_written_blocks(self, lane: int) -> int:
        """Count the full blocks whose every token has its KV written and folded."""
        return int(self.lanes.num_computed[lane]) // self.limits.block_size

    def _release_lane(self, request: Request) -> None:
        # Generated blocks are offered here and not as they fill: who follows up on an answer comes
        # after it, and hashing a table in one go costs 1 us a block, in every step 4 us.
        self.register_blocks(request.lane, self.num_written_blocks(request.lane))
        self.pool.release(self.lanes.vacate(request.lane))
        self.pending_releases.append(request.lane)
        request.lane = Lane(-1)
