"""``stepwire generate`` and ``stepwire state`` against a scripted server."""

import json
import socket

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_cli.main import app
from typer.testing import CliRunner, Result

from tests.rpc.fake_generation_service import MODEL_INFO, FakeGenerationService


def stepwire(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def without_template() -> service_pb.GetModelInfoResponse:
    info = service_pb.GetModelInfoResponse()
    info.CopyFrom(MODEL_INFO)
    info.has_chat_template = False
    return info


def test_the_text_goes_to_stdout(fake_address: str, fake_service: FakeGenerationService) -> None:
    result = stepwire("generate", "Hi", "--temperature", "0", "--stop", "x", "--address", fake_address)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "The capital\n", "")
    (request,) = fake_service.requests
    assert list(request.chat.messages) == [types_pb.ChatMessage(role="user", content="Hi")]
    assert request.sampling == types_pb.SamplingParams(temperature=0.0)
    assert request.stop == types_pb.StopParams(stop_strings=["x"])


def test_a_model_without_template_gets_the_prompt_as_it_is(
    fake_address: str, fake_service: FakeGenerationService
) -> None:
    fake_service.model_info = without_template()
    assert stepwire("generate", "Hi", "--address", fake_address).exit_code == 0
    assert fake_service.requests[0].text == "Hi"
    result = stepwire("generate", "Hi", "--system", "Be brief.", "--address", fake_address)
    assert result.exit_code == 2
    assert result.stderr == "error: --system is 'Be brief.', but needs the chat template: --chat\n"


def test_raw_and_chat_are_taken_at_their_word(fake_address: str, fake_service: FakeGenerationService) -> None:
    assert stepwire("generate", "Hi", "--raw", "--address", fake_address).exit_code == 0
    assert fake_service.requests[0].text == "Hi"
    fake_service.model_info = without_template()
    result = stepwire("generate", "Hi", "--chat", "--system", "Be brief.", "--address", fake_address)
    assert result.exit_code == 0
    assert [item.role for item in fake_service.requests[1].chat.messages] == ["system", "user"]


def test_the_prompt_may_come_from_stdin(fake_address: str, fake_service: FakeGenerationService) -> None:
    result = stepwire("generate", "-", "--raw", "--address", fake_address, stdin="two\nlines\n")
    assert result.exit_code == 0
    assert fake_service.requests[0].text == "two\nlines\n"


def test_json_prints_the_whole_record(fake_address: str, fake_service: FakeGenerationService) -> None:
    logprob = types_pb.TokenLogprob(token_id=11, logprob=-0.5)
    position = types_pb.PositionLogprobs(sampled=logprob, top=[logprob])
    fake_service.deltas = [types_pb.OutputDelta(text="é", token_ids=[11], logprobs=[position])]
    result = stepwire(
        "generate", "Hi", "--json", "--logprobs", "1", "--request-id", "r1", "--address", fake_address
    )
    assert result.exit_code == 0
    told = {"token_id": 11, "logprob": -0.5}
    assert json.loads(result.stdout) == {
        "request_id": "r1",
        "text": "é",
        "token_ids": [11],
        "logprobs": [{"sampled": told, "top": [told]}],
        "finish_reason": "stop",
        "matched_stop": 2,
        "usage": {"num_prompt_tokens": 5, "num_output_tokens": 3, "num_cached_tokens": 4},
        "timings": {"queue_seconds": 0.5, "first_token_seconds": 1.0, "total_seconds": 2.25},
    }
    assert result.stdout.count("\n") == 1
    assert fake_service.requests[0].output.num_logprobs == 1


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 2),
        (grpc.StatusCode.UNAVAILABLE, 3),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 4),
        (grpc.StatusCode.INTERNAL, 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    fake_address: str, fake_service: FakeGenerationService, code: grpc.StatusCode, exit_code: int
) -> None:
    fake_service.error = (code, "top_k is 999, but must be at most 320")
    result = stepwire("generate", "Hi", "--raw", "--top-k", "999", "--address", fake_address)
    assert result.exit_code == exit_code
    assert result.stderr == "error: top_k is 999, but must be at most 320\n"


def test_a_deadline(fake_address: str, fake_service: FakeGenerationService) -> None:
    fake_service.is_endless = True
    result = stepwire("generate", "Hi", "--raw", "--timeout-seconds", "2", "--address", fake_address)
    assert (result.exit_code, result.stdout) == (5, "The capital\n")
    assert result.stderr.startswith("error: not done within --timeout-seconds 2 (")


def test_an_aborted_generation_is_told(fake_address: str, fake_service: FakeGenerationService) -> None:
    fake_service.final = types_pb.FinalOutput(finish_reason=types_pb.FINISH_REASON_ABORT)
    result = stepwire("generate", "Hi", "--raw", "--address", fake_address)
    assert (result.exit_code, result.stdout) == (1, "The capital\n")
    assert result.stderr == "error: the generation ended early: abort\n"


@pytest.mark.parametrize("command", [["generate", "Hi"], ["chat"], ["state", "--once"], ["bench"]])
def test_no_server_is_told_in_one_line_with_the_way_to_start_one(command: list[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = stepwire(*command, "--address", address)
    assert result.exit_code == 3
    assert result.stderr == f"error: no server answers at {address}; start one: stepwire serve --model DIR\n"


def test_state_once(fake_address: str) -> None:
    result = stepwire("state", "--once", "--address", fake_address)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "up 1:02:03"
    assert lines[1] == "requests 2 running, 1 waiting, 3 preempted, 7 finished"
    assert any("127.0.0.1:50061" in line and "serving" in line and "1,234" in line for line in lines)


def test_state_without_a_terminal_does_not_go_live(fake_address: str) -> None:
    result = stepwire("state", "--address", fake_address)
    assert (result.exit_code, result.stdout.count("up ")) == (0, 1)
