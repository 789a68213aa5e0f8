"""What the server tells of itself, in the messages of vllm.grpc.engine.VllmEngine.

All worker groups together are one rank. Knows nothing about requests, nor about where the values come
from.
"""

import json
from datetime import datetime

from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from stepwire.v1 import generation_service_pb2

from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.tokenizer import read_json_object
from scheduler_svc.frontend.values import EngineFacts

_SERVER_TYPE = "stepwire"
_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def write_health(facts: EngineFacts | None) -> pb.HealthCheckResponse:
    """Write whether requests can run now; None: the engine is gone."""
    if facts is None:
        return pb.HealthCheckResponse(healthy=False, message="the engine is gone")
    return pb.HealthCheckResponse(healthy=facts.is_ready, message=facts.reason)


def write_model_info(model: ServedModel, facts: EngineFacts | None) -> pb.GetModelInfoResponse:
    """Write which model is served, its limits, and how its folder says that it is sampled."""
    limits = model.limits(facts)
    config = read_json_object(model.folder / "config.json")
    generation = read_json_object(model.folder / "generation_config.json")
    defaults = {name: generation[name] for name in _SAMPLING_DEFAULTS if generation.get(name) is not None}
    return pb.GetModelInfoResponse(
        model_path=model.name,
        is_generation=True,
        max_context_length=limits.max_model_len,
        max_req_input_len=min(limits.max_prompt_tokens or limits.max_model_len, limits.max_model_len - 1),
        vocab_size=limits.vocab_size,
        served_model_name=model.name,
        # Not tokenizer_path: on the gateway's machine it might be another folder. It asks GetTokenizer.
        model_type=str(config.get("model_type", "")),
        architectures=[model.config.architecture],
        eos_token_ids=limits.eos_token_ids,
        pad_token_id=_token_id(config.get("pad_token_id")),
        bos_token_id=_token_id(config.get("bos_token_id")),
        default_sampling_params_json=json.dumps(defaults) if defaults else "",
    )


def write_server_info(
    state: generation_service_pb2.GetServerStateResponse, facts: EngineFacts | None
) -> pb.GetServerInfoResponse:
    """Write what the workers run with, and how busy they are."""
    first = state.workers[0] if state.workers else generation_service_pb2.WorkerState()
    return pb.GetServerInfoResponse(
        active_requests=_num_live(state),
        is_paused=facts is None or not facts.is_ready,
        uptime_seconds=state.uptime.ToNanoseconds() / 1e9,
        server_type=_SERVER_TYPE,
        data_parallel_size=1,
        kv_cache_dtype=first.dtype,
        block_size=first.block_size,
        attention_backend=first.attention_backend,
        model_dtype=first.dtype,
        max_num_seqs=_max_num_running(state),
    )


def write_loads(
    state: generation_service_pb2.GetServerStateResponse,
    *,
    tokens_per_second: float,
    now: datetime,
    version: str,
) -> pb.GetLoadsResponse:
    """Write queues, KV cache and throughput."""
    max_num_running = _max_num_running(state)
    load = pb.SchedulerLoad(
        num_running_reqs=state.num_running,
        num_waiting_reqs=state.num_waiting + state.num_preempted,
        num_total_reqs=_num_live(state),
        num_used_tokens=sum(_num_held_tokens(worker) for worker in state.workers),
        max_total_num_tokens=sum(worker.num_blocks * worker.block_size for worker in state.workers),
        token_usage=state.kv_cache_usage_ratio,
        gen_throughput=tokens_per_second,
        cache_hit_rate=state.num_cached_tokens_total / max(state.num_prompt_tokens_total, 1),
        utilization=state.num_running / max(max_num_running, 1),
        max_running_requests=max_num_running,
    )
    return pb.GetLoadsResponse(timestamp=now.isoformat(), version=version, dp_rank_count=1, loads=[load])


def _num_live(state: generation_service_pb2.GetServerStateResponse) -> int:
    return state.num_running + state.num_waiting + state.num_preempted


def _max_num_running(state: generation_service_pb2.GetServerStateResponse) -> int:
    return sum(worker.max_num_seqs for worker in state.workers)


def _num_held_tokens(worker: generation_service_pb2.WorkerState) -> int:
    return (worker.num_blocks - worker.num_free_blocks - worker.num_cached_blocks) * worker.block_size


def _token_id(value: object) -> int:
    return value if isinstance(value, int) else 0
