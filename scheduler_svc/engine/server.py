"""The engine process: wires the loop, the worker links and the unix socket, and runs them.

Knows nothing about requests. Whatever fails here ends the process: the supervisor ends the rest.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from stepwire.engine.v1 import engine_service_pb2
from stepwire.engine.v1.engine_service_pb2_grpc import add_EngineServiceServicer_to_server

from model.config import read_model_config
from model.errors import ModelFolderError as BrokenModelFolderError
from model.folder import config_hash, tokenizer_hash
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.engine.group import WorkerGroup
from scheduler_svc.engine.groups import WorkerGroups
from scheduler_svc.engine.limits import lower_limits
from scheduler_svc.engine.link_options import LinkOptions
from scheduler_svc.engine.loop import Engine
from scheduler_svc.engine.mailboxes import Inbox
from scheduler_svc.engine.meter import EngineMeter
from scheduler_svc.engine.servicer import EngineServicer
from scheduler_svc.engine.step_clock import StepLimits
from scheduler_svc.engine.tasks import run_until_first
from scheduler_svc.engine.traces import RequestTraces
from scheduler_svc.engine.values import ModelIdentity
from scheduler_svc.engine.waits import Waits
from scheduler_svc.engine.worker_link import WorkerLink
from scheduler_svc.errors import ModelFolderError
from scheduler_svc.tls import worker_credentials
from scheduler_svc.traced import make_spans
from service.readable import ReadableMessages
from telemetry.sampling import keep_sampling

_SERVICE_NAME = engine_service_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name


def run_engine(
    config: SchedulerConfig,
    *,
    socket_path: str,
    metrics_folder: Path | None,
    on_listening: Callable[[], None],
) -> None:
    """Run the engine until SIGTERM.

    Args:
        config: the service's options; ``model`` names a folder.
        socket_path: unix socket that the front ends attach to.
        metrics_folder: where the board of metrics stands; None: nobody looks.
        on_listening: called once the socket takes streams.

    Raises:
        ModelFolderError: if the folder cannot be read.
        UnfitWorkerError: if the first workers run another model or tell wrong limits, each of them.
        ConfigError: if a flag is above what the first workers can hold, likewise.
    """
    identity = read_identity(Path(config.model))
    meter = EngineMeter.on_board(metrics_folder, config.worker)
    traces = RequestTraces(make_spans(config, process="engine"))
    try:
        uvloop.run(
            _serve(config, identity, (meter, traces), socket_path=socket_path, on_listening=on_listening)
        )
    finally:
        traces.close()


def read_identity(folder: Path) -> ModelIdentity:
    """Read what a worker's model must be.

    Raises:
        ModelFolderError: if the folder cannot be read.
    """
    try:
        return ModelIdentity(
            config_hash=config_hash(folder),
            vocab_size=read_model_config(folder).vocab_size,
            tokenizer_hash=tokenizer_hash(folder),
        )
    except BrokenModelFolderError as error:
        raise ModelFolderError(str(error)) from error


async def _serve(
    config: SchedulerConfig,
    identity: ModelIdentity,
    watchers: tuple[EngineMeter, RequestTraces],
    *,
    socket_path: str,
    on_listening: Callable[[], None],
) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    meter, traces = watchers
    engine, links = make_engine(
        config, identity, link_options=link_options_of(config), meter=meter, traces=traces
    )
    server = await start_server(EngineServicer(engine), socket_path=socket_path)
    on_listening()
    try:
        sampling = keep_sampling(lambda: meter.sample(engine.state()), meter.cpu_seconds)
        await run_until_first(engine.run(), *(link.run() for link in links), sampling, _returned(stop))
    finally:
        await server.stop(grace=None)


async def _returned(stop: asyncio.Event) -> None:
    await stop.wait()


def link_options_of(config: SchedulerConfig) -> tuple[LinkOptions, ...]:
    """Read off the options of the link to each worker group."""
    step_limits = StepLimits(
        least_seconds=config.step_limit_seconds, first_seconds=config.first_step_limit_seconds
    )
    credentials = worker_credentials(config)
    return tuple(
        LinkOptions(
            group=group,
            address=address,
            max_steps_in_flight=config.max_steps_in_flight,
            max_lease_steps=config.max_lease_steps,
            step_limits=step_limits,
            silence_seconds=config.silence_limit_seconds,
            credentials=credentials,
        )
        for group, address in enumerate(config.worker)
    )


def make_engine(
    config: SchedulerConfig,
    identity: ModelIdentity,
    *,
    link_options: Sequence[LinkOptions],
    waits: Waits | None = None,
    meter: EngineMeter | None = None,
    traces: RequestTraces | None = None,
) -> tuple[Engine, tuple[WorkerLink, ...]]:
    """Wire an engine and the links to its worker groups; all of them have still to be run."""
    inbox = Inbox()
    fencing_number = time.time_ns()
    meter = meter or EngineMeter.on_board(None, tuple(options.address for options in link_options))
    links = tuple(
        WorkerLink(
            options,
            identity,
            fencing_number=fencing_number,
            accept=lambda facts: lower_limits(config, facts),
            post=inbox.post,
            meter=meter.groups[options.group],
        )
        for options in link_options
    )
    groups = WorkerGroups([WorkerGroup(link, is_checked=config.check_invariants) for link in links])
    traces = RequestTraces(None) if traces is None else traces
    engine = Engine(
        inbox,
        groups,
        waits=waits or Waits(),
        meter=meter,
        traces=traces,
        vocab_size=identity.vocab_size,
    )
    return engine, links


async def start_server(servicer: EngineServicer, *, socket_path: str) -> grpc.aio.Server:
    """Start serving front ends on a unix socket, with health and reflection."""
    server = grpc.aio.server(
        interceptors=[ReadableMessages(ValueError)],
        options=(
            # Both ends are ours; what clients may send is limited where it comes in.
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ),
    )
    add_EngineServiceServicer_to_server(servicer, server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    for name in ("", _SERVICE_NAME):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (_SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    # The supervisor makes the socket's folder, which only this user may enter: no TLS, no tokens.
    server.add_insecure_port(f"unix:{socket_path}")
    await server.start()
    return server
