"""Clients of a Stepwire server: StepwireClient for threads, AsyncStepwireClient for asyncio.

Values in and out are frozen dataclasses; errors are one tree under StepwireClientError. Knows nothing
about how a server works inside.
"""

from stepwire_client.aio_bulk import AsyncBulkStream
from stepwire_client.aio_client import AsyncStepwireClient
from stepwire_client.aio_stream import AsyncGenerationStream
from stepwire_client.bulk import BulkStream
from stepwire_client.bulk_window import BulkEvent
from stepwire_client.client import StepwireClient
from stepwire_client.errors import (
    AlreadyExists,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StepwireClientError,
    StreamNotFinished,
    TlsFailed,
    Unavailable,
    Unimplemented,
)
from stepwire_client.requests import (
    ChatMessage,
    GenerationRequest,
    OutputParams,
    Prompt,
    RequestOptions,
    SamplingParams,
    StopParams,
)
from stepwire_client.results import (
    Completion,
    Delta,
    FinalOutput,
    FinishReason,
    ModelInfo,
    PositionLogprobs,
    ServerState,
    Timings,
    Tokenized,
    TokenLogprob,
    Usage,
    WorkerState,
)
from stepwire_client.security import Tls
from stepwire_client.stream import GenerationStream

__all__ = [
    "AlreadyExists",
    "AsyncBulkStream",
    "AsyncGenerationStream",
    "AsyncStepwireClient",
    "BulkEvent",
    "BulkStream",
    "Cancelled",
    "ChatMessage",
    "Completion",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Delta",
    "FinalOutput",
    "FinishReason",
    "GenerationRequest",
    "GenerationStream",
    "Internal",
    "InvalidRequest",
    "ModelInfo",
    "NotFound",
    "OutputParams",
    "PermissionDenied",
    "PositionLogprobs",
    "Prompt",
    "RequestOptions",
    "ResourceExhausted",
    "SamplingParams",
    "ServerState",
    "StepwireClient",
    "StepwireClientError",
    "StopParams",
    "StreamNotFinished",
    "Timings",
    "Tls",
    "TlsFailed",
    "TokenLogprob",
    "Tokenized",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "WorkerState",
]
