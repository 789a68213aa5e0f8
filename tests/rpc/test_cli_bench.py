"""``stepwire bench`` with client processes of its own, against a scripted server."""

import json
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import pytest
from stepwire_cli.bench import chart, client_process
from stepwire_cli.bench.driver import ClientProcesses
from stepwire_cli.bench.jobs import JobOptions, make_jobs
from stepwire_cli.bench.messages import ClientFailed, ClientSettings, RoundShare
from stepwire_cli.main import app
from stepwire_client import StepwireClientError
from typer.testing import CliRunner, Result

from tests.rpc.fake_generation_service import FakeGenerationService

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
SHAPE = ("--num-requests", "4", "--input-tokens", "2:3", "--output-tokens", "3")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def settings(address: str, *, timeout_seconds: float | None = None) -> ClientSettings:
    return ClientSettings(address=address, num_channels=1, is_many=False, timeout_seconds=timeout_seconds)


def test_loads_rounds_json_and_chart(
    fake_address: str, fake_service: FakeGenerationService, tmp_path: Path
) -> None:
    json_path, png_path = tmp_path / "bench.json", tmp_path / "bench.png"
    result = bench(
        *SHAPE,
        *("--concurrency", "1", "--concurrency", "3", "--rounds", "2", "--processes", "2", "--channels", "2"),
        *("--json", str(json_path), "--png", str(png_path), "--address", fake_address, "--token", "secret"),
    )
    assert result.exit_code == 0, result.output
    assert set(fake_service.authorizations) == {"Bearer secret"}
    assert "secret" not in json_path.read_text() + result.output
    assert "4x2:3->3, 1 at a time: 4 requests in " in result.stdout
    assert "4x2:3->3, 3 at a time: 4 requests in " in result.stdout
    assert len(fake_service.requests) == 4 + 2 * 2 * 4  # the warm-up, then two loads of two rounds
    assert len({request.cache_salt for request in fake_service.requests}) == len(fake_service.requests)
    assert {request.stop.max_tokens for request in fake_service.requests} == {3}
    told = json.loads(json_path.read_text())
    assert [run["load"]["concurrency"] for run in told["runs"]] == [1, 3]
    for run in told["runs"]:
        assert run["summary"]["num_output_tokens"] == 12
        assert len(run["summary"]["round_seconds"]) == 2
        assert len(run["summary"]["client_loop_ratios"]) == 2
    assert told["settings"]["address"] == fake_address
    assert png_path.read_bytes().startswith(PNG_MAGIC)


def test_failed_requests_are_told_and_the_exit_code_says_so(fake_address: str) -> None:
    result = bench(
        *("--num-requests", "2", "--output-tokens", "5", "--rate", "100", "--warm-up", "0"),
        *("--many", "--processes", "1", "--address", fake_address),
    )
    assert result.exit_code == 1
    assert "2 requests failed with WRONG_NUM_TOKENS" in result.stdout
    assert "3 tokens came, 3 were told, 5 asked for" in result.stdout


def test_a_chart_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "is_available", lambda: False)
    result = bench("--png", "x.png")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --png needs matplotlib: pip install 'stepwire-client[bench]'\n",
    )


@pytest.mark.parametrize("flag", ["--json", "--png"])
def test_a_file_without_a_folder_is_refused_before_it_runs(tmp_path: Path, flag: str) -> None:
    result = bench(flag, str(tmp_path / "none" / "x"))
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: {tmp_path / 'none'} is no folder to write x into\n",
    )


def test_a_client_process_that_cannot_connect_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process goes on taking Ctrl-C
    ours, theirs = multiprocessing.Pipe()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        client_process.run_client(theirs, settings(address))
    told = ours.recv()
    assert told == ClientFailed(reason=f"TimeoutError: 0 of 1 connections to {address} within 0.05 s")


def test_flags_that_do_not_go_together_are_refused(fake_address: str) -> None:
    result = bench("--rate", "1", "--concurrency", "1", "--address", fake_address)
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --rate and --concurrency are both given, but are two kinds of load\n",
    )


def test_a_client_process_that_dies_is_told(fake_address: str, fake_service: FakeGenerationService) -> None:
    fake_service.is_endless = True
    jobs = make_jobs([[1]], [3], options=JobOptions(temperature=0.0), round_id="r")
    share = RoundShare(jobs=tuple(jobs), concurrency=1)

    def kill(num_tokens: int) -> None:
        if num_tokens == 3:
            (process,) = clients.processes
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)

    with ClientProcesses(1, settings(fake_address, timeout_seconds=30)) as clients:
        with pytest.raises(StepwireClientError, match="client process 0 ended with exit code -9"):
            clients.run_round([share], kill)
        (process,) = clients.processes
    assert not process.is_alive()
