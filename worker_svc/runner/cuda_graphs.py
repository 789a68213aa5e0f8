"""Captures what a step launches, once for each key, such as its padded size, and replays it.

A replay costs the host one launch instead of some hundred. What is captured must read and write
memory that stays where it is. Knows nothing about what a step computes.
"""

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
OnProgress = Callable[[int, int], None]


class CudaGraphs(Generic[Key]):
    """Graphs by key. Used by one thread.

    Args:
        launch: Launches the step of a key, over inputs that lie there already.
        device: A CUDA device.
    """

    def __init__(self, launch: Callable[[Key], None], *, device: torch.device) -> None:
        self._launch = launch
        # A capture needs a stream of its own; warming up on it takes cuBLAS' workspace there, too.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._graphs

    def replay(self, key: Key) -> None:
        """Queue all that the step launches."""
        self._graphs[key].replay()

    def capture(self, key: Key) -> None:
        """Run the step once, which compiles kernels and picks algorithms, then capture it."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                self._launch(key)
                # Not torch.cuda.graph: it collects garbage each time, which takes longer than a capture.
                with _collecting_later():
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        self._launch(key)
                    finally:
                        graph.capture_end()
        finally:
            # Of a capture that failed, too: what it had queued comes before whatever is queued next.
            torch.cuda.current_stream().wait_stream(self._stream)
        self._graphs[key] = graph


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Leave garbage alone: where a graph, or memory that ranks share, ends within a capture, that is invalid.

    A runner refers to itself by way of its graphs' launches: only the collector ends one.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
