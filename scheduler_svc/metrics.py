"""All metrics of the scheduler service, as they are told: those of the engine, those of a front end.

Knows nothing about who counts (engine/meter.py, frontend/meter.py) or where the numbers stand.
docs/metrics.md has the same as a table.
"""

from collections.abc import Sequence
from pathlib import Path

from scheduler_svc.core.types import FinishReason
from telemetry.metric import Kind, Metric, counter, gauge, histogram

METHODS = (
    *("Generate", "GenerateMany", "Abort", "GetModelInfo", "GetServerState", "Tokenize", "Detokenize"),
    "other",
)
"""Methods of the public service; those of any other are counted together."""
CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE"),
    *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""gRPC's status codes."""
REASONS = tuple(reason.name.lower() for reason in FinishReason)
OUTCOMES = (
    *("stop_token", "stop_string", "length", "abort", "cancelled", "deadline", "slow_consumer"),
    *("invalid", "duplicate_id", "queue_full", "unavailable", "draining", "interrupted", "internal"),
)
"""How a request can end for its client."""

_LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
)
_TOKEN_BUCKETS = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
_COUNT_BUCKETS = tuple(float(2**exponent) for exponent in range(18))


def engine_metrics(workers: Sequence[str]) -> tuple[Metric, ...]:
    """Define what the engine counts, for each of its worker groups."""
    return (*_engine_gauges(workers), *_engine_counters(workers), *_engine_histograms(workers))


def _engine_gauges(workers: Sequence[str]) -> tuple[Metric, ...]:
    told = (
        ("requests_waiting", "Requests that wait for their first step."),
        ("requests_running", "Requests that run."),
        ("requests_preempted", "Requests that ran and wait to run again."),
        ("kv_cache_blocks", "Blocks that the KV cache has for requests."),
        ("kv_cache_usage_ratio", "Share of the KV cache that requests hold."),
        (
            "kv_cache_cached_ratio",
            "Share of the KV cache that no request holds and prefixes can be found in.",
        ),
        ("steps_in_flight", "Steps sent to the worker and not answered."),
        ("worker_up", "1 while the worker group serves."),
        ("device_idle_ratio", "Running mean of the device's idle share while requests were running."),
        ("round_trip_seconds", "Running mean from a result's leaving the worker to the next step's arrival."),
    )
    return (
        gauge("stepwire_engine_frontends", "Front ends that are attached."),
        *(gauge(f"stepwire_engine_{name}", what, label="worker", values=workers) for name, what in told),
    )


def _engine_counters(workers: Sequence[str]) -> tuple[Metric, ...]:
    told = (
        ("prompt_tokens_total", "Prompt tokens of requests that started."),
        ("prefix_hit_tokens_total", "Of these, tokens that the prefix cache saved."),
        ("output_tokens_total", "Tokens generated."),
        ("preemptions_total", "Requests that lost their lane to others."),
        ("workers_lost_total", "Times that the worker was lost while it served."),
        ("device_busy_seconds_total", "Time in which the device computed steps."),
        ("device_idle_seconds_total", "Time in which it had nothing to do though requests were running."),
    )
    return (
        counter("stepwire_engine_cpu_seconds_total", "Processor time of the engine's process."),
        counter(
            "stepwire_engine_requests_ended_total",
            "Requests that ended after the engine took them, by reason.",
            label="reason",
            values=REASONS,
        ),
        *(counter(f"stepwire_engine_{name}", what, label="worker", values=workers) for name, what in told),
    )


def _engine_histograms(workers: Sequence[str]) -> tuple[Metric, ...]:
    return (
        histogram(
            "stepwire_engine_step_seconds",
            "Device time of one step, or of one iteration of a longer one.",
            buckets=_TOKEN_BUCKETS,
            label="worker",
            values=workers,
        ),
        histogram(
            "stepwire_engine_step_requests",
            "Requests with a row in a step, as planned.",
            buckets=_COUNT_BUCKETS[:13],
            label="worker",
            values=workers,
        ),
    )


def frontend_metrics() -> tuple[Metric, ...]:
    """Define what each front end counts."""
    return (
        gauge("stepwire_frontend_open_requests", "Requests that clients wait for."),
        counter("stepwire_frontend_cpu_seconds_total", "Processor time of the front end's process."),
        counter(
            "stepwire_frontend_requests_total",
            "Requests that ended, by how they did for the client.",
            label="outcome",
            values=OUTCOMES,
        ),
        Metric(
            name="stepwire_frontend_calls_total",
            kind=Kind.COUNTER,
            help="Calls that ended, by method and gRPC status code.",
            labels=("method", "code"),
            series=tuple((method, code) for method in METHODS for code in CODES),
        ),
        *(
            histogram(f"stepwire_frontend_{name}", what, buckets=buckets)
            for name, what, buckets in _FRONTEND_HISTOGRAMS
        ),
    )


_FRONTEND_HISTOGRAMS = (
    ("queue_seconds", "Arrival at the engine to a request's first step.", _LATENCY_BUCKETS),
    ("time_to_first_token_seconds", "Arrival to first token (TTFT).", _LATENCY_BUCKETS),
    ("inter_token_latency_seconds", "Gap between two tokens of a request (ITL).", _TOKEN_BUCKETS),
    (
        "time_per_output_token_seconds",
        "First token to end, over the tokens after the first (TPOT).",
        _TOKEN_BUCKETS,
    ),
    ("e2e_request_latency_seconds", "Arrival to end (E2EL).", _LATENCY_BUCKETS),
    ("request_prompt_tokens", "Prompt tokens of a request.", _COUNT_BUCKETS),
    ("request_output_tokens", "Tokens generated for a request.", _COUNT_BUCKETS),
)


def engine_board_path(folder: Path) -> Path:
    """Where the engine's board stands."""
    return folder / "engine"


def frontend_board_path(folder: Path, frontend_index: int) -> Path:
    """Where a front end's board stands."""
    return folder / f"frontend-{frontend_index}"
