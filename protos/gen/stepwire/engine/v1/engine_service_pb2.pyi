from stepwire.v1 import generation_service_pb2 as _generation_service_pb2
from stepwire.worker.v1 import worker_service_pb2 as _worker_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_STOP_STRING: _ClassVar[EndReason]
    END_REASON_ABORT: _ClassVar[EndReason]
    END_REASON_DISCONNECT: _ClassVar[EndReason]
    END_REASON_SLOW_CONSUMER: _ClassVar[EndReason]

class RequestEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_END_UNSPECIFIED: _ClassVar[RequestEnd]
    REQUEST_END_STOP: _ClassVar[RequestEnd]
    REQUEST_END_LENGTH: _ClassVar[RequestEnd]
    REQUEST_END_ABORT: _ClassVar[RequestEnd]
    REQUEST_END_DEADLINE: _ClassVar[RequestEnd]
    REQUEST_END_INVALID: _ClassVar[RequestEnd]
    REQUEST_END_DUPLICATE_ID: _ClassVar[RequestEnd]
    REQUEST_END_QUEUE_FULL: _ClassVar[RequestEnd]
    REQUEST_END_UNAVAILABLE: _ClassVar[RequestEnd]
    REQUEST_END_INTERNAL: _ClassVar[RequestEnd]

class RequestStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATUS_UNSPECIFIED: _ClassVar[RequestStatus]
    REQUEST_STATUS_WAITING_FOR_WORKER: _ClassVar[RequestStatus]
    REQUEST_STATUS_RUNNING: _ClassVar[RequestStatus]
END_REASON_UNSPECIFIED: EndReason
END_REASON_STOP_STRING: EndReason
END_REASON_ABORT: EndReason
END_REASON_DISCONNECT: EndReason
END_REASON_SLOW_CONSUMER: EndReason
REQUEST_END_UNSPECIFIED: RequestEnd
REQUEST_END_STOP: RequestEnd
REQUEST_END_LENGTH: RequestEnd
REQUEST_END_ABORT: RequestEnd
REQUEST_END_DEADLINE: RequestEnd
REQUEST_END_INVALID: RequestEnd
REQUEST_END_DUPLICATE_ID: RequestEnd
REQUEST_END_QUEUE_FULL: RequestEnd
REQUEST_END_UNAVAILABLE: RequestEnd
REQUEST_END_INTERNAL: RequestEnd
REQUEST_STATUS_UNSPECIFIED: RequestStatus
REQUEST_STATUS_WAITING_FOR_WORKER: RequestStatus
REQUEST_STATUS_RUNNING: RequestStatus

class FrontendHello(_message.Message):
    __slots__ = ("protocol_version", "frontend_index")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_INDEX_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    frontend_index: int
    def __init__(self, protocol_version: _Optional[int] = ..., frontend_index: _Optional[int] = ...) -> None: ...

class TenantQuota(_message.Message):
    __slots__ = ("tenant", "max_num_requests", "max_num_tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    max_num_requests: int
    max_num_tokens: int
    def __init__(self, tenant: _Optional[str] = ..., max_num_requests: _Optional[int] = ..., max_num_tokens: _Optional[int] = ...) -> None: ...

class NewRequest(_message.Message):
    __slots__ = ("handle", "request_id", "prompt_token_ids", "sampling", "has_seed", "max_tokens", "cache_salt", "timeout_ns", "output_token_ids", "takes_over", "quota", "traceparent", "asked_ns")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    HAS_SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TAKES_OVER_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ASKED_NS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    prompt_token_ids: bytes
    sampling: _worker_service_pb2.LaneSampling
    has_seed: bool
    max_tokens: int
    cache_salt: str
    timeout_ns: int
    output_token_ids: bytes
    takes_over: bool
    quota: TenantQuota
    traceparent: str
    asked_ns: int
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[_worker_service_pb2.LaneSampling, _Mapping]] = ..., has_seed: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., cache_salt: _Optional[str] = ..., timeout_ns: _Optional[int] = ..., output_token_ids: _Optional[bytes] = ..., takes_over: _Optional[bool] = ..., quota: _Optional[_Union[TenantQuota, _Mapping]] = ..., traceparent: _Optional[str] = ..., asked_ns: _Optional[int] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("handle", "reason", "num_output_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: EndReason
    num_output_tokens: int
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[EndReason, str]] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class AbortById(_message.Message):
    __slots__ = ("request_id", "num_requests_before", "asked_ns")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ASKED_NS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_requests_before: int
    asked_ns: int
    def __init__(self, request_id: _Optional[str] = ..., num_requests_before: _Optional[int] = ..., asked_ns: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("hello", "new_requests", "end_requests", "aborts")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    NEW_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    END_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    hello: FrontendHello
    new_requests: _containers.RepeatedCompositeFieldContainer[NewRequest]
    end_requests: _containers.RepeatedCompositeFieldContainer[EndRequest]
    aborts: _containers.RepeatedCompositeFieldContainer[AbortById]
    def __init__(self, hello: _Optional[_Union[FrontendHello, _Mapping]] = ..., new_requests: _Optional[_Iterable[_Union[NewRequest, _Mapping]]] = ..., end_requests: _Optional[_Iterable[_Union[EndRequest, _Mapping]]] = ..., aborts: _Optional[_Iterable[_Union[AbortById, _Mapping]]] = ...) -> None: ...

class WorkerGroupInfo(_message.Message):
    __slots__ = ("address", "is_serving", "reason")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_SERVING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    address: str
    is_serving: bool
    reason: str
    def __init__(self, address: _Optional[str] = ..., is_serving: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class EngineInfo(_message.Message):
    __slots__ = ("protocol_version", "is_ready", "reason", "max_model_len", "max_pool_tokens", "groups", "num_unknown_groups")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNKNOWN_GROUPS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    is_ready: bool
    reason: str
    max_model_len: int
    max_pool_tokens: int
    groups: _containers.RepeatedCompositeFieldContainer[WorkerGroupInfo]
    num_unknown_groups: int
    def __init__(self, protocol_version: _Optional[int] = ..., is_ready: _Optional[bool] = ..., reason: _Optional[str] = ..., max_model_len: _Optional[int] = ..., max_pool_tokens: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[WorkerGroupInfo, _Mapping]]] = ..., num_unknown_groups: _Optional[int] = ...) -> None: ...

class EndedRequest(_message.Message):
    __slots__ = ("handle", "reason", "matched_stop_token_id", "num_output_tokens", "num_cached_tokens", "queue_time_ns", "message")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MATCHED_STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: RequestEnd
    matched_stop_token_id: int
    num_output_tokens: int
    num_cached_tokens: int
    queue_time_ns: int
    message: str
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[RequestEnd, str]] = ..., matched_stop_token_id: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., queue_time_ns: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class StepOutputs(_message.Message):
    __slots__ = ("handles", "token_ids", "logprob_counts", "logprob_token_ids", "logprob_values", "started_handles", "started_num_cached_tokens", "started_queue_time_ns", "ended", "status_handles", "statuses")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_VALUES_FIELD_NUMBER: _ClassVar[int]
    STARTED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    STARTED_NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STARTED_QUEUE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    STATUS_HANDLES_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    token_ids: bytes
    logprob_counts: bytes
    logprob_token_ids: bytes
    logprob_values: bytes
    started_handles: bytes
    started_num_cached_tokens: bytes
    started_queue_time_ns: _containers.RepeatedScalarFieldContainer[int]
    ended: _containers.RepeatedCompositeFieldContainer[EndedRequest]
    status_handles: bytes
    statuses: _containers.RepeatedScalarFieldContainer[RequestStatus]
    def __init__(self, handles: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprob_counts: _Optional[bytes] = ..., logprob_token_ids: _Optional[bytes] = ..., logprob_values: _Optional[bytes] = ..., started_handles: _Optional[bytes] = ..., started_num_cached_tokens: _Optional[bytes] = ..., started_queue_time_ns: _Optional[_Iterable[int]] = ..., ended: _Optional[_Iterable[_Union[EndedRequest, _Mapping]]] = ..., status_handles: _Optional[bytes] = ..., statuses: _Optional[_Iterable[_Union[RequestStatus, str]]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("info", "outputs")
    INFO_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    info: EngineInfo
    outputs: StepOutputs
    def __init__(self, info: _Optional[_Union[EngineInfo, _Mapping]] = ..., outputs: _Optional[_Union[StepOutputs, _Mapping]] = ...) -> None: ...

class GetEngineStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEngineStateResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _generation_service_pb2.GetServerStateResponse
    def __init__(self, state: _Optional[_Union[_generation_service_pb2.GetServerStateResponse, _Mapping]] = ...) -> None: ...

class WatchPrefixCachesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefixBlocksStored(_message.Message):
    __slots__ = ("parent_hash", "block_hashes", "token_ids", "cache_salt")
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    parent_hash: bytes
    block_hashes: bytes
    token_ids: bytes
    cache_salt: str
    def __init__(self, parent_hash: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class PrefixBlocksRemoved(_message.Message):
    __slots__ = ("block_hashes",)
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    block_hashes: bytes
    def __init__(self, block_hashes: _Optional[bytes] = ...) -> None: ...

class PrefixCacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefixCacheEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: PrefixBlocksStored
    removed: PrefixBlocksRemoved
    cleared: PrefixCacheCleared
    def __init__(self, stored: _Optional[_Union[PrefixBlocksStored, _Mapping]] = ..., removed: _Optional[_Union[PrefixBlocksRemoved, _Mapping]] = ..., cleared: _Optional[_Union[PrefixCacheCleared, _Mapping]] = ...) -> None: ...

class WatchPrefixCachesResponse(_message.Message):
    __slots__ = ("group", "sequence_number", "events")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    group: int
    sequence_number: int
    events: _containers.RepeatedCompositeFieldContainer[PrefixCacheEvent]
    def __init__(self, group: _Optional[int] = ..., sequence_number: _Optional[int] = ..., events: _Optional[_Iterable[_Union[PrefixCacheEvent, _Mapping]]] = ...) -> None: ...

class FlushPrefixCachesRequest(_message.Message):
    __slots__ = ("timeout_ns",)
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    timeout_ns: int
    def __init__(self, timeout_ns: _Optional[int] = ...) -> None: ...

class FlushPrefixCachesResponse(_message.Message):
    __slots__ = ("num_live",)
    NUM_LIVE_FIELD_NUMBER: _ClassVar[int]
    num_live: int
    def __init__(self, num_live: _Optional[int] = ...) -> None: ...
