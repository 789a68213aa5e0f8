"""How the services start, stop and survive each other."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire_client import GenerationStream, StepwireClient, Unavailable

from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tools.services import Service, Services, running

START = [sys.executable, "-m"]


def _health(address: str, service: str) -> int:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        status: int = check(request, timeout=5).status
        return status


@pytest.mark.parametrize("service", ["", "stepwire.v1.GenerationService", "ready"])
def test_health_names_serve(services: Services, service: str) -> None:
    assert _health(services.address, service) == health_pb2.HealthCheckResponse.SERVING


def test_the_state_tells_the_worker(client: StepwireClient) -> None:
    state = client.server_state()
    assert state.num_blocks == 64
    (worker,) = state.workers
    assert (worker.is_serving, worker.device, worker.attention_backend) == (True, "cpu", "torch")


def _run_seeded(client: StepwireClient) -> list[GenerationStream]:
    prompts = [np.random.default_rng(i).integers(3, 320, 9 + i).tolist() for i in range(6)]
    return [client.generate(p, seed=i, max_tokens=120, ignore_eos=True) for i, p in enumerate(prompts)]


def test_a_dead_worker_is_a_pause_and_a_drain_lets_requests_end(model_folder: Path) -> None:
    common = ("--model", str(model_folder))
    worker_flags = (*common, *WORKER_FLAGS, "--port")
    with running("worker_svc", *worker_flags, "0") as first:
        address = first.address()
        scheduler_flags = (*common, "--port", "0", "--worker", address, "--check-invariants")
        with (
            running("scheduler_svc", *scheduler_flags) as scheduler,
            StepwireClient(scheduler.address()) as client,
        ):
            scheduler.wait_for(f"worker {address} serves on ")
            expected = [stream.completion().token_ids for stream in _run_seeded(client)]
            streams = _run_seeded(client)
            for stream in streams:
                next(stream)
            first.kill()
            with running("worker_svc", *worker_flags, address.rsplit(":", 1)[1]) as second:
                second.address()
                assert [stream.completion().token_ids for stream in streams] == expected
                wait_until_idle(client)
                _expect_a_drain_to_let_requests_end(scheduler, client)


def _expect_a_drain_to_let_requests_end(scheduler: Service, client: StepwireClient) -> None:
    stream = client.generate([5, 6], max_tokens=200, ignore_eos=True)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(scheduler.stop)
        assert stream.completion().usage.num_output_tokens == 200
        assert stopping.result() == 0


def test_without_a_worker_the_front_end_lives_and_is_not_ready(model_folder: Path) -> None:
    flags = ("--model", str(model_folder), "--port", "0", "--worker", "127.0.0.1:9")
    with running("scheduler_svc", *flags) as scheduler:
        address = scheduler.address()
        assert _health(address, "") == health_pb2.HealthCheckResponse.SERVING
        assert _health(address, "ready") == health_pb2.HealthCheckResponse.NOT_SERVING
        with StepwireClient(address) as client, pytest.raises(Unavailable, match="worker"):
            client.complete([5], max_tokens=1)


def test_a_worker_with_another_model_is_refused_at_start(
    services: Services, checkpoint_folder: Callable[[str], Path]
) -> None:
    other = checkpoint_folder("llama_tied")
    flags = ["--model", str(other), "--port", "0", "--worker", services.worker.address()]
    ended = subprocess.run(
        [*START, "scheduler_svc", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert "config_hash" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("service", ["worker_svc", "scheduler_svc"])
def test_an_unknown_flag_is_refused(service: str) -> None:
    ended = subprocess.run(
        [*START, service, "--model", "x", "--no-such-flag"], capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "--no-such-flag" in ended.stderr


def test_a_missing_tokenizer_is_named_at_start(model_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    ended = subprocess.run(
        [*START, "scheduler_svc", "--model", str(folder), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "tokenizer.json" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
