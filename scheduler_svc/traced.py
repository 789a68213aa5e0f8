"""Tracing of the scheduler's processes, where it is asked for.

Knows nothing about what is traced (frontend/watch.py, engine/traces.py).
"""

from scheduler_svc.config import ConfigError, SchedulerConfig
from telemetry.spans import Spans


def make_spans(config: SchedulerConfig, *, process: str) -> Spans | None:
    """Begin to send spans; None where there is no collector.

    Raises:
        ConfigError: if OpenTelemetry is not installed.
    """
    if not config.otlp_endpoint:
        return None
    try:
        from telemetry.otel_spans import otlp_spans  # noqa: PLC0415
    except ModuleNotFoundError as error:
        limit = f"be empty where {error.name} is not installed (pip install 'stepwire[tracing]')"
        raise ConfigError.of("otlp_endpoint", config.otlp_endpoint, limit) from error
    return otlp_spans(config.otlp_endpoint, process=process)
