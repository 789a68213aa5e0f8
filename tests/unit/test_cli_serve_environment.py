"""What ``stepwire serve`` takes from the environment, and looks at before it starts anything."""

import socket

import pytest
import typer
from stepwire_cli.flags import command_of
from stepwire_cli.main import app
from stepwire_cli.serve_flags import ServeFlags
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("STEPWIRE_SCHEDULER_HOST", "192.0.2.1", "--host is '192.0.2.1'"),
        ("STEPWIRE_SCHEDULER_PORT", "70000", "--port is 70000"),
        ("STEPWIRE_SCHEDULER_METRICS_PORT", "70000", "--metrics-port is 70000"),
    ],
)
def test_serve_looks_at_the_addresses_that_the_environment_names(
    variable: str, value: str, part: str
) -> None:
    result = CliRunner().invoke(
        app, ["serve", "--model", "m"], env={"STEPWIRE_SCHEDULER_PORT": "0", variable: value}
    )
    assert result.exit_code == 2
    assert part in result.stderr


@pytest.mark.parametrize("flag", ["--metrics-port", "--worker-port"])
def test_a_port_that_is_taken_is_refused_before_anything_starts(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--model", "m", "--port", "0", flag, str(port)])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {flag} is '127.0.0.1:{port}', but must be an address that can be listened on "
        "(Address already in use)\n"
    )


def test_what_serve_always_passes_on_can_come_from_the_environment() -> None:
    taken: list[ServeFlags] = []
    serve = typer.Typer()
    serve.command()(command_of(ServeFlags, taken.append))
    names = {
        "STEPWIRE_SCHEDULER_HOST": "::1",
        "STEPWIRE_SCHEDULER_PORT": "7",
        "STEPWIRE_SCHEDULER_DRAIN_SECONDS": "8",
        "STEPWIRE_WORKER_PORT": "9",
        "STEPWIRE_WORKER_DEVICE": "cuda",
    }
    assert CliRunner().invoke(serve, ["--model", "m"], env=names).exit_code == 0
    assert taken == [
        ServeFlags(model="m", host="::1", port=7, drain_seconds=8.0, worker_port=9, device="cuda")
    ]
