"""Inputs of decode steps on their way to the device, whose captured launch finds them by itself.

They are copied beside the device's queue, while the step before runs. Slots are used in turns, and the device
counts the turns as the host does: each that is sent must be launched once. Where a launch fails, the device
is told the turn anew. Knows nothing about what inputs are. Legend: N slots, W int32 words.
"""

from collections.abc import Callable

import torch

from kernels.begin_step import StepSlots
from worker_svc.runner.staging import StagingBuffer, StagingRing

NUM_SLOTS = 8


class StepInbox:
    """Slots on the device, and as many host buffers. Used by one thread."""

    def __init__(self, num_words: int, *, device: torch.device) -> None:
        """Allocate slots of so many words, a multiple of four."""
        self.slots = StepSlots(
            slots_NW=torch.zeros((NUM_SLOTS, num_words), dtype=torch.int32, device=device),
            turns_2=torch.zeros(2, dtype=torch.int32, device=device),
        )
        self._ring = StagingRing(NUM_SLOTS, num_words, device=device)
        self._copier = _SideCopier(device) if device.type == "cuda" else None
        self._turn = 0
        self._sent: StagingBuffer | None = None
        """What has not been launched yet."""
        self._cuts: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def take(self) -> StagingBuffer:
        """Return the host buffer of the next step, once the step that used it last has run."""
        if self._sent is not None:
            self.launched()
            self._tell_turn()
        return self._ring.take()

    def send(self, buffer: StagingBuffer, num_words: int) -> None:
        """Have the first words copied before what is queued next; the launch of its step must follow."""
        slot_W, host_W = self._cut(buffer, num_words)
        if self._copier is None:
            slot_W.copy_(host_W)
        else:
            self._copier.copy(slot_W, host_W, turn=self._turn)
        self._turn = (self._turn + 1) % NUM_SLOTS
        self._sent = buffer

    def launched(self) -> None:
        """Keep buffer and slot as they are until the step just queued has run."""
        assert self._sent is not None, "nothing was sent"
        self._ring.guard(self._sent)
        self._sent = None

    def _tell_turn(self) -> None:
        """Tell the device whose turn it is: it may not have begun what was sent last."""
        self.slots.turns_2[0].fill_(self._turn)
        self.slots.turns_2[1].zero_()

    def _cut(self, buffer: StagingBuffer, num_words: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slot's words and the buffer's: cut once, as slicing takes 2 us a slice."""
        key = (self._turn, num_words)
        if key not in self._cuts:
            self._cuts[key] = (self.slots.slots_NW[self._turn, :num_words], buffer.tensor_W[:num_words])
        return self._cuts[key]


class _SideCopier:
    """Copies on a stream of its own, which the current one waits for."""

    def __init__(self, device: torch.device) -> None:
        new_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
        new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
        self._stream = new_stream(device)
        # What it writes to has been filled before.
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied = [new_event() for _ in range(NUM_SLOTS)]

    def copy(self, to_W: torch.Tensor, from_W: torch.Tensor, *, turn: int) -> None:
        copied = self._copied[turn]
        with torch.cuda.stream(self._stream):
            to_W.copy_(from_W, non_blocking=True)
            copied.record()
        copied.wait()
