"""Whether an engine and this worker fit together.

Knows nothing about streams or fencing.
"""

import logging

from stepwire.worker.v1 import worker_service_pb2 as pb

from worker_svc.errors import HelloMismatchError, ProtocolError
from worker_svc.rpc.convert import PROTOCOL_VERSION
from worker_svc.runner.worker_info import WorkerInfo

_logger = logging.getLogger(__name__)


def hello_of(request: pb.RunStepsRequest | None) -> pb.EngineHello:
    """Take the hello out of a stream's first message; None: there was none.

    Raises:
        ProtocolError: if the first message is another.
    """
    kind = None if request is None else request.WhichOneof("message")
    if request is None or kind != "hello":
        raise ProtocolError.of("first message", kind, "be a hello")
    return request.hello


def check_hello(hello: pb.EngineHello, info: WorkerInfo) -> None:
    """Refuse an engine that expects another protocol or model.

    A different tokenizer is only logged: the worker sees token ids.

    Raises:
        HelloMismatchError: naming the field and both values.
    """
    for field, theirs, ours in (
        ("protocol_version", hello.protocol_version, PROTOCOL_VERSION),
        ("config_hash", hello.config_hash, info.config_hash),
        ("vocab_size", hello.vocab_size, info.limits.vocab_size),
    ):
        if theirs != ours:
            raise HelloMismatchError(f"{field}: the engine expects {theirs}, the worker has {ours}")
    if hello.tokenizer_hash != info.tokenizer_hash:
        _logger.warning(
            "tokenizer_hash: the engine has %r, the worker's model folder %r",
            hello.tokenizer_hash,
            info.tokenizer_hash,
        )
