"""What docs/operations.md says of flags, health names and limits is what the code says.

A failing row is printed as it should stand in the document.
"""

import dataclasses
import os
import subprocess
import sys
from typing import Any

import grpc
import pytest

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.frontend.server import READY_SERVICE
from scheduler_svc.frontend.status import STATUS_OF_ERROR
from scheduler_svc.frontend.streams import MAX_PENDING
from service.field_docstrings import field_docstrings
from tests.rules.source_tree import REPOSITORY, expect_none, read_file
from worker_svc.config import WorkerConfig

DOCUMENT = "docs/operations.md"


@pytest.mark.parametrize("config_class", [SchedulerConfig, WorkerConfig])
def test_every_flag_stands_in_the_table_with_its_default(config_class: type[Any]) -> None:
    section = _section("Scheduler" if config_class is SchedulerConfig else "Worker")
    meanings = field_docstrings(config_class)
    rows = [_row(field, meanings[field.name]) for field in dataclasses.fields(config_class)]
    expect_none([row for row in rows if row not in section])
    assert section.count("| `--") == len(rows), "a flag in the table that does not exist"


def _help(module: str, *, num_columns: int) -> str:
    return subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": str(num_columns), "TERM": "dumb"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


@pytest.mark.parametrize("module", ["scheduler_svc", "worker_svc"])
def test_a_narrow_terminal_cuts_no_name(module: str) -> None:
    shown = _help(module, num_columns=80)
    assert "…" not in shown
    assert f"STEPWIRE_{module.removesuffix('_svc').upper()}_MAX_NUM_BATCHED_TOKENS" in shown


@pytest.mark.parametrize(
    ("module", "config_class"), [("scheduler_svc", SchedulerConfig), ("worker_svc", WorkerConfig)]
)
def test_help_explains_every_flag(module: str, config_class: type[Any]) -> None:
    meanings = field_docstrings(config_class)
    shown = " ".join(_help(module, num_columns=400).split())
    fields = dataclasses.fields(config_class)
    expect_none([field.name for field in fields if f"--{field.name.replace('_', '-')} " not in shown])
    expect_none([meaning for meaning in meanings.values() if meaning not in shown])


def test_health_names_are_documented() -> None:
    text = read_file(DOCUMENT)
    for name in (READY_SERVICE, "stepwire.v1.GenerationService", "stepwire.worker.v1.WorkerService"):
        assert f"`{name}`" in text


def test_every_status_that_a_request_can_get_is_documented() -> None:
    table = _section("What bad input gets", level="##")
    # These end the start of a service: no request is there to get them.
    codes = set(STATUS_OF_ERROR.values()) - {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND}
    assert sorted(code.name for code in codes if f"| {code.name} |" not in table) == []


def test_limits_are_documented() -> None:
    assert f"At most {MAX_PENDING:,} tokens" in read_file(DOCUMENT)


def _section(title: str, level: str = "###") -> str:
    """Return the text between a heading and the next one."""
    return read_file(DOCUMENT).split(f"\n{level} {title}\n", 1)[1].split("\n#", 1)[0]


def _row(field: "dataclasses.Field[Any]", meaning: str) -> str:
    return f"| `--{field.name.replace('_', '-')}` | {_shown_default(field)} | {meaning} |"


def _shown_default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    default = " ".join(field.default) if isinstance(field.default, tuple) else str(field.default)
    return f"`{default}`" if default else "empty"
