"""A log line as a JSON object."""

import json
import logging
import sys
from typing import Any

from telemetry.call_context import CallContext, within_call, within_request
from telemetry.log_lines import JsonFormatter


def record(message: str = "step %d of %s", *args: object, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("stepwire.x", logging.WARNING, "file", 1, message, args or (3, "a\nb"), None)
    made.created = 1_800_000_000.5
    made.__dict__.update(extra)
    return made


def test_a_line_holds_time_level_and_message() -> None:
    line = JsonFormatter().format(record())
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.500+00:00",
        "level": "warning",
        "process": "MainProcess",
        "logger": "stepwire.x",
        "message": "step 3 of a\nb",
    }


def test_ids_of_the_call_are_there_while_it_runs_only() -> None:
    formatter = JsonFormatter()
    with within_call(CallContext(call_id="c", traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")):
        with within_request("r"):
            inner = json.loads(formatter.format(record()))
        outer = json.loads(formatter.format(record()))
    assert (inner["call_id"], inner["request_id"], inner["trace_id"]) == ("c", "r", "a" * 32)
    assert (outer["call_id"], outer.get("request_id")) == ("c", None)
    assert "call_id" not in json.loads(formatter.format(record()))


def test_fields_of_its_own_and_what_json_does_not_know() -> None:
    line = json.loads(
        JsonFormatter().format(record(fields={"seconds": 0.25, "kind": logging.INFO, "of": {1}}))
    )
    assert (line["seconds"], line["kind"], line["of"]) == (0.25, 20, "{1}")


def test_an_exception_is_told_in_the_same_line() -> None:
    made = record()
    try:
        raise ValueError("no")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: no")
