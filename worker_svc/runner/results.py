"""Sampled tokens on their way to the host: copied behind the step that made them, read when there.

With them come the times at which the step began and ended on the device. Waits for one step's copy only,
never for the device. Knows nothing about sampling.
Legend: R sampling rows, K log-probabilities of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from worker_svc.batch.step import Int32Array, Int64Array, Logprobs, SampledTokens
from worker_svc.runner.device_times import DeviceTimes, StepTimes
from worker_svc.runner.staging import Event, make_event

_NUM_TIME_WORDS = 4
"""Two int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLogprobs:
    """Log-probabilities of a step's rows, each row's own entries first."""

    counts: Int32Array
    """(R,): entries that each row asked for."""
    token_ids_RK: torch.Tensor
    values_RK: torch.Tensor

    def start_download(self) -> "DeviceLogprobs":
        """Queue the copy to the host; it may be read once that has run."""
        return DeviceLogprobs(
            counts=self.counts,
            token_ids_RK=_start_download(self.token_ids_RK),
            values_RK=_start_download(self.values_RK),
        )

    def ragged(self) -> Logprobs:
        """Return each row's own entries, one row after another; on the host only."""
        is_asked_RK = np.arange(self.values_RK.shape[1]) < self.counts[:, None]
        return Logprobs(
            counts=self.counts,
            token_ids=self.token_ids_RK.numpy()[is_asked_RK],
            values=self.values_RK.numpy()[is_asked_RK],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBuffer:
    """Host memory that the device copies tokens to; in front of them it writes the step's times."""

    tensor_R: torch.Tensor
    words: Int32Array
    """The same memory."""
    begin_and_end: Int64Array
    """In ns, by the device's clock; 16 bytes in front of the tokens."""
    event: Event
    slices: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def address(self) -> int:
        """Where the device may write tokens, int32, by itself; begin and end in front of it."""
        return self.tensor_R.data_ptr()

    def slice_of(self, num_rows: int) -> torch.Tensor:
        """Return the first rows, the same tensor each time."""
        if num_rows not in self.slices:
            self.slices[num_rows] = self.tensor_R[:num_rows]
        return self.slices[num_rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadingStep:
    """A LaunchedStep whose tokens are being copied to the host."""

    buffer: ResultBuffer
    num_rows: int
    logprobs: DeviceLogprobs | None
    times: StepTimes | None
    """Of the device's clock; None where it has none."""

    def device_times(self) -> DeviceTimes | None:
        """Tell the times that the device wrote; see LaunchedStep."""
        return None if self.times is None else self.times.of(*self.buffer.begin_and_end.tolist())

    def wait(self) -> SampledTokens:
        """Wait for this step's copies; see LaunchedStep."""
        self.buffer.event.synchronize()
        return SampledTokens(
            # A copy: the buffer is soon another step's.
            token_ids=self.buffer.words[: self.num_rows].copy(),
            logprobs=None if self.logprobs is None else self.logprobs.ragged(),
        )

    def wait_until_computed(self) -> None:
        """Wait for this step's copies; see LaunchedStep."""
        self.buffer.event.synchronize()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyStep:
    """A LaunchedStep that samples nothing."""

    def wait(self) -> SampledTokens:
        """Return no tokens."""
        return SampledTokens(token_ids=np.empty(0, np.int32))

    def wait_until_computed(self) -> None:
        """Wait for nothing."""

    def device_times(self) -> DeviceTimes:
        """Tell nothing: what it takes is part of the next step; see kernels.step_times."""
        return DeviceTimes(busy_ns=0, idle_ns=0)


class ResultRing:
    """Host buffers for the tokens of as many steps as may be under way, and one more.

    A step that is never waited for, because its epoch was closed, leaves its buffer to a later one.
    """

    def __init__(
        self,
        num_buffers: int,
        num_rows: int,
        *,
        device: torch.device,
        new_event: Callable[[torch.device], Event] = make_event,
    ) -> None:
        self._buffers = [_make_buffer(num_rows, device, new_event) for _ in range(num_buffers)]
        self._next = 0
        self._times = StepTimes() if device.type == "cuda" else None

    def download(
        self,
        token_ids_R: torch.Tensor,
        logprobs: DeviceLogprobs | None,
        *,
        num_rows: int | None = None,
        into: ResultBuffer | None = None,
    ) -> DownloadingStep:
        """Queue the copy of a step's tokens behind what is queued now.

        Args:
            token_ids_R: int32.
            logprobs: Of its rows.
            num_rows: How many of its rows are told; all where None. Of padded steps there are few lengths
                of ``token_ids_R``, whose slices are kept.
            into: What was taken for the step; None takes the next buffer.
        """
        buffer = self.take() if into is None else into
        buffer.slice_of(len(token_ids_R)).copy_(token_ids_R, non_blocking=True)
        num_rows = len(token_ids_R) if num_rows is None else num_rows
        return self.close(buffer, logprobs, num_rows=num_rows)

    def take(self) -> ResultBuffer:
        """Return the next buffer, for a step that writes its tokens there itself."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        return buffer

    def close(
        self, buffer: ResultBuffer, logprobs: DeviceLogprobs | None, *, num_rows: int
    ) -> DownloadingStep:
        """Queue what tells that the step's tokens are there, behind what is queued now; as download."""
        on_host = None if logprobs is None else logprobs.start_download()
        buffer.event.record()
        return DownloadingStep(buffer=buffer, num_rows=num_rows, logprobs=on_host, times=self._times)


def _make_buffer(
    num_rows: int, device: torch.device, new_event: Callable[[torch.device], Event]
) -> ResultBuffer:
    words_W = torch.zeros(_NUM_TIME_WORDS + num_rows, dtype=torch.int32, pin_memory=device.type == "cuda")
    times_W, tensor_R = words_W[:_NUM_TIME_WORDS], words_W[_NUM_TIME_WORDS:]
    return ResultBuffer(
        tensor_R=tensor_R,
        words=tensor_R.numpy(),
        begin_and_end=times_W.view(torch.int64).numpy(),
        event=new_event(device),
    )


def _start_download(tensor_RK: torch.Tensor) -> torch.Tensor:
    host_RK = torch.empty(tensor_RK.shape, dtype=tensor_RK.dtype, pin_memory=tensor_RK.is_cuda)
    return host_RK.copy_(tensor_RK, non_blocking=True)
