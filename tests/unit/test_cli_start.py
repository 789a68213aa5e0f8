"""What Ctrl-C does while the command is still being imported."""

import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from stepwire_cli.__main__ import GRPC_ENVIRONMENT, run


class Watched(ModuleType):
    """Stands in for the commands: notes who handles SIGINT while they are imported, and while they run."""

    def __init__(self) -> None:
        super().__init__("stepwire_cli.main")
        self.handlers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name != "app":
            raise AttributeError(name)
        self.handlers.append(signal.getsignal(signal.SIGINT))
        return self._run

    def _run(self, *, prog_name: str) -> None:
        assert prog_name == "stepwire"
        self.handlers.append(signal.getsignal(signal.SIGINT))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Put the stand-in where the commands are; what the start changes is set back."""
    commands = Watched()
    monkeypatch.setitem(sys.modules, "stepwire_cli.main", commands)
    for name, value in GRPC_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGINT)
    yield commands
    signal.signal(signal.SIGINT, handler)


def test_ctrl_c_just_ends_the_process_until_all_is_imported(watched: Watched) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
    assert watched.handlers == [signal.SIG_DFL, signal.default_int_handler]


def test_a_shell_that_ignores_ctrl_c_for_its_background_is_heeded(watched: Watched) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run()
    assert watched.handlers == [signal.SIG_IGN, signal.SIG_IGN]
