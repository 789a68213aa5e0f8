from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineHello(_message.Message):
    __slots__ = ("protocol_version", "fencing_number", "config_hash", "vocab_size", "tokenizer_hash")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FENCING_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    fencing_number: int
    config_hash: str
    vocab_size: int
    tokenizer_hash: str
    def __init__(self, protocol_version: _Optional[int] = ..., fencing_number: _Optional[int] = ..., config_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("protocol_version", "worker_epoch", "config_hash", "vocab_size", "tokenizer_hash", "block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_steps_in_flight", "device", "dtype", "attention_backend", "tp_size", "versions", "max_lease_steps")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASE_STEPS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker_epoch: int
    config_hash: str
    vocab_size: int
    tokenizer_hash: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_steps_in_flight: int
    device: str
    dtype: str
    attention_backend: str
    tp_size: int
    versions: _containers.ScalarMap[str, str]
    max_lease_steps: int
    def __init__(self, protocol_version: _Optional[int] = ..., worker_epoch: _Optional[int] = ..., config_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_steps_in_flight: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., attention_backend: _Optional[str] = ..., tp_size: _Optional[int] = ..., versions: _Optional[_Mapping[str, str]] = ..., max_lease_steps: _Optional[int] = ...) -> None: ...

class LaneSampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_token_ids", "bias_values", "stop_token_ids", "min_tokens", "num_logprobs_plus_one")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_token_ids: bytes
    bias_values: bytes
    stop_token_ids: bytes
    min_tokens: int
    num_logprobs_plus_one: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_token_ids: _Optional[bytes] = ..., bias_values: _Optional[bytes] = ..., stop_token_ids: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., num_logprobs_plus_one: _Optional[int] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("lane", "incarnation", "token_ids", "num_prompt_tokens", "num_computed_tokens", "block_ids", "max_total_tokens", "sampling")
    LANE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    lane: int
    incarnation: int
    token_ids: bytes
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: bytes
    max_total_tokens: int
    sampling: LaneSampling
    def __init__(self, lane: _Optional[int] = ..., incarnation: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., max_total_tokens: _Optional[int] = ..., sampling: _Optional[_Union[LaneSampling, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step_id", "released_lanes", "admissions", "append_lanes", "append_block_ids", "row_lanes", "row_num_tokens", "row_samples", "num_steps", "take_over")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASED_LANES_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    APPEND_LANES_FIELD_NUMBER: _ClassVar[int]
    APPEND_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_LANES_FIELD_NUMBER: _ClassVar[int]
    ROW_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROW_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    released_lanes: bytes
    admissions: _containers.RepeatedCompositeFieldContainer[Admission]
    append_lanes: bytes
    append_block_ids: bytes
    row_lanes: bytes
    row_num_tokens: bytes
    row_samples: bytes
    num_steps: int
    take_over: bool
    def __init__(self, step_id: _Optional[int] = ..., released_lanes: _Optional[bytes] = ..., admissions: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., append_lanes: _Optional[bytes] = ..., append_block_ids: _Optional[bytes] = ..., row_lanes: _Optional[bytes] = ..., row_num_tokens: _Optional[bytes] = ..., row_samples: _Optional[bytes] = ..., num_steps: _Optional[int] = ..., take_over: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class RunStepsRequest(_message.Message):
    __slots__ = ("hello", "step", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: EngineHello
    step: Step
    heartbeat: Heartbeat
    def __init__(self, hello: _Optional[_Union[EngineHello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step_id", "token_ids", "logprob_counts", "logprob_token_ids", "logprob_values", "step_time_ns", "iteration", "num_iterations", "is_last", "busy_time_ns", "idle_time_ns", "held_time_ns")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_VALUES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    BUSY_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    HELD_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    token_ids: bytes
    logprob_counts: bytes
    logprob_token_ids: bytes
    logprob_values: bytes
    step_time_ns: int
    iteration: int
    num_iterations: int
    is_last: bool
    busy_time_ns: int
    idle_time_ns: int
    held_time_ns: int
    def __init__(self, step_id: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprob_counts: _Optional[bytes] = ..., logprob_token_ids: _Optional[bytes] = ..., logprob_values: _Optional[bytes] = ..., step_time_ns: _Optional[int] = ..., iteration: _Optional[int] = ..., num_iterations: _Optional[int] = ..., is_last: _Optional[bool] = ..., busy_time_ns: _Optional[int] = ..., idle_time_ns: _Optional[int] = ..., held_time_ns: _Optional[int] = ...) -> None: ...

class RunStepsResponse(_message.Message):
    __slots__ = ("hello", "result", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    result: StepResult
    heartbeat: Heartbeat
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class GetWorkerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetWorkerInfoResponse(_message.Message):
    __slots__ = ("hello", "num_lanes_held", "num_steps")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    NUM_LANES_HELD_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    num_lanes_held: int
    num_steps: int
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., num_lanes_held: _Optional[int] = ..., num_steps: _Optional[int] = ...) -> None: ...
