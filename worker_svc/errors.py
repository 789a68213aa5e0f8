"""The worker service's one exception tree.

    WorkerError
    ├── StartupError           the worker cannot start: the message names flag, file or parameter
    │   ├── ConfigError        a flag, environment variable or file that one names does not fit
    │   └── MemoryBudgetError  the KV cache cannot hold what the flags ask for
    ├── NotReadyError          the weights still load, or the worker stops
    ├── HelloMismatchError     the engine expects another model or protocol
    ├── SupersededError        a newer engine has taken over
    ├── ProtocolError          a message breaks the step stream's rules
    ├── StepFailedError        a step could not be computed
    └── DeviceLostError        only a new process can compute again

Knows nothing about gRPC: rpc/status.py maps each class to a status code.
"""


class WorkerError(Exception):
    """Root of all errors that a caller can see."""


class StartupError(WorkerError):
    """The worker cannot start."""


class ConfigError(StartupError):
    """A flag, an environment variable or a file that one names does not fit: the message says what does."""

    @classmethod
    def of(cls, option: str, value: object, limit: str) -> "ConfigError":
        """Build the error for ``option`` whose ``value`` breaks ``limit`` (a phrase after "must")."""
        return cls(f"--{option.replace('_', '-')} is {value!r}, but must {limit}")


class MemoryBudgetError(StartupError):
    """The KV cache cannot hold what the flags ask for: the message says what to change."""


class NotReadyError(WorkerError):
    """The worker takes no stream now."""


class HelloMismatchError(WorkerError):
    """The engine expects another model or protocol: the message names both values."""


class SupersededError(WorkerError):
    """A newer engine has taken over."""


class ProtocolError(WorkerError):
    """A message breaks the rules of the step stream: the message names field, value and limit."""

    @classmethod
    def of(cls, field: str, value: object, limit: str) -> "ProtocolError":
        """Build the error for ``field`` whose ``value`` breaks ``limit`` (a phrase after "must")."""
        return cls(f"{field} is {value}, but must {limit}")


class StepFailedError(WorkerError):
    """A step could not be computed: the message names the step and the cause."""


class DeviceLostError(WorkerError):
    """The device takes no more work of this process, or a step on it does not end."""
