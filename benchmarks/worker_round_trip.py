"""Steps through the worker's server process, over a stream on this machine, by a scripted engine.

The engine sends the next step as soon as a credit is back, and does nothing else: messages are made
before the clock starts. Knows nothing about models or kernels.
"""

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc
import uvloop
from stepwire.worker.v1 import worker_service_pb2 as pb

from benchmarks.decode_script import decode_steps, make_limits
from benchmarks.process_cost import read_cost

_MAX_STEPS_IN_FLIGHT = 2
_METHOD = "/stepwire.worker.v1.WorkerService/RunSteps"
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """What the server process serves."""

    num_rows: int
    step_seconds: float
    device: str


def measure_round_trips(
    rows: list[int], *, step_seconds: float, lease_steps: int, num_steps: int, device: str
) -> None:
    """Print microseconds a step, and the CPU time of it, for single steps and for leases."""
    print(f"\nthrough the server, a step takes the device {1e6 * step_seconds:.0f} us, two in flight")
    print(f"{'':28s}{'us a step':>10s}{'CPU us':>10s}")
    for num_rows in rows:
        stand_in = StandIn(num_rows=num_rows, step_seconds=step_seconds, device=device)
        process, address = _start(stand_in)
        try:
            for steps in (1, lease_steps):
                cases = [
                    _time_stream(
                        address, process.pid, num_rows=num_rows, lease_steps=steps, num_steps=num_steps
                    )
                    for _ in range(_ROUNDS)
                ]
                us, cpu_us = min(cases)
                name = f"{num_rows} rows{f', leases of {steps}' if steps > 1 else ''}"
                print(f"{name:28s}{us:10.1f}{cpu_us:10.1f}", flush=True)
        finally:
            process.terminate()
            process.join()


def _start(stand_in: StandIn) -> tuple[Any, str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(stand_in, theirs))
    process.start()
    return process, ours.recv()


def _serve(stand_in: StandIn, address: Connection) -> None:
    from worker_svc.__main__ import GRPC_ENVIRONMENT  # noqa: PLC0415

    os.environ |= GRPC_ENVIRONMENT
    from benchmarks.no_kernels import make_executor  # noqa: PLC0415
    from worker_svc.rpc.server import ServerOptions, serve  # noqa: PLC0415
    from worker_svc.runner.worker_info import LoadedWorker, WorkerInfo  # noqa: PLC0415

    limits = make_limits(stand_in.num_rows)
    info = WorkerInfo(
        config_hash="",
        tokenizer_hash="",
        limits=limits,
        max_steps_in_flight=_MAX_STEPS_IN_FLIGHT,
        device=stand_in.device,
        dtype="",
        attention_backend="",
        tp_size=1,
        versions={},
    )
    executor = make_executor(limits, device=stand_in.device, step_seconds=stand_in.step_seconds)
    uvloop.run(
        serve(
            ServerOptions(host="127.0.0.1", port=0),
            lambda: LoadedWorker(info=info, executor=executor),
            announce=lambda line: address.send(line.rsplit(" ", 1)[1]),
        )
    )


def _time_stream(
    address: str, pid: int, *, num_rows: int, lease_steps: int, num_steps: int
) -> tuple[float, float]:
    """Return microseconds a step, and of the server process's CPU time."""
    messages = []
    for request in decode_steps(num_rows, lease_steps=lease_steps):
        messages.append(request.SerializeToString())
        if len(messages) * lease_steps >= num_steps:
            break
    seconds, cpu_seconds = uvloop.run(_run_stream(address, pid, messages=messages))
    num_steps = len(messages) * lease_steps
    return 1e6 * seconds / num_steps, 1e6 * cpu_seconds / num_steps


async def _run_stream(address: str, pid: int, *, messages: list[bytes]) -> tuple[float, float]:
    options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call: Any = channel.stream_stream(_METHOD)()
        hello = pb.EngineHello(protocol_version=1, fencing_number=time.time_ns(), vocab_size=1024)
        await call.write(pb.RunStepsRequest(hello=hello).SerializeToString())
        await call.read()
        start_seconds, start_cost = time.perf_counter(), read_cost(pid)
        num_sent = num_answered = 0
        while num_answered < len(messages):
            while num_sent < min(len(messages), num_answered + _MAX_STEPS_IN_FLIGHT):
                await call.write(messages[num_sent])
                num_sent += 1
            answer = pb.RunStepsResponse.FromString(await call.read())
            num_answered += answer.result.is_last
        seconds = time.perf_counter() - start_seconds
        cpu_seconds = read_cost(pid).cpu_seconds - start_cost.cpu_seconds
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass  # a heartbeat
    return seconds, cpu_seconds
