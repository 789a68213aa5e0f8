"""Several arrays to the device in one copy.

Packs them into a staging buffer and returns views of the device's copy. Knows nothing about what
they mean. Legend: W int32 words.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.batch.step import Int32Array
from worker_svc.runner.staging import StagingBuffer, StagingRing

Arrays = Mapping[str, Int32Array]
"""To be written: parts of a staging buffer."""

ALIGNMENT_WORDS = 4
"""16 bytes, the widest access that kernels make."""
_TORCH_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class PackedUpload:
    """Uploads one step's arrays; they are valid on the device until the next step's."""

    def __init__(self, ring: StagingRing, device: torch.device) -> None:
        self.ring = ring
        self.num_words = ring.num_words
        """Of all arrays of one upload."""
        # One is enough: the device reads it before the next copy, which is queued later.
        self.device_W = torch.empty(ring.num_words, dtype=torch.int32, device=device)

    def upload(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Upload int32, int64 and float32 arrays of one dimension; return a tensor for each."""
        sizes = {name: array.nbytes // 4 for name, array in arrays.items()}

        def fill(words: Arrays) -> None:
            for name, array in arrays.items():
                words[name].view(array.dtype)[:] = array

        self.send(sizes, fill)
        return {
            name: words_W.view(_TORCH_DTYPES[arrays[name].dtype])
            for name, words_W in self.views(sizes).items()
        }

    def send(self, sizes: Mapping[str, int], fill: Callable[[Arrays], None]) -> None:
        """Upload arrays of so many words each, which ``fill`` writes to where they leave from."""
        buffer = self.ring.take()
        try:
            arrays, words_W = cut_arrays(buffer, sizes)
            fill(arrays)
            self.device_W[: len(words_W)].copy_(words_W, non_blocking=True)
        finally:
            # Of a step that failed, too: the ring goes on with the next one.
            self.ring.guard(buffer)

    def views(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return where on the device arrays of these sizes lie after each upload; nine take 25 us to cut."""
        starts = packed_starts(sizes)
        return {
            name: self.device_W[start : start + sizes[name]]
            for start, name in zip(starts, sizes, strict=False)
        }


class RepeatedUpload:
    """Arrays of the same sizes, uploaded again and again: their parts are cut out once for each buffer."""

    def __init__(self, upload: PackedUpload, sizes: Mapping[str, int]) -> None:
        self._ring = upload.ring
        self._sizes = sizes
        self._device_W = upload.device_W[: packed_starts(sizes)[-1]]
        self._cuts: dict[StagingBuffer, tuple[Arrays, torch.Tensor]] = {}
        self.views = upload.views(sizes)
        """Where they lie on the device after each upload."""

    def send(self, fill: Callable[[Arrays], None]) -> None:
        """Upload what ``fill`` writes."""
        buffer = self._ring.take()
        try:
            cut = self._cuts.get(buffer)
            if cut is None:
                cut = self._cuts[buffer] = cut_arrays(buffer, self._sizes)
            arrays, words_W = cut
            fill(arrays)
            self._device_W.copy_(words_W, non_blocking=True)
        finally:
            self._ring.guard(buffer)


def cut_arrays(buffer: StagingBuffer, sizes: Mapping[str, int]) -> tuple[Arrays, torch.Tensor]:
    """Cut arrays of so many words each out of a buffer; return them, and all they take together."""
    starts = packed_starts(sizes)
    num_words = starts[-1]
    assert num_words <= len(buffer.words), f"{num_words} words do not fit {len(buffer.words)}"
    parts = zip(starts, sizes.items(), strict=False)
    arrays = {name: buffer.words[start : start + size] for start, (name, size) in parts}
    return arrays, buffer.tensor_W[:num_words]


def packed_starts(sizes: Mapping[str, int]) -> list[int]:
    """Tell at which word each array of so many words starts, and how many words all take."""
    starts = [0]
    for num_words in sizes.values():
        starts.append(starts[-1] + -(-num_words // ALIGNMENT_WORDS) * ALIGNMENT_WORDS)
    return starts
