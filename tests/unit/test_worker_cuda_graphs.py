"""Captures, some of which fail, with streams and graphs that only note what is asked of them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from worker_svc.runner.cuda_graphs import CudaGraphs


class NotedStream:
    def __init__(self, name: str, entries: list[str]) -> None:
        self._name, self._entries = name, entries

    def wait_stream(self, other: "NotedStream") -> None:
        self._entries.append(f"{self._name} waits for {other._name}")


class NotedGraph:
    def __init__(self, entries: list[str]) -> None:
        self._entries = entries

    def capture_begin(self, **_: object) -> None:
        self._entries.append("begin")

    def capture_end(self) -> None:
        self._entries.append("end")


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    current = NotedStream("current", noted)

    @contextmanager
    def stream(_: NotedStream) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: NotedStream("own", noted))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: NotedGraph(noted))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return noted


@pytest.mark.parametrize(("failing", "captured"), [(1, []), (2, ["begin", "end"])])
def test_what_a_failed_capture_had_queued_comes_before_what_is_queued_next(
    entries: list[str], failing: int, captured: list[str]
) -> None:
    launches: list[str] = []

    def launch(key: str) -> None:
        launches.append(key)
        if len(launches) == failing:
            raise MemoryError

    graphs = CudaGraphs(launch, device=torch.device("cuda"))
    with pytest.raises(MemoryError):
        graphs.capture("step")
    assert "step" not in graphs
    assert entries == ["own waits for current", *captured, "current waits for own"]
    assert gc.isenabled()
    graphs.capture("step")
    assert "step" in graphs


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_graphs_that_are_garbage_do_not_end_within_a_capture(is_enabled: bool) -> None:
    collects: list[bool] = []
    graphs: CudaGraphs[str] = CudaGraphs(
        lambda _: collects.append(gc.isenabled()), device=torch.device("cuda")
    )
    if not is_enabled:
        gc.disable()
    try:
        graphs.capture("step")
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert collects == [is_enabled, False]
