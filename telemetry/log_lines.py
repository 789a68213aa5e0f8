"""Log lines, for people or as one JSON object each, with the ids of the call that they belong to.

Knows nothing about what is logged. ``extra={"fields": {...}}`` adds fields of a line's own to its object.
"""

import json
import logging
import multiprocessing
from datetime import UTC, datetime

from telemetry.call_context import current_call

LOG_FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(processName)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: int, log_format: str, *, process_name: str = "") -> None:
    """Have this process write its log to standard error, in one of LOG_FORMATS, under a name if given."""
    if process_name:
        multiprocessing.current_process().name = process_name
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        call = current_call()
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.processName,
            "logger": record.name,
            "message": record.getMessage(),
            "call_id": call.call_id,
            "request_id": call.request_id,
            "trace_id": call.traceparent[3:35],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in fields.items() if value != ""}, default=str)
