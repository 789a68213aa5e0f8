import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from stepwire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "chat", "sampling", "stop", "output", "cache_salt", "priority", "resume")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: _types_pb2.TokenIds
    chat: _types_pb2.ChatInput
    sampling: _types_pb2.SamplingParams
    stop: _types_pb2.StopParams
    output: _types_pb2.OutputParams
    cache_salt: str
    priority: int
    resume: Resume
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[_types_pb2.TokenIds, _Mapping]] = ..., chat: _Optional[_Union[_types_pb2.ChatInput, _Mapping]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_types_pb2.StopParams, _Mapping]] = ..., output: _Optional[_Union[_types_pb2.OutputParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("token_ids", "num_text_bytes")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_text_bytes: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_text_bytes: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "delta", "final", "status", "seed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    delta: _types_pb2.OutputDelta
    final: _types_pb2.FinalOutput
    status: _types_pb2.StatusUpdate
    seed: int
    def __init__(self, request_id: _Optional[str] = ..., delta: _Optional[_Union[_types_pb2.OutputDelta, _Mapping]] = ..., final: _Optional[_Union[_types_pb2.FinalOutput, _Mapping]] = ..., status: _Optional[_Union[_types_pb2.StatusUpdate, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateManyRequest(_message.Message):
    __slots__ = ("generate", "abort_request_id")
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    ABORT_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    generate: GenerateRequest
    abort_request_id: str
    def __init__(self, generate: _Optional[_Union[GenerateRequest, _Mapping]] = ..., abort_request_id: _Optional[str] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("code", "message", "is_resumable", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    is_resumable: bool
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., is_resumable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class GenerateManyResponse(_message.Message):
    __slots__ = ("request_id", "delta", "final", "error", "status", "seed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    delta: _types_pb2.OutputDelta
    final: _types_pb2.FinalOutput
    error: RequestError
    status: _types_pb2.StatusUpdate
    seed: int
    def __init__(self, request_id: _Optional[str] = ..., delta: _Optional[_Union[_types_pb2.OutputDelta, _Mapping]] = ..., final: _Optional[_Union[_types_pb2.FinalOutput, _Mapping]] = ..., error: _Optional[_Union[RequestError, _Mapping]] = ..., status: _Optional[_Union[_types_pb2.StatusUpdate, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model_name", "architecture", "vocab_size", "max_model_len", "eos_token_ids", "has_chat_template", "server_version")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_chat_template: bool
    server_version: str
    def __init__(self, model_name: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., has_chat_template: _Optional[bool] = ..., server_version: _Optional[str] = ...) -> None: ...

class GetServerStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("address", "is_serving", "reason", "worker_epoch", "device", "attention_backend", "num_steps_in_flight", "num_steps", "num_waiting", "num_running", "num_preempted", "num_blocks", "num_free_blocks", "num_cached_blocks", "kv_cache_usage_ratio", "num_epochs_lost", "device_idle_ratio", "decode_time_ns", "round_trip_time_ns", "block_size", "max_num_seqs", "dtype")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_SERVING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_LOST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    DECODE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    address: str
    is_serving: bool
    reason: str
    worker_epoch: int
    device: str
    attention_backend: str
    num_steps_in_flight: int
    num_steps: int
    num_waiting: int
    num_running: int
    num_preempted: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    kv_cache_usage_ratio: float
    num_epochs_lost: int
    device_idle_ratio: float
    decode_time_ns: int
    round_trip_time_ns: int
    block_size: int
    max_num_seqs: int
    dtype: str
    def __init__(self, address: _Optional[str] = ..., is_serving: _Optional[bool] = ..., reason: _Optional[str] = ..., worker_epoch: _Optional[int] = ..., device: _Optional[str] = ..., attention_backend: _Optional[str] = ..., num_steps_in_flight: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_preempted: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., kv_cache_usage_ratio: _Optional[float] = ..., num_epochs_lost: _Optional[int] = ..., device_idle_ratio: _Optional[float] = ..., decode_time_ns: _Optional[int] = ..., round_trip_time_ns: _Optional[int] = ..., block_size: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class GetServerStateResponse(_message.Message):
    __slots__ = ("num_waiting", "num_running", "num_preempted", "num_blocks", "num_free_blocks", "num_cached_blocks", "kv_cache_usage_ratio", "num_prompt_tokens_total", "num_cached_tokens_total", "num_output_tokens_total", "num_finished_total", "num_preemptions_total", "workers", "uptime")
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_FINISHED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    num_waiting: int
    num_running: int
    num_preempted: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    kv_cache_usage_ratio: float
    num_prompt_tokens_total: int
    num_cached_tokens_total: int
    num_output_tokens_total: int
    num_finished_total: int
    num_preemptions_total: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    uptime: _duration_pb2.Duration
    def __init__(self, num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_preempted: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., kv_cache_usage_ratio: _Optional[float] = ..., num_prompt_tokens_total: _Optional[int] = ..., num_cached_tokens_total: _Optional[int] = ..., num_output_tokens_total: _Optional[int] = ..., num_finished_total: _Optional[int] = ..., num_preemptions_total: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "chat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: _types_pb2.ChatInput
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[_types_pb2.ChatInput, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "text")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids", "skip_special_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
