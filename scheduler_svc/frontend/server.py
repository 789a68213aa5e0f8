"""One front end process: wiring of its gRPC server, its link to the engine, health and a graceful stop.

Knows nothing about requests. On SIGTERM it says NOT_SERVING, refuses new requests, lets the running
ones end within the drain time and goes.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from stepwire.v1 import generation_service_pb2, generation_service_pb2_grpc

from scheduler_svc.collecting import collect_garbage_rarely
from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.errors import RequestInterruptedError
from scheduler_svc.frontend.auth_interceptor import AuthInterceptor
from scheduler_svc.frontend.call_takers import CallTakers
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.gateway_server import add_gateway_service
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.generate_many import NUM_MORE_THAN_WAIT
from scheduler_svc.frontend.interceptors import CallInterceptor, NoteCall
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.readiness import Readiness
from scheduler_svc.frontend.registering import add_service
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.servicer import GenerationServicer
from scheduler_svc.frontend.streams import MAX_PENDING
from scheduler_svc.frontend.tenants_file import TenantsFile
from scheduler_svc.frontend.values import EngineFacts
from scheduler_svc.frontend.watch import Watch
from scheduler_svc.tls import server_credentials
from scheduler_svc.traced import make_spans
from telemetry.sampling import keep_sampling

READY_SERVICE = "ready"
"""Health name: SERVING while some worker group serves."""
WORKER_SERVICE_PREFIX = "worker/"
"""With a worker group's HOST:PORT, its own health name. All other names tell that the process lives."""

_SERVICE_NAME = generation_service_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
_MAX_PENDING_CALLS = 100_000
"""Calls that may wait to be taken in, which takes under 1 ms each."""
_UNTAKEN_LIMIT_SECONDS = 86_400
"""How long they may wait so; gRPC's own limit is 30 s."""
_WITHOUT_WORKER_SECONDS = 5.0
"""How long a drain goes on while no worker serves: clients can go on elsewhere meanwhile."""
_MANY_STREAMS = 32
"""Where more are open, many calls are waited for at once; fewer of them come in fast enough one by one."""
_CLOSE_SECONDS = 0.5
"""For last messages on their way when the server stops."""

_log = logging.getLogger(__name__)


def run_frontend(
    config: SchedulerConfig,
    *,
    frontend_index: int,
    socket_path: str,
    metrics_folder: Path | None,
    on_listening: Callable[[], None],
) -> None:
    """Run one front end until SIGTERM.

    Args:
        config: The service's options; ``model`` names an existing folder, ``port`` is shared.
        frontend_index: Number of this front end, for logs.
        socket_path: The engine's unix socket.
        metrics_folder: Where the board of metrics stands; None: nobody looks.
        on_listening: Called once clients can connect.

    Raises:
        ModelFolderError: naming what is missing or broken in the model folder.
        ConfigError: if the address cannot be listened on.
    """
    model = ServedModel.load(config)
    meter = FrontendMeter.on_board(metrics_folder, frontend_index=frontend_index)
    collect_garbage_rarely()
    watch = Watch(meter, make_spans(config, process=f"front end {frontend_index}"))

    async def serve_until_stopped() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        frontend = Frontend(
            config, model, frontend_index=frontend_index, socket_path=socket_path, watch=watch
        )
        await frontend.serve(stop, lambda _port: on_listening())

    uvloop.run(serve_until_stopped())


class Frontend:
    """The parts of one front end and the order in which they start and stop."""

    def __init__(
        self,
        config: SchedulerConfig,
        model: ServedModel,
        *,
        frontend_index: int,
        socket_path: str,
        max_pending: int = MAX_PENDING,
        watch: Watch | None = None,
    ) -> None:
        """Wire the parts; call inside the event loop."""
        self._config = config
        self._model = model
        self._health = health.aio.HealthServicer()
        self._readiness = Readiness()
        self._watch = watch = watch or Watch(FrontendMeter.on_board())
        self._link = EngineLink(
            socket_path, frontend_index=frontend_index, on_facts=self._take_facts, meter=watch.meter.tokens
        )
        self._generator = Generator(model, self._link, watch=watch, max_pending=max_pending)
        self._credentials = server_credentials(config)
        self._tenants = TenantsFile(Path(config.tenants_file)) if config.tenants_file else None
        interceptors = _interceptors(tenants=self._tenants, note_call=watch.meter.note_call)
        self._server = _make_server(config, interceptors)
        self._takers = CallTakers(self._server, interceptors)
        self._generator.open_requests.call_once_many(_MANY_STREAMS, self._takers.start)
        max_open = config.max_num_waiting + NUM_MORE_THAN_WAIT
        servicer = GenerationServicer(self._generator, self._link, max_open_on_stream=max_open)
        server = self._takers
        add_service(
            generation_service_pb2_grpc.add_GenerationServiceServicer_to_server, servicer, server=server
        )
        add_service(health_pb2_grpc.add_HealthServicer_to_server, self._health, server=server)
        names = [_SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME]
        names += add_gateway_service(server, self._generator, link=self._link)
        if config.reflection:
            reflection.enable_server_reflection(names, self._server)

    async def serve(self, stop: asyncio.Event, on_listening: Callable[[int], None]) -> None:
        """Serve until ``stop`` is set; ``on_listening`` is told the port once clients can connect.

        Raises:
            ConfigError: if the address cannot be listened on.
        """
        background = [asyncio.create_task(one) for one in self._background()]
        try:
            await _wait_any(background, self._link.attached, stop)
            if not stop.is_set():
                on_listening(await self._listen())
                await _wait_any(background, stop)
                await self._drain()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._server.stop(_CLOSE_SECONDS)
            await self._takers.wait_ended()
            await self._link.close()
            self._model.tokenizer.close()
            self._watch.close()

    def _background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return what runs for as long as the front end does; where one fails, the front end ends."""
        yield self._link.run()
        yield keep_sampling(lambda: None, self._watch.meter.cpu_seconds)
        if self._tenants is not None:
            yield self._tenants.watch()

    async def _listen(self) -> int:
        address = f"{self._config.host}:{self._config.port}"
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            limit = f"be an address that can be listened on ({error})"
            raise ConfigError.of("port", address, limit) from error
        for name in ("", _SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def _take_facts(self, facts: EngineFacts | None) -> None:
        self._generator.engine_facts = facts
        is_ready = facts is not None and facts.is_ready
        if not is_ready:
            _log.warning("not ready: %s", facts.reason if facts else "the engine is gone")
        self._readiness.note(is_ready=is_ready)
        await self._set_health(READY_SERVICE, is_serving=is_ready)
        serving = facts.serving_workers if facts else frozenset()
        for address in self._config.worker:
            await self._set_health(WORKER_SERVICE_PREFIX + address, is_serving=address in serving)

    async def _set_health(self, name: str, *, is_serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    async def _drain(self) -> None:
        await self._health.enter_graceful_shutdown()
        self._generator.open_requests.refuse_new()
        num_open = len(self._generator.open_requests)
        _log.info("draining: %d requests are open", num_open)
        idle = asyncio.create_task(self._generator.open_requests.wait_idle(self._config.drain_seconds))
        hopeless = asyncio.create_task(self._readiness.lost_for(_WITHOUT_WORKER_SECONDS))
        await asyncio.wait((idle, hopeless), return_when=asyncio.FIRST_COMPLETED)
        for wait in (idle, hopeless):
            wait.cancel()
        await asyncio.gather(idle, hopeless, return_exceptions=True)
        if len(self._generator.open_requests):
            self._link.fail_all(RequestInterruptedError("the server stopped before the request ended"))
            await self._generator.open_requests.wait_idle(_CLOSE_SECONDS)


def _interceptors(
    *, tenants: TenantsFile | None, note_call: NoteCall
) -> tuple[grpc.aio.ServerInterceptor, ...]:
    authentication = () if tenants is None else (AuthInterceptor(lambda: tenants.table, note_call=note_call),)
    return (*authentication, CallInterceptor(note_call))


def _make_server(
    config: SchedulerConfig, interceptors: Sequence[grpc.aio.ServerInterceptor]
) -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", config.max_message_bytes),
            ("grpc.max_send_message_length", config.max_message_bytes),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 10000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.so_reuseport", 1),
            ("grpc.max_concurrent_streams", config.max_streams_per_connection),
            # gRPC's own limit cancels calls of a burst, at random from 1000 on; ours answers with a reason.
            ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
            # Likewise a call that waits for longer, as where this process was stopped for a while: its client
            # has a deadline, or waits, and would be told CANCELLED though nobody cancelled.
            ("grpc.server_max_unrequested_time_in_server", _UNTAKEN_LIMIT_SECONDS),
        ],
    )


async def _wait_any(tasks: Iterable[asyncio.Task[None]], *events: asyncio.Event) -> None:
    """Wait until an event is set or a task ends; raise what ended the task."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait((*tasks, *waits), return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for wait in waits:
            wait.cancel()
