"""The scheduler service's one exception tree.

    StepwireError
    ├── InvalidRequestError       a field does not fit its limit
    │   └── DuplicateRequestError the request id is in use
    ├── UnknownRequestError       no such request
    ├── QueueFullError            too many requests wait
    ├── SlowConsumerError         the client does not read its stream
    ├── DeadlineError             the client's deadline passed
    ├── DrainingError             the server takes no new requests
    ├── WorkerUnavailableError    no worker group can serve, or none that came so far
    ├── RequestInterruptedError   the server lets go of a request that can be resumed
    ├── UnfitWorkerError          a worker says of itself what the engine cannot run with
    │   └── ModelMismatchError    it serves another model
    ├── ModelFolderError          the model folder is missing or broken
    ├── EventsGoneError           events from the asked-for number on are not kept
    ├── UnsupportedError          a method that a contract has and we have not
    └── InternalError             our own fault

Knows nothing about gRPC: frontend/status.py maps each class to a status code.
"""


class StepwireError(Exception):
    """Root of all errors that a caller can see."""


class InvalidRequestError(StepwireError):
    """A request's field does not fit: the message names field, value and limit."""

    parts: tuple[str, object, str] | None = None
    """Field, value and limit, for contracts that call the field otherwise; None for other messages."""

    @classmethod
    def of(cls, field: str, value: object, limit: str) -> "InvalidRequestError":
        """Build the error for ``field`` whose ``value`` breaks ``limit`` (a phrase after "must")."""
        error = cls(f"{field} is {value!r}, but must {limit}")
        error.parts = (field, value, limit)
        return error


class DuplicateRequestError(InvalidRequestError):
    """The request id is in use."""


class UnknownRequestError(StepwireError):
    """No such request."""


class QueueFullError(StepwireError):
    """Too many requests wait already."""


class SlowConsumerError(StepwireError):
    """A client does not read its stream."""


class DeadlineError(StepwireError):
    """The client's deadline passed."""


class DrainingError(StepwireError):
    """The server takes no new requests."""


class WorkerUnavailableError(StepwireError):
    """No worker group can serve, or none of those that came so far."""

    @classmethod
    def so_far(cls, refusal: InvalidRequestError, num_unknown_groups: int) -> "WorkerUnavailableError":
        """Build the error for what the groups known so far refuse, and one of the others may take."""
        others = f"worker groups that may allow more have not connected yet ({num_unknown_groups})"
        return cls(f"{refusal}, so far: {others}")


class RequestInterruptedError(StepwireError):
    """The server lets go of a request that has not ended: another stream can go on with it."""

    def __init__(self, message: str, *, seed: int = 0, num_output_tokens: int = 0) -> None:
        """Say with what seed, and after how many tokens, another stream goes on."""
        super().__init__(message)
        self.seed = seed
        self.num_output_tokens = num_output_tokens


class UnfitWorkerError(StepwireError):
    """A worker's hello does not fit the engine: the message names field, value and limit."""


class ModelMismatchError(UnfitWorkerError):
    """A worker serves another model than the scheduler expects."""


class ModelFolderError(StepwireError):
    """The model folder is missing or broken: the message names the file."""


class EventsGoneError(StepwireError):
    """Events from the number on that was asked for are not kept: begin anew."""


class UnsupportedError(StepwireError):
    """A method that a contract has and that we do not offer."""


class InternalError(StepwireError):
    """Our own fault."""
