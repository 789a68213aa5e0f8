"""A worker whose device is lost or hangs ends, with an exit code of its own; others live on."""

import asyncio
import subprocess
import sys

import grpc
import pytest
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from tests.rpc.fake_model_runner import FakeModelRunner
from tests.rpc.worker_harness import HELLO, INFO, LIMITS, admission, end_of, rows, until
from worker_svc.errors import DeviceLostError
from worker_svc.rpc.server import ServerOptions, serve
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.worker_info import LoadedWorker

SCRIPT = """
import sys
from worker_svc import __main__, start
from worker_svc.errors import DeviceLostError
def start_worker(config, group, on_lost):
    raise DeviceLostError("the device is lost: it was told to be")
start.start_worker = start_worker
sys.argv = ["worker_svc", "--model", "hub/unused", "--port", "0"]
__main__.main()
"""


class Served:
    """A worker that serves until its device is lost."""

    def __init__(self, runner: FakeModelRunner) -> None:
        self.runner = runner
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        options = ServerOptions(host="127.0.0.1", port=0, stuck_step_seconds=0.3)
        worker = LoadedWorker(
            info=INFO, executor=StepExecutor(LIMITS, runner), check_device=self.check_device
        )
        self.task = asyncio.create_task(
            serve(
                options,
                lambda: worker,
                announce=lambda line: self.address.set_result(line.rsplit(" ", 1)[1]),
                stop=asyncio.Event(),
            )
        )

    def check_device(self) -> None:
        raise RuntimeError("an illegal memory access was encountered")


async def test_a_device_that_is_lost_ends_the_worker_after_its_stream_was_told() -> None:
    served = Served(FakeModelRunner())
    served.runner.is_failing = True
    async with grpc.aio.insecure_channel(await served.address) as channel:
        call = WorkerServiceStub(channel).RunSteps()
        await call.write(pb.RunStepsRequest(hello=HELLO))
        await call.read()
        await call.write(rows(1, (0, 3), admissions=[admission(0)]))
        assert await end_of(call) == (
            grpc.StatusCode.INTERNAL,
            "step 1 failed: RuntimeError: the device is on fire",
        )
        with pytest.raises(
            DeviceLostError, match="the device is lost: RuntimeError: an illegal memory access"
        ):
            await asyncio.wait_for(served.task, 5)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
async def test_a_step_that_hangs_ends_the_worker_once_its_engine_has_gone(num_steps_ahead: int) -> None:
    served = Served(FakeModelRunner(num_steps_ahead))
    served.runner.gate.clear()
    async with grpc.aio.insecure_channel(await served.address) as channel:
        call = WorkerServiceStub(channel).RunSteps()
        await call.write(pb.RunStepsRequest(hello=HELLO))
        await call.read()
        await call.write(rows(1, (0, 3), admissions=[admission(0)]))
        await until(lambda: served.runner.num_launched)
        done, _ = await asyncio.wait({served.task}, timeout=0.6)
        assert not done, "as long as the engine waits, so does the worker"
        call.cancel()
        await asyncio.wait({served.task}, timeout=1.5)
        served.runner.gate.set()
        with pytest.raises(DeviceLostError, match=r"still runs 0\.3 s after its engine gave it up"):
            await asyncio.wait_for(served.task, 5)


def test_the_process_ends_with_an_exit_code_of_its_own() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 3
    assert ended.stderr == "error: the device is lost: it was told to be; ending with exit code 3\n"
