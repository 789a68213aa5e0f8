"""What Ctrl-C does while a command is still being imported."""

import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import stepwire_cli.__main__

import scheduler_svc.__main__


class Watched(ModuleType):
    """Stands in for the commands: notes who handles SIGINT while they are imported, and while they run."""

    def __init__(self, name: str, start: Any) -> None:
        super().__init__(name)
        self.start = start
        self.handlers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ("app", "run_command_line"):
            raise AttributeError(name)
        self.handlers.append(signal.getsignal(signal.SIGINT))
        return self._run

    def _run(self, *_: Any, **__: Any) -> None:
        self.handlers.append(signal.getsignal(signal.SIGINT))


@pytest.fixture(params=["stepwire_cli.main", "scheduler_svc.command_line"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Put the stand-in where the commands are; what the start changes is set back."""
    of_cli, of_scheduler = stepwire_cli.__main__, scheduler_svc.__main__
    commands = Watched(
        request.param, of_cli.run if request.param == "stepwire_cli.main" else of_scheduler.main
    )
    monkeypatch.setitem(sys.modules, request.param, commands)
    for name, value in (of_cli.GRPC_ENVIRONMENT | of_scheduler.GRPC_ENVIRONMENT).items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGINT)
    yield commands
    signal.signal(signal.SIGINT, handler)


def test_ctrl_c_just_ends_the_process_until_all_is_imported(watched: Watched) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watched.start()
    assert watched.handlers == [signal.SIG_DFL, signal.default_int_handler]


def test_a_shell_that_ignores_ctrl_c_for_its_background_is_heeded(watched: Watched) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched.start()
    assert watched.handlers == [signal.SIG_IGN, signal.SIG_IGN]
