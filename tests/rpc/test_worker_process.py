"""The worker as a process of its own, from the command line to its end."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from tools.services import ServiceError, running


def test_it_tells_how_it_starts_serves_and_stops_on_a_signal(
    checkpoint_folder: Callable[[str], Path],
) -> None:
    flags = ("--port", "0", "--num-blocks", "8", "--torch-threads", "1")
    with running("worker_svc", "--model", str(checkpoint_folder("qwen3_tiny")), *flags) as worker:
        with grpc.insecure_channel(worker.address()) as channel:
            info = WorkerServiceStub(channel).GetWorkerInfo(pb.GetWorkerInfoRequest())
        assert (info.hello.num_blocks, info.hello.max_model_len, info.hello.worker_epoch) == (8, 128, 0)
        assert worker.stop() == 0
    starts = [line.split()[0] for line in worker.lines]
    assert starts[:8] == ["only", "versions", "model", "device", "KV", "limits", "weights", "worker"]


def test_a_start_that_fails_is_one_line_and_exit_code_1(checkpoint_folder: Callable[[str], Path]) -> None:
    flags = ("--model", str(checkpoint_folder("qwen3_tiny")), "--port", "0", "--kv-cache-gib", "0.000001")
    with pytest.raises(ServiceError), running("worker_svc", *flags) as worker:
        worker.address()
    assert worker.process.wait(5) == 1
    assert worker.lines[-1].startswith("error: --kv-cache-gib is 1e-06")


def test_weights_that_do_not_fit_are_one_line_and_exit_code_2(
    checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copy(checkpoint_folder("qwen3_tiny") / "config.json", tmp_path)
    with (
        pytest.raises(ServiceError),
        running("worker_svc", "--model", str(tmp_path), "--port", "0") as worker,
    ):
        worker.address()
    assert worker.process.wait(5) == 2
    assert worker.lines[-1].startswith(f"error: {tmp_path} holds neither ")


def test_an_option_that_does_not_fit_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    flags = ("--model", str(tmp_path), "--device", "tpu")
    with pytest.raises(ServiceError), running("worker_svc", *flags) as worker:
        worker.address()
    assert worker.process.wait(5) == 2
    assert worker.lines == ["error: --device is 'tpu', but must be one of cpu, cuda\n"]


STOPS_IN_A_STEP = """
import sys, threading, time
import torch
from worker_svc import __main__ as worker, start

def compute():
    torch.set_num_threads(1)
    while True:
        torch.ones(1500, 1500) @ torch.ones(1500, 1500)

def stop_in_a_step(*_, **__):
    threading.Thread(target=compute, daemon=True).start()
    time.sleep(0.2)

start.start_worker = stop_in_a_step
sys.argv[1:] = ["--model", sys.argv[1], "--port", "0"]
worker.main()
"""


def test_a_step_that_is_given_up_at_the_stop_does_not_crash_the_process(
    checkpoint_folder: Callable[[str], Path],
) -> None:
    command = (sys.executable, "-c", STOPS_IN_A_STEP, str(checkpoint_folder("qwen3_tiny")))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
