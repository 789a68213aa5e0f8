"""``stepwire serve`` with scripted services in place of the real ones: start, death, restart and stop."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rpc.scripted_services import FAKE_SCHEDULER, FAKE_WORKER

StartServe = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_serve(tmp_path: Path) -> Iterator[StartServe]:
    """Return a function that starts ``stepwire serve`` with the worker in this mode."""
    for name, source in (("worker_svc", FAKE_WORKER), ("scheduler_svc", FAKE_SCHEDULER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "__main__.py").write_text(source)
    started: list[subprocess.Popen[str]] = []

    def start(mode: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-u", "-m", "stepwire_cli", "serve", "--model", str(tmp_path)]
        process = subprocess.Popen(
            [*command, "--port", "0", "--dtype", mode, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        if process.stdout is not None and process.stdout.closed:
            process.wait(60)
        else:
            process.communicate(timeout=60)


def read_until(process: "subprocess.Popen[str]", start: str) -> list[str]:
    """Read stdout up to the line that begins so; the test's time limit is the limit."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(start):
            return lines
    raise AssertionError(f"stdout ended without {start!r}: {lines}")


def log_of(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def test_start_up_lines_and_an_ordered_stop(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("ok", "--served-model-name", "given", "--drain-seconds", "7")
    lines = read_until(process, "Stepwire serves")
    assert lines[:2] == ["worker    | weights loaded", "worker    | worker listening on 127.0.0.1:4242"]
    match = re.fullmatch(r"scheduler \| scheduler listening on (127\.0\.0\.1:\d+)", lines[2])
    assert match is not None
    assert lines[3:] == [f"Stepwire serves tiny on {match[1]}"]

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stdout == "stopping: requests get up to 7 s to end, Ctrl-C again ends them now\n"
    assert stderr == 'worker    | a broken start\n{"process": "worker"}\n'
    worker_start, scheduler_start, _, *rest = log_of(tmp_path)
    assert worker_start == (f"worker --model {tmp_path} --host 127.0.0.1 --port 0 --device cpu --dtype ok")
    assert scheduler_start == (
        f"scheduler --model {tmp_path} --worker 127.0.0.1:4242 --served-model-name given "
        "--host 127.0.0.1 --port 0 --drain-seconds 7.0"
    )
    assert rest == [
        "scheduler ready",
        "scheduler SIGTERM",
        "scheduler ended",
        "worker SIGTERM",
        "worker ended",
    ]


def test_a_worker_that_cannot_start_ends_all(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("dies_early")
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (1, "worker    | weights loaded\n")
    assert stderr.splitlines() == [
        "worker    | a broken start",
        '{"process": "worker"}',
        "worker    | no such tensor",
        "error: the worker ended with exit code 3; all is stopped",
    ]
    assert len(log_of(tmp_path)) == 1  # no scheduler was started


def test_what_the_worker_refuses_has_the_exit_code_of_what_the_scheduler_refuses(
    start_serve: StartServe,
) -> None:
    process = start_serve("refuses")
    assert "error: the worker ended with exit code 2; all is stopped" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_what_the_scheduler_refuses_is_told_before_the_worker_starts(
    start_serve: StartServe, tmp_path: Path
) -> None:
    process = start_serve("ok", "--tenants-file", "none")
    assert process.communicate(timeout=60) == ("", "scheduler error: it has tenants\n")
    assert process.returncode == 1
    assert not (tmp_path / "log").exists()


def read_stderr_until(process: "subprocess.Popen[str]", part: str) -> str:
    """Read stderr up to the line that holds ``part`` and return it."""
    assert process.stderr is not None
    return next(line.rstrip("\n") for line in process.stderr if part in line)


def test_a_worker_that_dies_is_started_again_where_it_listened(
    start_serve: StartServe, tmp_path: Path
) -> None:
    process = start_serve("dies_once")
    read_until(process, "Stepwire serves")
    (tmp_path / "die").touch()
    assert read_stderr_until(process, "SIGKILL") == (
        "the worker was ended by SIGKILL; starting it again (restart 1 of 5 within a minute)"
    )
    read_until(process, "worker    | worker listening on 127.0.0.1:4242")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    starts = [line.split() for line in log_of(tmp_path) if line.startswith("worker --model")]
    assert [words[words.index("--port") + 1] for words in starts] == ["0", "4242"]
    # The scheduler was left alone.
    assert log_of(tmp_path)[-4:] == ["scheduler SIGTERM", "scheduler ended", "worker SIGTERM", "worker ended"]
    assert sum(line.startswith("scheduler --model") for line in log_of(tmp_path)) == 1


def test_a_worker_that_dies_again_and_again_is_given_up_without_a_drain(
    start_serve: StartServe, tmp_path: Path
) -> None:
    process = start_serve("dies_always", "--served-model-name", "drains", "--drain-seconds", "1000")
    read_until(process, "Stepwire serves")
    (tmp_path / "die").touch()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    reason = "the worker was ended by SIGKILL, after 5 restarts within a minute"
    assert stderr.splitlines()[-1] == f"error: {reason}; all is stopped"
    assert sum(line.startswith("worker --model") for line in log_of(tmp_path)) == 6
    # A drain would wait for requests that no worker can end: the second signal ends it.
    assert log_of(tmp_path)[-3:] == ["scheduler SIGTERM", "scheduler SIGTERM", "scheduler ended"]


def test_a_worker_that_dies_during_the_drain_ends_it(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("dies_always", "--served-model-name", "drains", "--drain-seconds", "1000")
    read_until(process, "Stepwire serves")
    process.send_signal(signal.SIGINT)
    read_until(process, "stopping")
    (tmp_path / "die").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert log_of(tmp_path)[-3:] == ["scheduler SIGTERM", "scheduler SIGTERM", "scheduler ended"]


def test_a_scheduler_that_dies_is_started_again_where_it_listened(
    start_serve: StartServe, tmp_path: Path
) -> None:
    process = start_serve("ok")
    address = read_until(process, "Stepwire serves")[-1].split()[-1]
    scheduler_pid = int(
        next(line for line in log_of(tmp_path) if line.startswith("scheduler pid")).split()[-1]
    )
    os.kill(scheduler_pid, signal.SIGKILL)
    assert "the scheduler was ended by SIGKILL; starting it again" in read_stderr_until(process, "SIGKILL")
    read_until(process, f"scheduler | scheduler listening on {address}")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_services_go_on_where_nobody_reads_what_they_say(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("chatty")
    read_until(process, "Stepwire serves")
    for output in (process.stdout, process.stderr):
        assert output is not None
        output.close()
    (tmp_path / "talk").touch()
    while "worker talked" not in log_of(tmp_path):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert log_of(tmp_path)[-1] == "worker ended"


def test_services_do_not_outlive_it_however_it_ends(start_serve: StartServe) -> None:
    process = start_serve("stubborn", "--served-model-name", "drains", "--drain-seconds", "1000")
    read_until(process, "Stepwire serves")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    services = [os.pidfd_open(int(pid)) for pid in children]
    assert len(services) == 2
    process.kill()
    have_ended = [bool(select.select([service], [], [], 10)[0]) for service in services]
    for service in services:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(service, signal.SIGKILL)
        os.close(service)
    assert have_ended == [True, True]


def test_a_second_signal_ends_a_drain_at_once_and_in_order(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("ok", "--served-model-name", "drains", "--drain-seconds", "1000")
    read_until(process, "Stepwire serves")
    process.send_signal(signal.SIGINT)
    read_until(process, "stopping")
    read_until(process, "scheduler | draining")  # two signals at once might reach it as one
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "all is ended at once, as asked\n")
    assert "scheduler ended" in log_of(tmp_path)  # not killed: it removes what it keeps in files


def test_a_second_signal_kills_what_does_not_stop(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("stubborn")
    read_until(process, "Stepwire serves")
    process.send_signal(signal.SIGTERM)
    read_until(process, "stopping")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=8)  # less than the worker's time to stop
    assert process.returncode == 130
    assert "worker ended" not in log_of(tmp_path)


def test_a_port_that_is_taken_is_told_before_the_worker_loads(
    start_serve: StartServe, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = start_serve("ok", "--port", port)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr == (
        f"error: --port is '127.0.0.1:{port}', but must be an address that can be listened on "
        "(Address already in use)\n"
    )
    assert not (tmp_path / "log").exists()


def test_a_stop_while_starting(start_serve: StartServe, tmp_path: Path) -> None:
    process = start_serve("ok")
    read_until(process, "worker    | weights loaded")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not any(line.startswith("scheduler SIGTERM") for line in log_of(tmp_path)[2:])


def test_with_tls_it_asks_nothing_of_its_own_server(
    start_serve: StartServe, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the scheduler would take it; the fake one speaks no TLS: that it is not asked shows in what is told.
    monkeypatch.setenv("STEPWIRE_SCHEDULER_TLS_CERT", "c.pem")
    process = start_serve("ok", "--tls-key", "k.pem")
    (line,) = [line for line in read_until(process, "Stepwire serves") if line.startswith("Stepwire")]
    assert re.fullmatch(r"Stepwire serves on 127\.0\.0\.1:\d+, with TLS", line)
