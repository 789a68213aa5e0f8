"""Runs the worker's gRPC server: port first, then the model, then steps, until a signal.

Wires the services together; what to load is passed in. Knows nothing about models or steps.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2_grpc as pb_grpc

from service.readable import ReadableMessages
from telemetry.sampling import keep_sampling
from worker_svc.errors import ConfigError, ProtocolError
from worker_svc.first_checks import check_address
from worker_svc.meter import WorkerMeter
from worker_svc.rpc.compute_thread import ComputeThread
from worker_svc.rpc.service_end import ServiceEnd
from worker_svc.rpc.servicer import FENCING_HOLD_SECONDS, Serving, WorkerServicer
from worker_svc.runner.worker_info import LoadedWorker

_logger = logging.getLogger(__name__)
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name
_STOP_GRACE_SECONDS = 5.0

Load = Callable[[], LoadedWorker]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where to listen and how."""

    host: str
    port: int
    heartbeat_seconds: float = 1.0
    fencing_hold_seconds: float = FENCING_HOLD_SECONDS
    stuck_step_seconds: float = 60.0
    """How long a step may go on after its engine gave it up."""
    meter: WorkerMeter = field(default_factory=WorkerMeter)
    """Counts steps."""
    credentials: grpc.ServerCredentials | None = None
    """What to listen with; None without TLS."""
    has_reflection: bool = True


_SERVER_OPTIONS = (
    # Both ends are ours: how large a step may be follows from the worker's own limits.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The engine may ping as often as it likes, also between steps.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two workers on one port would take turns at an engine's streams.
    ("grpc.so_reuseport", 0),
)


async def serve(
    options: ServerOptions, load: Load, *, announce: Callable[[str], None], stop: asyncio.Event | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or ``stop``.

    Args:
        options: Where to listen.
        load: Loads the model; called once, in a thread, while health says NOT_SERVING.
        announce: Told one readable line once steps are taken.
        stop: Ends serving when set.

    Raises:
        StartupError: if the port cannot be bound or the model cannot be loaded.
        DeviceLostError: if only a new process can compute again.
    """
    server = grpc.aio.server(interceptors=[ReadableMessages(ProtocolError)], options=_SERVER_OPTIONS)
    servicer = WorkerServicer(
        heartbeat_seconds=options.heartbeat_seconds, fencing_hold_seconds=options.fencing_hold_seconds
    )
    pb_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if options.has_reflection:
        names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    port = _bind(server, options)
    await _set_health(health_servicer, health_pb2.HealthCheckResponse.NOT_SERVING)
    await server.start()
    compute: ComputeThread | None = None
    try:
        worker = await asyncio.to_thread(load)
        # Not before: while the model loads, nothing needs a graceful end.
        end = ServiceEnd(_stop_event(stop))
        meter = options.meter
        compute = ComputeThread(
            worker.executor, check_device=worker.check_device, on_lost=end.lose_device, meter=meter
        )
        compute.start()
        servicer.start_serving(Serving(info=worker.info, compute=compute))
        await _set_health(health_servicer, health_pb2.HealthCheckResponse.SERVING)
        announce(f"worker listening on {options.host}:{port}")
        async with _sampled(meter, compute, servicer):
            await end.wait(compute.stuck_seconds, limit_seconds=options.stuck_step_seconds)
        servicer.stop_serving(is_orderly=True)
        await health_servicer.enter_graceful_shutdown()
    finally:
        servicer.stop_serving(is_orderly=False)
        await server.stop(_STOP_GRACE_SECONDS)
        if compute is not None and not await asyncio.to_thread(compute.stop, _STOP_GRACE_SECONDS):
            _logger.warning("a step still runs: it is given up")


@asynccontextmanager
async def _sampled(
    meter: WorkerMeter, compute: ComputeThread, servicer: WorkerServicer
) -> AsyncIterator[None]:
    """Have the meter's gauges looked up while the ``with`` block runs."""

    def sample() -> None:
        meter.sample(num_lanes_held=compute.num_lanes_held, is_connected=servicer.is_streaming)

    sampling = asyncio.create_task(keep_sampling(sample, meter.cpu_seconds))
    try:
        yield
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


def _bind(server: grpc.aio.Server, options: ServerOptions) -> int:
    address, credentials = f"{options.host}:{options.port}", options.credentials
    # Before gRPC tries, which logs lines of its own and does not tell the reason.
    check_address(options.host, options.port)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on --host {options.host} --port {options.port}: {error}") from error


def _stop_event(stop: asyncio.Event | None) -> asyncio.Event:
    event = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event


async def _set_health(servicer: health.aio.HealthServicer, status: int) -> None:
    for name in ("", SERVICE_NAME):
        await servicer.set(name, status)
