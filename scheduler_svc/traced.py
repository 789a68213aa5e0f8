"""Tracing of the scheduler's processes, where it is asked for.

Knows nothing about what is traced (frontend/watch.py, engine/traces.py).
"""

from collections.abc import Mapping
from dataclasses import replace

from scheduler_svc.config import ConfigError, SchedulerConfig
from telemetry.spans import Spans

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def with_collector(config: SchedulerConfig, environment: Mapping[str, str]) -> SchedulerConfig:
    """Send spans where OpenTelemetry's own environment says, unless a flag says where.

    Raises:
        ConfigError: if what it says is no address.
    """
    given = [environment[name] for name in _ENDPOINT_VARIABLES if environment.get(name)]
    if config.otlp_endpoint or not given or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return config
    return replace(config, otlp_endpoint=given[0])


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
