"""The engine's readiness and counts, as front ends and people are told them."""

from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.v1 import generation_service_pb2 as public_pb

from scheduler_svc.core.plan import CoreState
from scheduler_svc.engine.convert_frontend import info_to_pb, state_to_pb
from scheduler_svc.engine.values import EngineInfo, EngineState, GroupInfo, WorkerStatus

UP = GroupInfo(address="a:1", is_serving=True, reason="")
DOWN = GroupInfo(address="b:1", is_serving=False, reason="gone")


def _counts(first: int) -> CoreState:
    names = list(CoreState.__dataclass_fields__)
    return CoreState(**{name: first + index for index, name in enumerate(names)} | {"num_blocks": 100})


def test_info_is_told() -> None:
    info = EngineInfo(
        is_ready=True,
        reason="r",
        max_model_len=1,
        max_pool_tokens=2,
        groups=(UP, DOWN),
        num_unknown_groups=1,
    )
    assert info_to_pb(info).info == pb.EngineInfo(
        protocol_version=1,
        is_ready=True,
        reason="r",
        max_model_len=1,
        max_pool_tokens=2,
        groups=[
            pb.WorkerGroupInfo(address="a:1", is_serving=True),
            pb.WorkerGroupInfo(address="b:1", reason="gone"),
        ],
        num_unknown_groups=1,
    )


def test_the_state_of_each_group_is_told_and_all_counts_together() -> None:
    up = WorkerStatus(
        info=UP,
        facts=None,
        core=_counts(1),
        num_steps_in_flight=2,
        num_steps=7,
        num_epochs_lost=3,
        device_idle_ratio=0.25,
        decode_time_ns=4_000_000,
        round_trip_time_ns=600_000,
        max_num_seqs=8,
    )
    down = WorkerStatus(
        info=DOWN, facts=None, core=None, num_steps_in_flight=0, num_steps=0, num_epochs_lost=0
    )
    state = EngineState(core=_counts(10), workers=(up, down), uptime_ns=3 * 10**9)
    told = state_to_pb(state).state
    assert told.workers[0] == public_pb.WorkerState(
        address="a:1",
        is_serving=True,
        num_waiting=1,
        num_running=2,
        num_preempted=3,
        num_blocks=100,
        num_free_blocks=5,
        num_cached_blocks=6,
        kv_cache_usage_ratio=0.89,
        num_steps_in_flight=2,
        num_steps=7,
        num_epochs_lost=3,
        device_idle_ratio=0.25,
        decode_time_ns=4_000_000,
        round_trip_time_ns=600_000,
        max_num_seqs=8,
    )
    assert told.workers[1] == public_pb.WorkerState(address="b:1", reason="gone")
    assert (told.num_waiting, told.num_running, told.num_preemptions_total) == (10, 11, 21)
    assert (told.kv_cache_usage_ratio, told.uptime.seconds) == (0.71, 3)
