"""``stepwire chat`` against a scripted server: its input is scripted too."""

import os
import signal
import subprocess
import sys

import grpc
from stepwire.v1 import types_pb2 as types_pb
from stepwire_cli.main import app
from typer.testing import CliRunner

from tests.rpc.fake_generation_service import MODEL_INFO, FakeGenerationService


def turns(service: FakeGenerationService) -> list[list[tuple[str, str]]]:
    """Return the conversation that each request carried."""
    return [[(item.role, item.content) for item in request.chat.messages] for request in service.requests]


def test_each_turn_carries_the_conversation_so_far(
    fake_address: str, fake_service: FakeGenerationService
) -> None:
    script = "Hi\n\n  and then? \n/reset\nagain\n/nonsense\n/quit\nnever sent\n"
    arguments = ["chat", "--system", "Be brief.", "--temperature", "0", "--address", fake_address]
    result = CliRunner().invoke(app, arguments, input=script)
    assert (result.exit_code, result.stdout) == (0, "The capital\n" * 3)
    system = ("system", "Be brief.")
    assert turns(fake_service) == [
        [system, ("user", "Hi")],
        [system, ("user", "Hi"), ("assistant", "The capital"), ("user", "and then?")],
        [system, ("user", "again")],
    ]
    assert fake_service.requests[0].sampling == types_pb.SamplingParams(temperature=0.0)
    help_line = "/reset forgets the conversation, /quit leaves, Ctrl-C stops an answer."
    assert result.stderr.splitlines() == [
        f"tiny at {fake_address}. {help_line}",
        "The conversation starts anew.",
        f"unknown command /nonsense. {help_line}",
    ]


def test_the_end_of_the_input_leaves(fake_address: str) -> None:
    result = CliRunner().invoke(app, ["chat", "--address", fake_address], input="Hi")
    assert (result.exit_code, result.stdout) == (0, "The capital\n")


def test_a_refused_turn_is_told_and_forgotten(fake_address: str, fake_service: FakeGenerationService) -> None:
    # GetModelInfo must pass, so the second Generate alone is refused.
    fake_service.errors_of_generate = [None, (grpc.StatusCode.INVALID_ARGUMENT, "prompt is too long"), None]
    result = CliRunner().invoke(app, ["chat", "--address", fake_address], input="a\nb\nc\n")
    assert result.exit_code == 0
    assert "error: prompt is too long" in result.stderr.splitlines()
    assert turns(fake_service)[2] == [("user", "a"), ("assistant", "The capital"), ("user", "c")]


def test_a_model_without_template_cannot_chat(fake_address: str, fake_service: FakeGenerationService) -> None:
    fake_service.model_info = type(MODEL_INFO)(model_name="base")
    result = CliRunner().invoke(app, ["chat", "--address", fake_address], input="Hi\n")
    assert result.exit_code == 1
    assert result.stderr == "error: base has no chat template; try: stepwire generate --raw\n"


def test_ctrl_c_stops_the_present_answer_only(fake_address: str, fake_service: FakeGenerationService) -> None:
    fake_service.is_endless = True
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "stepwire_cli", "chat", "--address", fake_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        assert process.stdout.read(len(b"The capital")) == b"The capital"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b" [stopped]\n"
        assert fake_service.has_left.wait(timeout=10)
        fake_service.is_endless = False
        rest, _ = process.communicate(b"more\n/quit\n", timeout=30)
    assert (process.returncode, rest) == (0, b"The capital\n")
    assert turns(fake_service)[1] == [("user", "Hi"), ("assistant", "The capital"), ("user", "more")]
