"""The docstrings of a configuration's fields, which become the help of its flags."""

from dataclasses import dataclass, fields
from typing import Any

import pytest

from scheduler_svc.config import SchedulerConfig
from service.field_docstrings import field_docstrings
from worker_svc.config import WorkerConfig


@dataclass
class Config:
    """No field's."""

    port: int
    """Where it
    listens."""
    silent: int = 1
    host: str = "a"
    """Whom it lets in."""
    """A second one is nobody's."""

    def start(self) -> None:
        """No field's either."""


def test_the_string_under_a_field_is_its_help() -> None:
    assert field_docstrings(Config) == {"port": "Where it listens.", "host": "Whom it lets in."}


@pytest.mark.parametrize("config_class", [SchedulerConfig, WorkerConfig])
def test_every_option_of_a_service_has_help(config_class: type[Any]) -> None:
    assert list(field_docstrings(config_class)) == [field.name for field in fields(config_class)]
