"""Starts the client processes and leads them through rounds.

Knows nothing about cases or figures: a round is shares of jobs in, records out.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from stepwire_client import StepwireClientError

from stepwire_cli.bench.client_process import run_client
from stepwire_cli.bench.messages import (
    ClientFailed,
    ClientSettings,
    FromClient,
    Progress,
    Ready,
    RoundShare,
    ShareDone,
    StartAt,
)
from stepwire_cli.bench.records import RoundRecord

START_DELAY_SECONDS = 0.05
"""From the word to start until the start, so that it reaches all processes before."""
STOP_SECONDS = 5.0


class ClientProcesses:
    """So many client processes; use it in a ``with`` block."""

    def __init__(self, num_processes: int, settings: ClientSettings) -> None:
        self._settings = settings
        self._num_processes = num_processes
        self._connections: list[Connection[Any, Any]] = []
        self.processes: list[SpawnProcess] = []
        """Those that were started."""

    def __enter__(self) -> Self:
        """Start them and wait until each is connected.

        Raises:
            StepwireClientError: if one cannot connect.
        """
        with ExitStack() as stack:
            stack.callback(self._stop)
            self._start()
            self._receive_all(Ready)
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them: at once after an error, else as soon as they have read to the end."""
        self._stop(is_orderly=error is None)

    def run_round(self, shares: Sequence[RoundShare], on_progress: Callable[[int], None]) -> RoundRecord:
        """Run one round and return what came of it.

        Args:
            shares: one a process.
            on_progress: told the number of tokens so far, from time to time.

        Raises:
            StepwireClientError: if a process fails or ends; failed requests are records.
        """
        self._send_all(shares)
        self._receive_all(Ready)
        start = StartAt(monotonic_seconds=time.monotonic() + START_DELAY_SECONDS)
        self._send_all([start] * self._num_processes)
        done = self._receive_all(ShareDone, on_progress)
        records = sorted(
            (record for share in done for record in share.records), key=lambda record: record.index
        )
        return RoundRecord(requests=tuple(records), clients=tuple(share.usage for share in done))

    def _start(self) -> None:
        # A forked process would inherit gRPC's threads in an unknown state.
        context = multiprocessing.get_context("spawn")
        for index in range(self._num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=run_client, args=(theirs, self._settings), name=f"bench-client-{index}", daemon=True
            )
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._connections.append(ours)
            self.processes.append(process)

    def _stop(self, *, is_orderly: bool = False) -> None:
        for connection in self._connections:
            connection.close()
        for process in self.processes:
            if is_orderly:
                process.join(STOP_SECONDS)
            process.terminate()
            process.join(STOP_SECONDS)

    def _send_all(self, messages: Sequence[object]) -> None:
        for connection, message in zip(self._connections, messages, strict=True):
            connection.send(message)

    def _receive_all(self, kind: type[Any], on_progress: Callable[[int], None] = lambda _: None) -> list[Any]:
        """Wait for one message of ``kind`` from each process, in their order."""
        received: dict[int, Any] = {}
        num_tokens = [0] * self._num_processes
        while len(received) < self._num_processes:
            awaited = [item for index, item in enumerate(self._connections) if index not in received]
            for connection in wait(awaited):
                index = self._connections.index(connection)  # type: ignore[arg-type]
                message = self._receive(index)
                if isinstance(message, Progress):
                    num_tokens[index] = message.num_tokens
                    on_progress(sum(num_tokens))
                else:
                    assert isinstance(message, kind), f"not awaited: {message!r}"
                    received[index] = message
        return [received[index] for index in range(self._num_processes)]

    def _receive(self, index: int) -> FromClient:
        try:
            message: FromClient = self._connections[index].recv()
        except EOFError:
            self.processes[index].join(STOP_SECONDS)
            code = self.processes[index].exitcode
            raise StepwireClientError(f"client process {index} ended with exit code {code}") from None
        if isinstance(message, ClientFailed):
            raise StepwireClientError(f"client process {index} failed: {message.reason}")
        return message
