"""Bearer tokens: who may call, what the others are told, and what is never written down."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from stepwire.v1 import generation_service_pb2 as pb
from stepwire_client import (
    AsyncStepwireClient,
    GenerationRequest,
    InvalidRequest,
    PermissionDenied,
)

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.frontend.auth_interceptor import AuthInterceptor
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.server import Frontend
from scheduler_svc.frontend.tenants import read_tenants
from scheduler_svc.frontend.tenants_file import TenantsFile
from scheduler_svc.frontend.watch import Watch
from scheduler_svc.metrics import frontend_metrics
from telemetry.board import Board
from tests.rpc.engine_bench import wait_until
from tests.rpc.frontend_bench import LIMIT_SECONDS, running_frontend, write_model_folder
from tests.rpc.stack_bench import Stack, running_stack, write_stand_in_folder
from tests.rpc.tenant_files import ALICE, BOB, MALLORY, tenant, write_tenants

NO_TOKEN = "this server asks for a token: send the metadata authorization: Bearer TOKEN"
WRONG_TOKEN = "the token is not one of this server's"


@pytest.fixture
def tenants_file(tmp_path: Path) -> Path:
    return write_tenants(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(folder: Path, tenants_file: Path) -> AsyncIterator[Stack]:
    """Run all parts, and see that no tenant has anything in flight at the end."""
    async with running_stack(folder, frontend_options={"tenants_file": str(tenants_file)}) as stack:
        yield stack


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await call.code(), await call.details()


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


RPCS = ("Abort", "Tokenize", "Generate", "GenerateMany")
"""One of each kind of call: what matters of its kind is the server's."""
REFLECT = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
BAD_CREDENTIALS: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "none": ((), NO_TOKEN),
    "another scheme": ((("authorization", f"Basic {ALICE}"),), NO_TOKEN),
    "no scheme": ((("authorization", ALICE),), NO_TOKEN),
    "nobody's": ((("authorization", f"Bearer {MALLORY}"),), WRONG_TOKEN),
    "a part": ((("authorization", f"Bearer {ALICE[:-1]}"),), WRONG_TOKEN),
    "empty": ((("authorization", "Bearer "),), WRONG_TOKEN),
}


@pytest.mark.parametrize("case", list(BAD_CREDENTIALS))
async def test_bad_credentials_are_refused_on_every_kind_of_call(
    folder: Path, tmp_path: Path, tenants_file: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, told = BAD_CREDENTIALS[case]
    board = Board(frontend_metrics())
    watch = Watch(FrontendMeter(board))
    async with running_frontend(folder, tmp_path, tenants_file=str(tenants_file), watch=watch) as bench:
        # Bytes that are no message: what a stranger sends is not even parsed.
        for method in (*(f"stepwire.v1.GenerationService/{name}" for name in RPCS), REFLECT):
            call: Any = bench.channel.unary_unary(f"/{method}")
            assert await end_of(call(b"\xff\xff", metadata=metadata)) == (
                grpc.StatusCode.UNAUTHENTICATED,
                told,
            ), method
        health: Any = health_pb2_grpc.HealthStub(bench.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(service="ready"))).status == 1
    counted = [
        board.slot("stepwire_frontend_calls_total", method, "UNAUTHENTICATED").value
        for method in (*RPCS, "other")
    ]
    assert counted == [1] * 5
    lines = [vars(record) for record in caplog.records if record.name == "stepwire.access"]
    assert [line["fields"]["method"] for line in lines[:1]] == ["/stepwire.v1.GenerationService/Abort"]
    for line in lines:
        assert set(line["fields"]) == {"method", "code", "seconds", "peer"}
        assert re.fullmatch(
            rf"/\S+ UNAUTHENTICATED [0-9a-f]{{32}} \d+\.\d+ s ipv4:\S+ {told}", line["message"]
        )


async def test_a_tenant_s_token_opens_every_service(stack: Stack) -> None:
    async with AsyncStepwireClient(stack.address, token=ALICE) as client:
        assert (await client.model_info()).vocab_size == 1000
        assert len((await client.complete([1, 2, 3], max_tokens=4, ignore_eos=True)).token_ids) == 4
    metadata = (("authorization", f"bEARER   {ALICE} "),)
    async with grpc.aio.insecure_channel(stack.address) as channel:
        reflected: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        question = [reflection_pb2.ServerReflectionRequest(list_services="")]
        call = reflected.ServerReflectionInfo(question, metadata=metadata)
        assert "stepwire.v1" in str([response async for response in call])


async def test_the_client_tells_a_refusal_as_such(stack: Stack) -> None:
    async with AsyncStepwireClient(stack.address, token=MALLORY) as client:
        with pytest.raises(PermissionDenied, match=WRONG_TOKEN):
            await client.complete("x")
        with pytest.raises(PermissionDenied, match=WRONG_TOKEN):
            async for _ in client.generate_many([GenerationRequest(prompt="x")]):
                pass
    with pytest.raises(InvalidRequest, match="the token has characters other than printable ASCII"):
        AsyncStepwireClient(stack.address, token="line\nbreak")


async def test_the_file_is_read_again_when_it_changes(
    folder: Path, tmp_path: Path, tenants_file: Path
) -> None:
    async with running_frontend(folder, tmp_path, tenants_file=str(tenants_file)) as bench:

        async def may_call(token: str) -> bool:
            async with AsyncStepwireClient(bench.address, token=token) as client:
                try:
                    await client.model_info()
                except PermissionDenied:
                    return False
            return True

        assert [await may_call(ALICE), await may_call(MALLORY)] == [True, False]
        rewrite(tenants_file, tenant("mallory", MALLORY))
        async with asyncio.timeout(LIMIT_SECONDS):
            while not await may_call(MALLORY):  # noqa: ASYNC110  # each try is a call
                await asyncio.sleep(0.05)
        assert not await may_call(ALICE)


async def test_no_log_holds_a_token_or_its_hash(
    folder: Path, tmp_path: Path, tenants_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_frontend(folder, tmp_path, tenants_file=str(tenants_file)) as bench:
        for token in (ALICE, MALLORY):
            async with AsyncStepwireClient(bench.address, token=token) as client:
                for ask in (client.model_info(), client.tokenize("x"), client.complete("")):
                    await asyncio.gather(ask, return_exceptions=True)
        # A slip of the pen: a token where its hash belongs.
        rewrite(tenants_file, f'[bob]\ntoken_sha256 = ["{BOB}"]')
        await wait_until(lambda: "the tenants stay as they were" in caplog.text)
    assert "GetModelInfo OK" in caplog.text
    assert "Tokenize UNAUTHENTICATED" in caplog.text
    secrets = [ALICE, BOB, MALLORY, *(sha256(token.encode()).hexdigest() for token in (ALICE, BOB))]
    assert [secret for secret in secrets if secret in caplog.text] == []


async def test_without_reflection_nobody_learns_the_contract(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    folder = write_model_folder(tmp_path / "model")
    async with running_frontend(folder, tmp_path, reflection=False) as bench:
        call: Any = bench.channel.unary_unary(f"/{REFLECT}")
        code, _ = await end_of(call(b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_what_a_stranger_sends_is_never_parsed() -> None:
    known: Any = grpc.unary_unary_rpc_method_handler(nobody_calls, pb.AbortRequest.FromString)

    async def find(_: grpc.HandlerCallDetails) -> Any:
        return known

    interceptor = AuthInterceptor(lambda: read_tenants(tenant("alice", ALICE)), note_call=print)
    for token, deserializer in ((ALICE, known.request_deserializer), (MALLORY, None)):
        details: Any = CallDetails(
            method="/stepwire.v1.GenerationService/Abort",
            invocation_metadata=(("authorization", f"Bearer {token}"),),
        )
        handler = await interceptor.intercept_service(find, details)
        assert handler is not None
        assert handler.request_deserializer is deserializer


async def nobody_calls(_request: Any, _context: Any) -> None:
    raise AssertionError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDetails:
    """As gRPC gives them to an interceptor."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


async def test_a_front_end_does_not_go_on_without_looking_at_the_file(
    folder: Path, tmp_path: Path, tenants_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: TenantsFile) -> None:
        raise RuntimeError("cannot look")

    monkeypatch.setattr(TenantsFile, "watch", fail)
    config = SchedulerConfig(model=str(folder), port=0, tenants_file=str(tenants_file))
    model, socket_path = ServedModel.load(config), str(tmp_path / "engine.sock")
    frontend = Frontend(config, model, frontend_index=0, socket_path=socket_path)
    with pytest.raises(RuntimeError, match="cannot look"):
        await asyncio.wait_for(frontend.serve(asyncio.Event(), print), LIMIT_SECONDS)
