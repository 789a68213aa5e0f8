"""A ring of host buffers that the device copies from while the host goes on.

A buffer is written again only when the copy out of it has run: an event tells. Knows nothing about
what is staged. Legend: W int32 words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from worker_svc.batch.step import Int32Array


class Event(Protocol):
    """A mark in the device's queue, as torch.cuda.Event is one."""

    def record(self) -> None:
        """Set the mark behind all that is queued now."""

    def synchronize(self) -> None:
        """Wait until the device has passed the mark; at once where none was set."""


class PassedEvent:
    """Of a device that has done everything when a call returns."""

    def record(self) -> None:
        """Mark nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""


def make_event(device: torch.device) -> Event:
    """Make an event of this device."""
    if device.type != "cuda":
        return PassedEvent()
    event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagingBuffer:
    """Host memory that copies leave from; a key of dicts."""

    tensor_W: torch.Tensor
    words: Int32Array
    """The same memory."""
    event: Event


class StagingRing:
    """Buffers of equal size, taken in turns. Used by one thread.

    Args:
        num_buffers: How many copies may be under way before taking one waits.
        num_words: Size of each.
        device: Where copies go.
        new_event: Makes the mark that guards one buffer.
    """

    def __init__(
        self,
        num_buffers: int,
        num_words: int,
        *,
        device: torch.device,
        new_event: Callable[[torch.device], Event] = make_event,
    ) -> None:
        self.num_words = num_words
        self._buffers = [_make_buffer(num_words, device, new_event) for _ in range(num_buffers)]
        self._next = 0
        self._taken: StagingBuffer | None = None

    def take(self) -> StagingBuffer:
        """Return the buffer whose copy is the oldest, once that copy has run."""
        assert self._taken is None, "the last buffer is not guarded yet: its copy could be overwritten"
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        buffer.event.synchronize()
        self._taken = buffer
        return buffer

    def guard(self, buffer: StagingBuffer) -> None:
        """Keep the taken buffer as it is until all copies queued so far have run."""
        assert buffer is self._taken, "guard what was taken last"
        buffer.event.record()
        self._taken = None


def _make_buffer(
    num_words: int, device: torch.device, new_event: Callable[[torch.device], Event]
) -> StagingBuffer:
    tensor_W = torch.empty(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
    return StagingBuffer(tensor_W=tensor_W, words=tensor_W.numpy(), event=new_event(device))
