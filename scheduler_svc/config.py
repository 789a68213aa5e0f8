"""The scheduler service's one frozen configuration, checked when it is made.

Each field's docstring is the help text of its flag. Knows nothing about flags or the environment
(``command_line.py`` is given both) and nothing about models: whether the folder is sound is found at start.
"""

import logging
import math
from dataclasses import dataclass

from telemetry.log_lines import LOG_FORMATS

_MIB = 1024 * 1024
_MAX_STEPS_IN_FLIGHT = 4
_MAX_LEASE_STEPS = 64
_LEAST_SILENCE_SECONDS = 2.0


class ConfigError(ValueError):
    """An option does not fit its limit: the message names option, value and limit."""

    @classmethod
    def of(cls, option: str, value: object, limit: str) -> "ConfigError":
        """Build the error for ``option`` whose ``value`` breaks ``limit`` (a phrase after "must")."""
        return cls(f"--{option.replace('_', '-')} is {value!r}, but must {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """All options of the scheduler service."""

    model: str
    """Model folder in Hugging Face format, or a hub id where the machine reaches a hub."""
    served_model_name: str = ""
    """Name that clients know the model by. Empty: the folder's name or the hub id."""
    host: str = "127.0.0.1"
    """Address that the front ends listen on."""
    port: int = 50051
    """Port that the front ends share. 0 picks a free one; the start-up line tells it."""
    worker: tuple[str, ...] = ("127.0.0.1:50061",)
    """HOST:PORT of a worker group. Give it once for each group; all run the same model."""
    frontends: int = 1
    """Front end processes on the one port."""
    max_num_seqs: int = 0
    """Most requests that run at once. 0: the worker's limit, which this may only lower."""
    max_num_batched_tokens: int = 0
    """Most tokens of one step. 0: the worker's limit, which this may only lower."""
    max_model_len: int = 0
    """Most tokens of one request, prompt and output. 0: the worker's limit, which this may only lower."""
    max_steps_in_flight: int = 2
    """Steps sent to the worker ahead of their results."""
    max_lease_steps: int = 16
    """Most tokens of each request in one step, where the worker is far away. 1: always one."""
    max_num_waiting: int = 4096
    """Requests that may wait for their first step; one more is refused as RESOURCE_EXHAUSTED."""
    max_message_mib: int = 64
    """Largest gRPC message to or from clients, in MiB; a larger one is refused as RESOURCE_EXHAUSTED."""
    max_prompt_tokens: int = 0
    """Most tokens of a prompt. 0: as many as --max-model-len leaves room for."""
    max_prompt_bytes: int = 8 * _MIB
    """Most bytes of a text or chat, as given and as rendered; more is refused before it is tokenized."""
    max_streams_per_connection: int = 10000
    """Calls that one client connection may have open at once; more wait at the client."""
    tls_cert: str = ""
    """PEM file of the certificates that clients are shown, the server's own first. Empty: no TLS."""
    tls_key: str = ""
    """PEM file of the private key of --tls-cert, unencrypted."""
    tls_client_ca: str = ""
    """PEM file of authorities; clients must show a certificate that one of them signed. Empty: none."""
    tenants_file: str = ""
    """TOML file of tenants, their tokens' hashes and quotas, read again when it changes. Empty: no tokens."""
    worker_tls_ca: str = ""
    """PEM file of the authorities that workers' certificates must be from. Empty: no TLS to workers."""
    worker_tls_cert: str = ""
    """PEM file of the certificate that workers are shown, where they ask for one."""
    worker_tls_key: str = ""
    """PEM file of the private key of --worker-tls-cert, unencrypted."""
    reflection: bool = True
    """Answer server reflection, which tells all messages of the contract to whoever may call."""
    drain_seconds: float = 30.0
    """How long a stop waits for running requests."""
    step_limit_seconds: float = 10.0
    """A worker counts as lost when a step takes longer than this and than 20 times what is usual."""
    first_step_limit_seconds: float = 300.0
    """The same for the first step of its size that a worker runs: it may have kernels to compile."""
    silence_limit_seconds: float = 10.0
    """A worker counts as lost when it sends nothing for this long; it sends a heartbeat a second."""
    metrics_port: int = -1
    """Port of the Prometheus metrics, on --host. 0 picks a free one, and a line tells it. -1: none."""
    otlp_endpoint: str = ""
    """Where spans go: http://HOST:4317 (OTLP over gRPC). Empty: OTEL_EXPORTER_OTLP_ENDPOINT, or nowhere."""
    check_only: bool = False
    """Only tell what is wrong with the options and the files they name, and end. Fetches no model."""
    check_invariants: bool = False
    """Check the core's invariants after every call: slow, for finding bugs."""
    log_level: str = "info"
    """Least severe messages to log: debug, info, warning or error."""
    log_format: str = "text"
    """How log lines are written: text, or json for an object a line."""

    def __post_init__(self) -> None:
        """Refuse values that no scheduler could run under."""
        if not self.model:
            raise ConfigError.of("model", self.model, "name a model folder or a hub id")
        if not self.host:
            raise ConfigError.of("host", self.host, "name an address to listen on")
        self._check_workers()
        self._check_range("port", 0, 65535)
        self._check_range("metrics_port", -1, 65535)
        if self.metrics_port == self.port != 0:
            raise ConfigError.of("metrics_port", self.metrics_port, "be another port than --port")
        self._check_range("frontends", 1, 256)
        self._check_range("max_steps_in_flight", 1, _MAX_STEPS_IN_FLIGHT)
        self._check_range("max_lease_steps", 1, _MAX_LEASE_STEPS)
        self._check_range("max_num_waiting", 1, 2**31 - 1)
        self._check_range("max_message_mib", 1, 2047)
        self._check_range("max_prompt_bytes", 1, 2**31 - 1)
        self._check_range("max_streams_per_connection", 1, 2**31 - 1)
        self._check_tls()
        for option in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_prompt_tokens"):
            self._check_range(option, 0, 2**31 - 1)
        self._check_seconds("drain_seconds", is_zero_allowed=True)
        self._check_seconds("step_limit_seconds", is_zero_allowed=False)
        self._check_seconds("first_step_limit_seconds", is_zero_allowed=False)
        self._check_seconds("silence_limit_seconds", is_zero_allowed=False)
        if self.silence_limit_seconds < _LEAST_SILENCE_SECONDS:
            limit = f"be at least {_LEAST_SILENCE_SECONDS:g}: a worker sends a heartbeat a second"
            raise ConfigError.of("silence_limit_seconds", self.silence_limit_seconds, limit)
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError.of("otlp_endpoint", self.otlp_endpoint, "begin with http:// or https://")
        if self.log_format not in LOG_FORMATS:
            raise ConfigError.of("log_format", self.log_format, f"be {' or '.join(LOG_FORMATS)}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError.of("log_level", self.log_level, "be debug, info, warning or error")

    @property
    def max_message_bytes(self) -> int:
        """Largest gRPC message."""
        return self.max_message_mib * _MIB

    @property
    def logging_level(self) -> int:
        """``log_level`` as the number that ``logging`` knows."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]

    def _check_workers(self) -> None:
        if not self.worker:
            raise ConfigError.of("worker", self.worker, "be given at least once")
        for address in self.worker:
            host, colon, port = address.rpartition(":")
            is_port = port.isdecimal() and 1 <= int(port) <= 65535
            if not host or not colon or not is_port or any(mark in host for mark in ", ;/"):
                raise ConfigError.of("worker", address, "be HOST:PORT with a port in [1, 65535]")
            if self.worker.count(address) > 1:
                raise ConfigError.of("worker", address, "be given once for each group")

    def _check_tls(self) -> None:
        for option, needed in (
            ("tls_cert", "tls_key"),
            ("tls_key", "tls_cert"),
            ("tls_client_ca", "tls_cert"),
            ("worker_tls_cert", "worker_tls_key"),
            ("worker_tls_key", "worker_tls_cert"),
            ("worker_tls_cert", "worker_tls_ca"),
        ):
            value = getattr(self, option)
            if value and not getattr(self, needed):
                raise ConfigError.of(option, value, f"come with --{needed.replace('_', '-')}")

    def _check_range(self, option: str, lowest: int, highest: int) -> None:
        value = getattr(self, option)
        if not lowest <= value <= highest:
            raise ConfigError.of(option, value, f"be in [{lowest}, {highest}]")

    def _check_seconds(self, option: str, *, is_zero_allowed: bool) -> None:
        value = getattr(self, option)
        if not math.isfinite(value) or value < 0 or (value == 0 and not is_zero_allowed):
            raise ConfigError.of(
                option, value, f"be finite and {'at least' if is_zero_allowed else 'over'} 0"
            )
