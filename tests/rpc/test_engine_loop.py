"""The engine with a stand-in worker and test front ends: who gets which tokens, and how requests end."""

import grpc
import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from tests.rpc.engine_bench import attached, new_request, num_running, running_engine, wait_until
from tests.stand_in_lanes import StandInLimits, expected_tokens
from tests.stand_in_worker import StandInWorker


@pytest.mark.parametrize("max_steps_in_flight", [1, 2, 3, 4])
async def test_every_request_gets_its_own_tokens(worker: StandInWorker, max_steps_in_flight: int) -> None:
    worker.step_seconds = 0.001
    async with (
        running_engine(worker.address, max_steps_in_flight=max_steps_in_flight) as engine,
        attached(engine) as probe,
    ):
        await probe.wait_ready()
        for handle in range(1, 21):
            await probe.submit(new_request(handle, handle, seed=handle, max_tokens=7 + handle))
        await probe.wait_ended(*range(1, 21))
        for handle in range(1, 21):
            assert probe.tokens[handle] == expected_tokens(handle, handle, 7 + handle)
            assert probe.ended[handle].reason == pb.REQUEST_END_LENGTH
            assert probe.ended[handle].num_output_tokens == 7 + handle
            assert probe.started[handle][0] == 0
            assert probe.ended[handle].queue_time_ns == probe.started[handle][1] > 0
        assert worker.max_num_in_flight == max_steps_in_flight
        await engine.wait_idle()
        assert worker.num_lanes_held == 0


async def test_preempted_requests_get_the_same_tokens() -> None:
    # 8 requests of up to 40 tokens want 80 blocks; there are 16.
    worker = StandInWorker(StandInLimits(num_blocks=16))
    await worker.start()
    async with running_engine(worker.address, max_steps_in_flight=3) as engine, attached(engine) as probe:
        await probe.wait_ready()
        for handle in range(1, 9):
            await probe.submit(new_request(handle, 5, seed=handle, max_tokens=35))
        await probe.wait_ended(*range(1, 9))
        for handle in range(1, 9):
            assert probe.tokens[handle] == expected_tokens(handle, 5, 35)
        assert (await engine.state()).num_preemptions_total > 0
    await worker.stop()
    assert worker.faults == []


async def test_a_stop_token_ends_a_request_and_is_named(worker: StandInWorker) -> None:
    tokens = expected_tokens(11, 3, 10)
    stop_token_ids = np.array([tokens[4]], "<i4").tobytes()
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=11, sampling={"stop_token_ids": stop_token_ids}))
        await probe.wait_ended(1)
        assert probe.tokens[1] == tokens[:5]
        assert probe.ended[1].reason == pb.REQUEST_END_STOP
        assert probe.ended[1].matched_stop_token_id == tokens[4]
        assert probe.ended[1].num_output_tokens == 5


async def test_without_max_tokens_a_request_runs_to_the_end_of_the_context(worker: StandInWorker) -> None:
    async with running_engine(worker.address, max_model_len=20) as engine, attached(engine) as probe:
        await probe.wait_ready()
        assert (probe.infos[-1].max_model_len, probe.infos[-1].max_pool_tokens) == (20, 64 * 4)
        await probe.submit(new_request(1, 3, seed=1))
        await probe.wait_ended(1)
        assert len(probe.tokens[1]) == 17
        assert not probe.ended[1].HasField("matched_stop_token_id")


async def test_a_second_request_with_the_same_prompt_is_served_from_the_cache(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        for handle in (1, 2):
            await probe.submit(new_request(handle, list(range(13)), seed=5, max_tokens=4))
            await probe.wait_ended(handle)
            assert probe.tokens[handle] == expected_tokens(5, 13, 4)
        assert (probe.ended[1].num_cached_tokens, probe.ended[2].num_cached_tokens) == (0, 12)
        assert probe.started[2][0] == 12
        assert (await engine.state()).num_cached_tokens_total == 12


async def test_logprobs_go_with_their_tokens(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe, attached(engine) as other:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=2, sampling={"num_logprobs_plus_one": 3}))
        await other.submit(new_request(1, 3, seed=2, max_tokens=2, request_id="other"))
        await probe.wait_ended(1)
        await other.wait_ended(1)
        tokens = expected_tokens(1, 3, 2)
        outputs = [one for one in probe.outputs if one.token_ids]
        assert [np.frombuffer(one.logprob_counts, "<i4").tolist() for one in outputs] == [[3], [3]]
        for one, token_id in zip(outputs, tokens, strict=True):
            entries = [(token_id + rank) % 1000 for rank in range(3)]
            assert np.frombuffer(one.logprob_token_ids, "<i4").tolist() == entries
            assert np.frombuffer(one.logprob_values, "<f4").tolist() == [-0.5, -1.0, -1.5]
        assert all(one.logprob_counts == b"" for one in other.outputs)


async def test_requests_without_a_seed_get_different_ones(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, max_tokens=8))
        await probe.submit(new_request(2, 3, max_tokens=8))
        await probe.wait_ended(1, 2)
        assert probe.tokens[1] != probe.tokens[2]


async def test_a_queue_that_is_full_and_an_id_in_use_are_refused(worker: StandInWorker) -> None:
    async with running_engine(worker.address, max_num_waiting=2) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        # The first step's worth runs, then the credits are used up and all that comes waits.
        await probe.submit(*(new_request(handle, 2, seed=handle, max_tokens=3) for handle in (1, 2)))
        await wait_until(lambda: num_running(engine) == 2)
        await probe.submit(*(new_request(handle, 2, seed=handle, max_tokens=3) for handle in (9, 10, 11)))
        await probe.wait_ended(11)
        assert probe.ended[11].reason == pb.REQUEST_END_QUEUE_FULL
        assert "max_num_waiting" in probe.ended[11].message
        await probe.submit(new_request(12, 2, seed=12, request_id="request-1"))
        await probe.wait_ended(12)
        assert probe.ended[12].reason == pb.REQUEST_END_DUPLICATE_ID
        assert "request-1" in probe.ended[12].message
        worker.may_run.set()
        await probe.wait_ended(1, 2, 9, 10)
        assert [probe.tokens[handle] for handle in (1, 10)] == [
            expected_tokens(1, 2, 3),
            expected_tokens(10, 2, 3),
        ]
        await engine.wait_idle()


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"),
    [([], 1, "prompt"), (64, 0, "64"), (60, 5, "max_tokens is 5")],
)
async def test_a_request_that_cannot_fit_is_refused(
    worker: StandInWorker, prompt: list[int] | int, max_tokens: int, words: str
) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, prompt, max_tokens=max_tokens))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_INVALID
        assert words in probe.ended[1].message
        await engine.wait_idle()


async def test_the_state_counts_what_there_is(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(*(new_request(handle, 4, seed=handle, max_tokens=4) for handle in range(1, 11)))
        await wait_until(lambda: num_running(engine) == 8)
        state = await engine.state()
        assert (state.num_running, state.num_waiting, state.num_preempted) == (8, 2, 0)
        assert state.num_blocks == 64
        held = 64 - state.num_free_blocks - state.num_cached_blocks
        assert held >= 8
        assert state.kv_cache_usage_ratio == held / 64
        assert state.uptime.ToNanoseconds() > 0
        assert state.workers[0].is_serving
        assert state.workers[0].address == worker.address
        assert (state.workers[0].device, state.workers[0].num_steps_in_flight) == ("stand-in", 2)
        worker.may_run.set()
        await probe.wait_ended(*range(1, 11))
        await engine.wait_idle()
        state = await engine.state()
        assert state.num_finished_total == 10
        assert (state.num_prompt_tokens_total, state.num_output_tokens_total) == (40, 40)
        assert state.kv_cache_usage_ratio == 0
        assert state.workers[0].num_steps == worker.num_steps


async def test_a_front_end_that_speaks_another_protocol_is_refused(worker: StandInWorker) -> None:
    async with (
        running_engine(worker.address) as engine,
        grpc.aio.insecure_channel(f"unix:{engine.socket_path}") as channel,
    ):
        attach = channel.stream_stream(
            "/stepwire.engine.v1.EngineService/Attach",
            request_serializer=pb.AttachRequest.SerializeToString,
            response_deserializer=pb.AttachResponse.FromString,
        )
        call = attach(iter([pb.AttachRequest(hello=pb.FrontendHello(protocol_version=7))]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "has version 7" in str(caught.value.details())
