"""What commands say of flags that cannot be: the flag as it was typed, in one line on stderr."""

from pathlib import Path

import grpc
import pytest
from stepwire.v1 import types_pb2 as types_pb
from stepwire_cli.chat import HELP_LINE
from stepwire_cli.exits import ShownText, describe
from stepwire_cli.main import app
from stepwire_cli.server_flags import ServerFlags
from stepwire_client import ConnectionFailed, DeadlineExceeded, InvalidRequest, PermissionDenied
from typer.testing import CliRunner

from tests.rpc.fake_generation_service import FakeGenerationService


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--address nonsense", "--address is 'nonsense', but must be HOST:PORT"),
        ("--address h:0", "--address is 'h:0', but must be HOST:PORT"),
        ("--address h:65536", "--address is 'h:65536', but must be HOST:PORT"),
        ("--address ::1:50051", "--address is '::1:50051', but must be HOST:PORT"),
        ("--seed -4", "--seed is -4, but must be 0 to 18446744073709551615"),
        (
            "--seed 18446744073709551616",
            "--seed is 18446744073709551616, but must be 0 to 18446744073709551615",
        ),
        ("--logprobs 1", "--logprobs is 1, but only --json shows them"),
        ("--tls-key k.pem", "--tls-cert and --tls-key must be given together"),
        (
            "--tls-ca nofile.pem",
            "--tls-ca is 'nofile.pem', but must be a file that can be read (No such file or directory)",
        ),
        ("--tls-ca JUNK", "--tls-ca is 'JUNK', but must hold PEM certificates"),
        (
            "--timeout-seconds 1e10",
            "--timeout-seconds is 10000000000.0, but must be at most 1e+09",
        ),
    ],
)
def test_a_flag_is_named_as_it_was_typed(
    flags: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("JUNK").write_text("no certificate")
    result = CliRunner().invoke(app, ["generate", "Hi", "--raw", *flags.split()])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {line}\n")


def test_an_ipv6_address_stands_in_brackets() -> None:
    ServerFlags(address="[::1]:1").client().close()


def test_a_missing_token_is_told_with_the_flag() -> None:
    asked = "this server asks for a token: send the metadata authorization: Bearer TOKEN"
    told = "this server asks for a token: --token, or the variable STEPWIRE_TOKEN"
    assert describe(PermissionDenied(asked, grpc.StatusCode.UNAUTHENTICATED), "h:1") == told
    wrong = PermissionDenied("the token is not one of this server's", grpc.StatusCode.UNAUTHENTICATED)
    assert describe(wrong, "h:1") == "the token is not one of this server's"


def test_a_deadline_is_told_where_the_user_set_it() -> None:
    late = DeadlineExceeded("Deadline Exceeded")
    assert describe(late, "h:1") == "Deadline Exceeded"
    told = "not done within --timeout-seconds 2.5 (Deadline Exceeded)"
    assert describe(late, "h:1", timeout_seconds=2.5) == told


def test_only_what_a_message_is_about_becomes_a_flag() -> None:
    assert describe(InvalidRequest("ca_file is 'ca_file is'"), "h:1") == "--tls-ca is 'ca_file is'"
    assert describe(InvalidRequest("prompt is 'ca_file is'"), "h:1") == "prompt is 'ca_file is'"
    assert describe(ConnectionFailed("ca_file is"), "h:1").startswith("no server answers at h:1;")


@pytest.mark.parametrize(
    ("parts", "printed"),
    [([], ""), (["a", ""], "a\n"), (["a\n"], "a\n"), (["a\n", ""], "a\n"), (["", "b"], "b\n")],
)
def test_a_line_begins_only_where_text_was_shown(
    parts: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ShownText()
    for part in parts:
        shown.show(part)
    shown.end_line()
    shown.end_line()
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("command", [["generate", "Hi", "--raw"], ["chat"]])
@pytest.mark.parametrize(("text", "told"), [("Hm", "Hm\nerror: "), ("", "error: ")])
def test_an_error_after_text_begins_a_line(
    fake_address: str, fake_service: FakeGenerationService, command: list[str], *, text: str, told: str
) -> None:
    fake_service.deltas, fake_service.final = [types_pb.OutputDelta(text=text, token_ids=[1])], None
    result = CliRunner().invoke(app, [*command, "--address", fake_address], input="Hi\n")
    answer = result.output.rpartition(HELP_LINE + "\n")[2]  # only chat has a greeting
    assert answer.startswith(told)
