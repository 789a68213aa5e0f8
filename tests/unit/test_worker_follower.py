"""A rank that follows launches what the leading one launches, whatever decides there; fake devices."""

import queue
from dataclasses import replace

import pytest

from tests.rpc.fake_model_runner import FakeLaunchedStep, FakeModelRunner
from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.step import Admission, Step, StepResult
from worker_svc.errors import ProtocolError, WorkerError
from worker_svc.rpc.compute_thread import ComputeThread, StepEpoch
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.tp.commands import COMMAND_BYTES, Command
from worker_svc.tp.follower import Follower
from worker_svc.tp.leading_executor import LeadingExecutor

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40, vocab_size=9999
)
Told = StepResult | WorkerError


class RecordingRunner(FakeModelRunner):
    """Keeps what it launched: lanes and positions of each batch."""

    def __init__(self, num_steps_ahead: int = 0) -> None:
        super().__init__(num_steps_ahead)
        self.launches: list[tuple[list[int], list[int]]] = []

    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> FakeLaunchedStep:
        self.launches.append((batch.lanes.tolist(), batch.positions.tolist()))
        return super().launch(batch, admissions)


class Pair:
    """A leading rank behind its compute thread, and a following one that gets its messages."""

    def __init__(self, num_steps_ahead: int = 0) -> None:
        self.leading, self.following = RecordingRunner(num_steps_ahead), RecordingRunner(num_steps_ahead)
        self.messages: list[bytes] = []
        self._steps: list[Step] = []
        executor = LeadingExecutor(StepExecutor(LIMITS, self.leading), self.messages.append)
        self.compute = ComputeThread(executor)
        self.results: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self.follower = Follower(
            StepExecutor(LIMITS, self.following), lambda data: self._steps[int(data.decode())]
        )

    def new_epoch(self) -> StepEpoch:
        return StepEpoch(on_result=self.results.put, on_failure=self.results.put)

    def submit(self, epoch: StepEpoch, one: Step) -> None:
        """Submit a step; its number in this test stands for its bytes."""
        self._steps.append(one)
        self.compute.submit(epoch, replace(one, serialized=str(len(self._steps) - 1).encode()))

    def told(self, count: int) -> list[tuple[int, list[int]]]:
        found = []
        for _ in range(count):
            result = self.results.get(timeout=60)
            assert isinstance(result, StepResult), result
            found.append((result.step_id, result.sampled.token_ids.tolist()))
        return found

    def follow(self) -> None:
        """Let the leading rank end, then follow all that it did."""
        assert self.compute.stop(60)
        for message in self.messages:
            self.follower.take(message)
        assert self.following.launches == self.leading.launches


def lane(number: int, *stop_token_ids: int) -> Admission:
    """Six tokens known, and blocks for 24."""
    block_ids = range(1 + 6 * number, 7 + 6 * number)
    stops = sampling(stop_token_ids=int32(stop_token_ids))
    return admission(number, block_ids=block_ids, max_total_tokens=24, sampling=stops)


@pytest.fixture(params=[0, 1])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Return a pair whose devices take so many steps ahead."""
    return Pair(request.param)


def test_it_launches_steps_and_the_iterations_that_the_leading_rank_does(pair: Pair) -> None:
    epoch = pair.new_epoch()
    pair.submit(epoch, step(1, [(0, 6, True)], admissions=(lane(0),)))
    pair.submit(epoch, step(2, [(0, 3, True)], num_steps=3))
    pair.submit(epoch, step(3, [(0, 2, True)], num_steps=2))
    pair.submit(epoch, step(4, [(0, 1, True)], takes_over=True))
    pair.submit(epoch, step(5, [(0, 2, True)], num_steps=2))
    pair.compute.start()
    assert pair.told(6) == [(1, [6]), (2, []), (3, []), (4, [7]), (5, [8]), (5, [9])]
    pair.follow()
    assert pair.following.launches == [([0], [0, 1, 2, 3, 4, 5]), ([0], [6]), ([0], [7]), ([0], [8])]


def test_a_row_that_samples_a_stop_id_ends_for_both_at_the_same_iteration(pair: Pair) -> None:
    epoch = pair.new_epoch()
    # The fake's token at a position is lane * 1000 + position.
    pair.submit(epoch, step(1, [(0, 6, True), (1, 6, True)], admissions=(lane(0, 8), lane(1))))
    pair.submit(epoch, step(2, [(0, 6, True), (1, 6, True)], num_steps=6))
    pair.compute.start()
    assert pair.told(7)[1:] == [
        (2, [7, 1007]),
        (2, [8, 1008]),
        *((2, [-1, 1000 + position]) for position in range(9, 13)),
    ]
    pair.follow()
    num_both = sum(lanes == [0, 1] for lanes, _ in pair.following.launches[1:])
    assert num_both == 2 + pair.following.num_steps_ahead


def test_a_lease_whose_rows_have_all_ended_ends_for_both(pair: Pair) -> None:
    epoch = pair.new_epoch()
    pair.submit(epoch, step(1, [(0, 6, True)], admissions=(lane(0, 8),)))
    pair.submit(epoch, step(2, [(0, 9, True)], num_steps=9))
    pair.submit(epoch, step(3, [(0, 6, True)], released_lanes=int32([0]), admissions=(lane(0),)))
    pair.compute.start()
    while pair.told(1)[0][0] != 3:
        continue
    pair.follow()
    assert Command.END_LEASE in {message[0] for message in pair.messages}


def test_an_epoch_that_ends_in_the_middle_of_a_lease_is_forgotten_by_both(pair: Pair) -> None:
    old, new = pair.new_epoch(), pair.new_epoch()
    pair.submit(old, step(1, [(0, 6, True)], admissions=(lane(0),)))
    pair.submit(old, step(2, [(0, 9, True)], num_steps=9))
    pair.compute.start()
    pair.told(3)
    pair.compute.close_epoch(old)
    pair.submit(new, step(1, [(0, 6, True)], admissions=(lane(0),)))
    pair.submit(new, step(2, [(0, 2, True)], num_steps=2))
    while pair.told(1)[0] != (1, [6]):
        continue
    assert pair.told(2) == [(2, [7]), (2, [8])]
    pair.follow()


def test_a_step_that_breaks_the_rules_ends_the_epoch_for_both_and_the_next_one_runs(pair: Pair) -> None:
    old, new = pair.new_epoch(), pair.new_epoch()
    pair.submit(old, step(1, [(0, 6, True)], admissions=(lane(0),)))
    pair.submit(old, step(2, [(0, 19, True)], num_steps=19))
    pair.submit(new, step(1, [(0, 6, True)], admissions=(lane(0),)))
    pair.compute.start()
    # A device with a queue has not told the first step's token by then: nobody wants it any more.
    while not isinstance(pair.results.get(timeout=60), ProtocolError):
        continue
    assert pair.told(1) == [(1, [6])]
    pair.follow()
    assert pair.following.num_launched == 2


def test_a_rank_that_is_not_where_the_leading_one_is_says_so() -> None:
    pair = Pair()
    with pytest.raises(AssertionError, match="no lease is under way here"):
        pair.follower.take(COMMAND_BYTES[Command.GO_ON])
