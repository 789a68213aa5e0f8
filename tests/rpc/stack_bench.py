"""A front end, an engine and a stand-in worker in this process, with a client's stub before them.

Knows nothing about any test. Everything ends with the ``async with`` blocks, and nothing may be held.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.server import Frontend
from tests.rpc.engine_bench import LIMIT_SECONDS, RunningEngine, running_engine, wait_until
from tests.rpc.frontend_bench import write_model_folder
from tests.stand_in_worker import StandInWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All of it."""

    worker: StandInWorker
    engine: RunningEngine
    address: str
    stub: Any


def write_stand_in_folder(folder: Path) -> Path:
    """Write a model folder with the stand-in worker's vocabulary."""
    write_model_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1000}))
    return folder


@asynccontextmanager
async def running_stack(
    folder: Path, *, frontend_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Stack]:
    """Run all three; ``options`` are those of ``running_engine``, the front end's of SchedulerConfig."""
    worker = StandInWorker()
    await worker.start()
    async with (
        running_engine(worker.address, **options) as engine,
        serving(folder, engine.socket_path, **(frontend_options or {})) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        await wait_until(lambda: engine.engine.state().core is not None)
        yield Stack(worker=worker, engine=engine, address=address, stub=GenerationServiceStub(channel))
        worker.may_run.set()
        await engine.wait_idle()
        await wait_until(lambda: worker.num_lanes_held == 0)
    await worker.stop()
    assert worker.faults == []


@asynccontextmanager
async def serving(folder: Path, socket_path: str, **options: Any) -> AsyncIterator[str]:
    """Run a front end of the engine behind ``socket_path``; ``options`` are those of SchedulerConfig."""
    config = SchedulerConfig(model=str(folder), port=0, **{"drain_seconds": 0.2, **options})
    frontend = Frontend(config, ServedModel.load(config), frontend_index=0, socket_path=socket_path)
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(frontend.serve(stop, port.set_result))
    try:
        yield f"127.0.0.1:{await asyncio.wait_for(port, LIMIT_SECONDS)}"
    finally:
        stop.set()
        await asyncio.wait_for(task, LIMIT_SECONDS)
