"""The one thread that computes steps, so that the asyncio loop stays free for heartbeats.

Jobs are taken strictly in order, also while the device computes: the next step is launched as soon as
it comes, not when the last one's tokens are there. Steps of a closed epoch are dropped unseen; all
lanes are forgotten when an epoch is closed and again before the first step of another. Results and
failures go back through callbacks. Between two iterations of a lease it looks whether a step came that
takes over. Knows nothing about gRPC or tensors.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from worker_svc.batch.lease import Lease
from worker_svc.batch.step import Step, StepResult
from worker_svc.errors import DeviceLostError, ProtocolError, StepFailedError, WorkerError
from worker_svc.meter import WorkerMeter
from worker_svc.rpc.device_watch import DeviceWatch
from worker_svc.runner.executor import Executor
from worker_svc.runner.step_executor import PendingStep

_logger = logging.getLogger(__name__)


class StepEpoch:
    """One life of the step stream, as the compute thread sees it.

    Args:
        on_result: Called in the compute thread with each result, in step order.
        on_failure: Called in the compute thread, at most once; nothing follows.
    """

    def __init__(
        self, *, on_result: Callable[[StepResult], object], on_failure: Callable[[WorkerError], object]
    ) -> None:
        self._on_result = on_result
        self._on_failure = on_failure
        self._is_open = True
        self._taken_over_by = 0
        # Held while a callback runs: once close() has returned, no callback is called any more.
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether steps of this epoch are still computed."""
        return self._is_open

    def take_over(self, step_id: int) -> None:
        """End the leases before this step at their next boundary. Callable from any thread."""
        self._taken_over_by = step_id

    def is_taken_over(self, step_id: int) -> bool:
        """Tell whether a lease must end."""
        return step_id < self._taken_over_by

    def close(self) -> None:
        """Drop what is queued and be silent from now on. Callable from any thread, and repeatedly."""
        with self._lock:
            self._is_open = False

    def deliver(self, result: StepResult) -> None:
        """Hand a result over, unless the epoch is closed."""
        with self._lock:
            if self._is_open:
                self._on_result(result)

    def fail(self, error: WorkerError) -> None:
        """Hand the failure over and close the epoch."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._on_failure(error)


_Job = tuple[StepEpoch, Step | None] | PendingStep
"""No step: the epoch was closed. A pending step: its tokens are there."""


class ComputeThread:
    """Runs an Executor in a thread of its own."""

    def __init__(
        self,
        executor: Executor,
        *,
        check_device: Callable[[], object] = lambda: None,
        on_lost: Callable[[DeviceLostError], object] = lambda _: None,
        meter: WorkerMeter | None = None,
    ) -> None:
        """Make a thread that is not started yet.

        Args:
            executor: Computes the steps.
            check_device: Called after a step that failed; raises if the device is lost to this process.
            on_lost: Called in the compute thread when it is.
            meter: Counts steps.
        """
        self._executor = executor
        self._check_device = check_device
        self._on_lost = on_lost
        self._meter = meter or WorkerMeter()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: deque[tuple[StepEpoch, PendingStep]] = deque()
        # A daemon, so that a step that hangs in a device call cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._watch = DeviceWatch(self._jobs.put)
        self._watched: PendingStep | None = None
        self._closed_seconds: deque[float] = deque()
        """When epochs were closed that the thread has not seen closed yet."""
        self._epoch: StepEpoch | None = None
        self._lease: tuple[StepEpoch, Lease] | None = None
        """The lease under way: no job is taken before it has ended."""
        self._num_steps = 0

    @property
    def num_steps(self) -> int:
        """Steps computed since the start, each iteration of a lease counted."""
        return self._num_steps

    @property
    def num_lanes_held(self) -> int:
        """Lanes held now; a step that runs meanwhile may change it."""
        return self._executor.num_lanes_held

    def start(self) -> None:
        """Start the thread."""
        self._watch.start()
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Let the step that runs end, then stop. Blocks.

        Returns:
            Whether the thread ended in time.
        """
        self._jobs.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def submit(self, epoch: StepEpoch, step: Step) -> None:
        """Queue a step. An epoch's first step implies that every earlier epoch is closed."""
        if step.takes_over:
            epoch.take_over(step.step_id)
        self._jobs.put((epoch, step))

    def close_epoch(self, epoch: StepEpoch) -> None:
        """Close the epoch now and have its lanes forgotten. May be called again and late."""
        epoch.close()
        self._closed_seconds.append(time.monotonic())
        self._jobs.put((epoch, None))

    def stuck_seconds(self) -> float:
        """Tell how long the thread has been busy with a step that nobody waits for any more."""
        closed_seconds = next(iter(self._closed_seconds.copy()), None)
        return 0.0 if closed_seconds is None else time.monotonic() - closed_seconds

    def _run(self) -> None:
        while self._launch_next():
            while len(self._pending) > self._executor.num_steps_ahead:
                self._finish_oldest()

    def _launch_next(self) -> bool:
        """Launch what comes next, once there is something; False where the thread is to stop."""
        if self._lease is not None:
            self._go_on(*self._lease)
            return True
        if self._pending and self._jobs.empty() and self._watched is not self._pending[0][1]:
            # Waiting here would let the next step lie until this one is done, and the device idle then.
            self._watched = self._pending[0][1]
            self._watch.tell_when_computed(self._watched)
        job = self._jobs.get()
        if isinstance(job, PendingStep):
            if self._pending and self._pending[0][1] is job:
                self._finish_oldest()
        elif job is not None:
            self._begin(*job)
        return job is not None

    def _go_on(self, epoch: StepEpoch, lease: Lease) -> None:
        """Launch the next iteration of the lease under way, or end it."""
        if not epoch.is_open:
            self._lease = None
            return
        try:
            pending = None
            if lease.is_first_due or not epoch.is_taken_over(lease.step_id):
                pending = self._executor.launch_iteration(lease)
            if pending is None or lease.is_complete:
                self._lease = None
            self._pending.append((epoch, pending or self._executor.end_lease(lease)))
        except Exception as error:
            self._lease = None
            self._fail(epoch, lease.step_id, error)

    def _begin(self, epoch: StepEpoch, step: Step | None) -> None:
        if step is None:
            if epoch is self._epoch:
                self._change_epoch(None)
            self._closed_seconds.popleft()
        elif epoch.is_open:
            if epoch is not self._epoch:
                self._change_epoch(epoch)
            try:
                if step.num_steps > 1:
                    self._lease = epoch, self._executor.begin_lease(step)
                else:
                    self._pending.append((epoch, self._executor.launch(step)))
            except Exception as error:
                self._fail(epoch, step.step_id, error)

    def _change_epoch(self, epoch: StepEpoch | None) -> None:
        # What is still pending belongs to a closed epoch: nobody reads it, but a device that hangs must
        # not be given more, and is found by how long this takes.
        while self._pending:
            closed_epoch, pending = self._pending.popleft()
            try:
                pending.launched.wait_until_computed()
            except Exception as error:
                self._fail(closed_epoch, pending.step_id, error)
        self._executor.start_epoch()
        self._epoch = epoch

    def _finish_oldest(self) -> None:
        epoch, pending = self._pending.popleft()
        try:
            result = self._executor.finish(pending)
        except Exception as error:
            self._fail(epoch, pending.step_id, error)
        else:
            self._num_steps += result.num_iterations
            self._meter.note_result(result)
            epoch.deliver(result)

    def _fail(self, epoch: StepEpoch, step_id: int, error: Exception) -> None:
        """End the epoch: whatever a step raises, the thread lives on for the next one."""
        self._meter.note_failure()
        if isinstance(error, ProtocolError):
            # The engine's fault, which its stream's end tells: where in our code it shows is of no interest.
            epoch.fail(error)
        else:
            _logger.error("step %d failed", step_id, exc_info=error)
            epoch.fail(StepFailedError(f"step {step_id} failed: {type(error).__name__}: {error}"))
            self._ask_device()

    def _ask_device(self) -> None:
        """Tell where a step's failure has cost this process its device."""
        try:
            self._check_device()
        except Exception as error:
            self._on_lost(DeviceLostError(f"the device is lost: {type(error).__name__}: {error}"))
