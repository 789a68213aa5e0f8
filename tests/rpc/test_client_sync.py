"""StepwireClient against a scripted server."""

import socket
import threading

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import (
    Cancelled,
    ChatMessage,
    Completion,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    FinalOutput,
    FinishReason,
    GenerationRequest,
    Internal,
    InvalidRequest,
    ResourceExhausted,
    StepwireClient,
    StreamNotFinished,
    Timings,
    Unavailable,
    Usage,
    WorkerState,
)

from tests.rpc.fake_generation_service import FakeGenerationService

DELTAS = [
    Delta(text="The ", token_ids=(11,)),
    Delta(text="", token_ids=(12,)),
    Delta(text="capital", token_ids=(13,)),
]
FINAL = FinalOutput(
    finish_reason=FinishReason.STOP,
    matched_stop=2,
    usage=Usage(num_prompt_tokens=5, num_output_tokens=3, num_cached_tokens=4),
    timings=Timings(queue_seconds=0.5, first_token_seconds=1.0, total_seconds=2.25),
)


@pytest.fixture
def client(fake_address: str) -> StepwireClient:
    return StepwireClient(fake_address)


def test_a_stream_yields_deltas_and_then_tells_the_end(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    with client, client.generate("Hi", request_id="r1", temperature=0.0, max_tokens=3) as stream:
        with pytest.raises(StreamNotFinished):
            _ = stream.final
        assert list(stream) == DELTAS
        assert stream.final == FINAL
        assert stream.text() == "The capital"
    assert fake_service.requests == [
        service_pb.GenerateRequest(
            request_id="r1",
            text="Hi",
            sampling=types_pb.SamplingParams(temperature=0.0),
            stop=types_pb.StopParams(max_tokens=3),
            output=types_pb.OutputParams(),
        )
    ]


def test_complete_joins_everything(client: StepwireClient) -> None:
    with client:
        assert client.complete([1, 2], request_id="r1") == Completion(
            request_id="r1",
            text="The capital",
            token_ids=(11, 12, 13),
            logprobs=(),
            finish_reason=FINAL.finish_reason,
            matched_stop=FINAL.matched_stop,
            usage=FINAL.usage,
            timings=FINAL.timings,
        )


def test_ids_are_drawn_here_so_that_a_stream_can_be_aborted_at_once(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    with client, client.generate("Hi") as stream:
        client.abort(stream.request_id)
        stream.text()
    assert fake_service.aborted_ids == [fake_service.requests[0].request_id] == [stream.request_id]
    assert len(stream.request_id) == 32


def test_leaving_the_block_early_cancels(client: StepwireClient, fake_service: FakeGenerationService) -> None:
    fake_service.is_endless = True
    with client:
        with client.generate("Hi") as stream:
            assert next(stream) == DELTAS[0]
            assert not fake_service.has_left.is_set()
        assert fake_service.has_left.wait(timeout=10)
        with pytest.raises(Cancelled):
            stream.text()


def test_breaking_out_of_a_loop_cancels(client: StepwireClient, fake_service: FakeGenerationService) -> None:
    fake_service.is_endless = True
    with client:
        for delta in client.generate("Hi"):
            assert delta == DELTAS[0]
            break
        assert fake_service.has_left.wait(timeout=10)


def test_a_timeout_is_the_deadline_of_the_whole_call(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.is_endless = True
    with client:
        stream = client.generate("Hi", timeout_seconds=0.3)
        with pytest.raises(DeadlineExceeded) as caught:
            stream.text()
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert fake_service.has_left.wait(timeout=10)


def test_a_status_becomes_an_error_with_the_servers_message(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.error = (grpc.StatusCode.INVALID_ARGUMENT, "top_k is 999, but must be at most 320")
    with client:
        stream = client.generate("Hi", top_k=999)
        with pytest.raises(InvalidRequest, match=r"^top_k is 999, but must be at most 320$"):
            stream.text()
        for call in (client.model_info, client.server_state, lambda: client.abort("r1")):
            with pytest.raises(InvalidRequest):
                call()


def test_deltas_before_an_error_are_not_lost(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the stream was not read")
    with client, client.generate("Hi") as stream:
        assert [next(stream) for _ in DELTAS] == DELTAS
        for _ in range(2):  # the error stays
            with pytest.raises(ResourceExhausted):
                next(stream)


def test_a_stream_without_a_final_message_is_the_servers_fault(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.final = None
    with client, pytest.raises(Internal, match="request 'r1': the stream ended without a final message"):
        client.complete("Hi", request_id="r1")


def test_nobody_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening
        with (
            StepwireClient(f"127.0.0.1:{unused.getsockname()[1]}") as client,
            pytest.raises(ConnectionFailed) as caught,
        ):
            client.model_info(timeout_seconds=10)
    assert isinstance(caught.value, Unavailable)


def test_a_name_that_is_no_host() -> None:
    with StepwireClient("not a host") as client, pytest.raises(ConnectionFailed, match="not a host"):
        client.model_info(timeout_seconds=10)


def test_model_info_and_state(client: StepwireClient) -> None:
    with client:
        info, state = client.model_info(), client.server_state()
    assert (info.model_name, info.vocab_size, info.max_model_len) == ("tiny", 320, 512)
    assert (info.eos_token_ids, info.has_chat_template) == ((2, 7), True)
    assert (state.num_waiting, state.num_running, state.num_preempted) == (1, 2, 3)
    assert (state.num_blocks, state.num_free_blocks, state.num_cached_blocks) == (100, 40, 35)
    assert (state.num_prompt_tokens_total, state.num_cached_tokens_total) == (1000, 600)
    assert (state.num_output_tokens_total, state.num_finished_total) == (2000, 7)
    assert (state.num_preemptions_total, state.kv_cache_usage_ratio, state.uptime_seconds) == (
        8,
        0.25,
        3723.0,
    )
    assert state.workers[0] == WorkerState(
        address="127.0.0.1:50061",
        is_serving=True,
        reason="",
        worker_epoch=9,
        device="cpu",
        attention_backend="torch",
        num_steps_in_flight=2,
        num_steps=1234,
        num_waiting=1,
        num_running=2,
        num_preempted=3,
        num_blocks=100,
        num_free_blocks=40,
        num_cached_blocks=35,
        kv_cache_usage_ratio=0.25,
        num_epochs_lost=4,
        device_idle_ratio=0.125,
        decode_seconds=0.004,
        round_trip_seconds=0.0005,
    )
    assert (state.workers[1].is_serving, state.workers[1].reason) == (False, "connection refused")


def test_tokenize_and_detokenize(client: StepwireClient) -> None:
    with client:
        tokenized = client.tokenize("ab")
        assert (tokenized.token_ids, tokenized.text) == ((97, 98), "ab")
        assert client.tokenize([ChatMessage(role="user", content="a")]).text == "user:a"
        assert client.detokenize([124, 98]) == "|b"
        assert client.detokenize([124, 98], skip_special_tokens=True) == "b"


def test_many_requests_share_one_stream(client: StepwireClient, fake_service: FakeGenerationService) -> None:
    prompts = ["a", "bad", "c", "d", "e"]
    requests = (GenerationRequest.of(prompt, request_id=f"{prompt}-id") for prompt in prompts)
    with client, client.generate_many(requests, max_concurrent=2) as stream:
        events = list(stream)
    by_id = {
        f"{prompt}-id": [event for owner, event in events if owner == f"{prompt}-id"] for prompt in prompts
    }
    (error,) = by_id.pop("bad-id")
    assert isinstance(error, InvalidRequest)
    assert error.message == "text is 'bad', but must be good"
    assert by_id == {f"{prompt}-id": [*DELTAS, FINAL] for prompt in ("a", "c", "d", "e")}
    assert [request.text for request in fake_service.requests] == prompts


def test_many_requests_are_cancelled_together(
    client: StepwireClient, fake_service: FakeGenerationService
) -> None:
    threads_before = set(threading.enumerate())
    requests = [GenerationRequest.of("a") for _ in range(3)]
    with client:
        with client.generate_many(requests, max_concurrent=1) as stream:
            assert next(stream)[1] == DELTAS[0]
            started = set(threading.enumerate()) - threads_before
        assert fake_service.has_left.wait(timeout=10)
    for thread in started:
        if "consume_request_iterator" in thread.name:
            thread.join(timeout=10)
            assert not thread.is_alive()


def test_a_broken_bulk_stream_raises(client: StepwireClient, fake_service: FakeGenerationService) -> None:
    fake_service.error = (grpc.StatusCode.UNAVAILABLE, "the server drains")
    with (
        client,
        client.generate_many([GenerationRequest.of("a")]) as stream,
        pytest.raises(Unavailable, match=r"^the server drains$"),
    ):
        next(stream)


def test_an_empty_bulk_ends_at_once(client: StepwireClient) -> None:
    with client, client.generate_many([]) as stream:
        assert list(stream) == []


def test_messages_above_4_mib_pass_and_above_the_limit_are_refused(
    fake_address: str, fake_service: FakeGenerationService
) -> None:
    fake_service.deltas = [types_pb.OutputDelta(text="x" * (5 * 2**20), token_ids=[1])]
    with StepwireClient(fake_address) as client:
        assert len(client.complete("Hi").text) == 5 * 2**20
    with (
        StepwireClient(fake_address, max_message_bytes=2**20) as client,
        pytest.raises(ResourceExhausted, match="larger than max"),
    ):
        client.complete("Hi")
