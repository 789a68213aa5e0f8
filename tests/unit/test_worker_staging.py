"""Staged uploads and downloads, with events that tell when they were waited for."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from worker_svc.runner.cell_writer import CellWrite, CellWriter, row_write
from worker_svc.runner.device_times import AwaitedIdle, DeviceTimes, StepTimes
from worker_svc.runner.packed_upload import Arrays, PackedUpload, RepeatedUpload, packed_starts
from worker_svc.runner.results import DeviceLogprobs, DownloadingStep, EmptyStep, ResultRing
from worker_svc.runner.staging import StagingRing


def cpu() -> torch.device:
    return torch.device("cpu")


class Log:
    """Makes numbered events and notes what happens to them."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._num_events = 0

    def new_event(self, device: torch.device) -> "NotedEvent":
        assert device == cpu()
        self._num_events += 1
        return NotedEvent(self._num_events, self.entries)


class NotedEvent:
    def __init__(self, number: int, entries: list[str]) -> None:
        self._number, self._entries = number, entries

    def record(self) -> None:
        self._entries.append(f"record {self._number}")

    def synchronize(self) -> None:
        self._entries.append(f"wait {self._number}")


def ring_of(num_buffers: int, num_words: int = 8) -> tuple[StagingRing, Log]:
    log = Log()
    return StagingRing(num_buffers, num_words, device=cpu(), new_event=log.new_event), log


def test_a_buffer_is_not_given_out_before_its_last_copy_has_run() -> None:
    ring, log = ring_of(2)
    taken = []
    for _ in range(3):
        buffer = ring.take()
        taken.append(buffer)
        ring.guard(buffer)
    assert taken[0] is taken[2] is not taken[1]
    # Waiting for an event that was never recorded returns at once.
    assert log.entries == ["wait 1", "record 1", "wait 2", "record 2", "wait 1", "record 1"]


def test_a_buffer_that_is_not_guarded_is_our_own_bug() -> None:
    ring, _ = ring_of(2)
    buffer = ring.take()
    with pytest.raises(AssertionError, match="not guarded yet"):
        ring.take()
    ring.guard(buffer)
    with pytest.raises(AssertionError, match="guard what was taken last"):
        ring.guard(buffer)


def test_words_and_tensor_are_the_same_memory() -> None:
    ring, _ = ring_of(1, 3)
    buffer = ring.take()
    buffer.words[:] = [4, 5, -6]
    assert buffer.tensor_W.tolist() == [4, 5, -6]


def test_arrays_of_any_dtype_go_in_one_copy() -> None:
    ring, log = ring_of(1, 32)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "ids": np.array([1, 2, 3, 4, 5], np.int32),
        "seeds": np.array([-1, 2**40], np.int64),
        "none": np.empty(0, np.int32),
        "temperatures": np.array([0.5, 1.25], np.float32),
    }
    # Each starts at a multiple of four words.
    assert packed_starts({name: array.nbytes // 4 for name, array in arrays.items()}) == [0, 8, 12, 12, 16]
    on_device = PackedUpload(ring, cpu()).upload(arrays)
    assert {name: tensor.tolist() for name, tensor in on_device.items()} == {
        "ids": [1, 2, 3, 4, 5],
        "seeds": [-1, 2**40],
        "none": [],
        "temperatures": [0.5, 1.25],
    }
    assert on_device["seeds"].dtype == torch.int64
    assert log.entries == ["wait 1", "record 1"]


def test_arrays_larger_than_a_buffer_are_our_own_bug() -> None:
    ring, _ = ring_of(1, 4)
    with pytest.raises(AssertionError, match="8 words do not fit 4"):
        PackedUpload(ring, cpu()).upload({"ids": np.zeros(5, np.int32)})


def make_writes(table: torch.Tensor, values: torch.Tensor) -> list[CellWrite]:
    table_W = table.view(-1)
    return [
        row_write(table_W, np.array([1, 2], np.int32), first=0),
        row_write(values.view(torch.int32), np.array([0.5, -2.0], np.float32), first=0),
        CellWrite(table_W=table_W, cells=np.array([23, 16]), values=np.array([8, 7], np.int32)),
        row_write(table_W, np.empty(0, np.int32), first=9),
    ]


@pytest.mark.parametrize(("num_words", "num_uploads"), [(64, 1), (20, 2), (11, 6)])
def test_cells_are_written_from_as_few_uploads_as_hold_them(num_words: int, num_uploads: int) -> None:
    """Six cells, four of one table: all at once, up to four at once, one at a time."""
    ring, log = ring_of(1, num_words)
    table, values = torch.zeros(3, 8, dtype=torch.int32), torch.zeros(2)
    CellWriter(PackedUpload(ring, cpu())).write(make_writes(table, values))
    assert table.tolist() == [[1, 2, 0, 0, 0, 0, 0, 0], [0] * 8, [7, 0, 0, 0, 0, 0, 0, 8]]
    assert values.tolist() == [0.5, -2.0]
    assert log.entries == ["wait 1", "record 1"] * num_uploads


def test_writing_nothing_takes_no_buffer() -> None:
    ring, log = ring_of(1)
    CellWriter(PackedUpload(ring, cpu())).write([])
    assert log.entries == []


def test_a_result_waits_for_its_own_copy_only() -> None:
    log = Log()
    ring = ResultRing(2, 4, device=cpu(), new_event=log.new_event)
    tokens = torch.tensor([7, 8], dtype=torch.int32)
    first = ring.download(tokens, None)
    tokens += 1
    second = ring.download(tokens[:1], None)
    assert log.entries == ["record 1", "record 2"]
    assert first.wait().token_ids.tolist() == [7, 8]
    assert second.wait().token_ids.tolist() == [8]
    assert log.entries[2:] == ["wait 1", "wait 2"]


def test_tokens_that_were_read_do_not_change_with_a_later_step() -> None:
    ring = ResultRing(1, 4, device=cpu())
    tokens = ring.download(torch.tensor([7], dtype=torch.int32), None).wait().token_ids
    ring.download(torch.tensor([9], dtype=torch.int32), None)
    assert tokens.tolist() == [7]


def test_times_stand_in_front_of_the_tokens() -> None:
    """Where the device writes them, by the tokens' address."""
    buffer = ResultRing(1, 3, device=cpu()).take()
    memory = (ctypes.c_int64 * 2).from_address(buffer.address - 16)
    memory[:] = [1000, 1 << 40]
    assert buffer.begin_and_end.tolist() == [1000, 1 << 40]
    assert buffer.words.tolist() == [0, 0, 0]


def test_a_step_tells_how_long_it_took_and_what_passed_since_the_one_before() -> None:
    ring, times = ResultRing(2, 3, device=cpu()), StepTimes()
    told = []
    for begin_and_end in ([1000, 1500], [1600, 2600], [2600, 2601]):
        buffer = ring.take()
        buffer.begin_and_end[:] = begin_and_end
        step = DownloadingStep(buffer=buffer, num_rows=0, logprobs=None, times=times)
        told.append(step.device_times())
    assert told == [
        DeviceTimes(busy_ns=500, idle_ns=0),
        DeviceTimes(busy_ns=1000, idle_ns=100),
        DeviceTimes(busy_ns=1, idle_ns=0),
    ]


def test_idle_time_counts_where_lanes_were_held_before_each_step_since_the_last_one_told() -> None:
    idle, nothing, some = AwaitedIdle(), DeviceTimes(busy_ns=0, idle_ns=0), DeviceTimes(busy_ns=5, idle_ns=70)
    assert idle.of(some, is_awaited=True) == 70
    assert idle.of(some, is_awaited=False) == 0
    assert idle.of(some, is_awaited=True) == 70
    # A lane's release, a pause, a prompt in three parts, of which only the last one tells anything.
    assert [idle.of(nothing, is_awaited=is_held) for is_held in (True, False, True)] == [0, 0, 0]
    assert idle.of(some, is_awaited=True) == 0
    assert idle.of(some, is_awaited=True) == 70
    # The same while another lane is held.
    assert [idle.of(nothing, is_awaited=True) for _ in range(2)] == [0, 0]
    assert idle.of(some, is_awaited=True) == 70


def test_logprobs_are_each_rows_own_entries() -> None:
    ids_RK = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.int32)
    logprobs = DeviceLogprobs(
        counts=np.array([2, 0, 1], np.int32), token_ids_RK=ids_RK, values_RK=-ids_RK.float()
    )
    step = ResultRing(1, 4, device=cpu()).download(torch.tensor([1, 4, 7], dtype=torch.int32), logprobs)
    ids_RK.zero_()
    sampled = step.wait()
    assert sampled.logprobs is not None
    assert sampled.logprobs.counts.tolist() == [2, 0, 1]
    assert sampled.logprobs.token_ids.tolist() == [1, 2, 7]
    assert sampled.logprobs.values.tolist() == [-1.0, -2.0, -7.0]


def test_a_step_that_samples_nothing_gives_no_tokens() -> None:
    assert EmptyStep().wait().token_ids.tolist() == []


def test_uploads_go_on_after_one_whose_arrays_could_not_be_written() -> None:
    ring, _ = ring_of(2)
    upload = PackedUpload(ring, cpu())
    repeated = RepeatedUpload(upload, {"ids": 2})

    def fail(_: Arrays) -> None:
        raise OverflowError

    def fill(arrays: Arrays) -> None:
        arrays["ids"][:] = [3, 4]

    for _ in range(3):
        with pytest.raises(OverflowError):
            upload.send({"ids": 2}, fail)
        with pytest.raises(OverflowError):
            repeated.send(fail)
    repeated.send(fill)
    assert repeated.views["ids"].tolist() == [3, 4]
