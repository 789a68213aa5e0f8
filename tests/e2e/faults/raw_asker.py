"""Asks for a request by the bare stub, and goes on after a break as docs/protocol.md tells any client to.

Checks each status on the way: it must be one of the documented, with the hints that go with it. Knows
nothing about the Python client's own way to resume.
"""

import asyncio
import time
from collections.abc import Mapping

import grpc
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub
from stepwire_client import Delta
from stepwire_client.decode import decode_event
from stepwire_client.encode import encode_request
from stepwire_client.errors import error_of_rpc

from tests.e2e.faults.askers import ASK_AGAIN_SECONDS, GIVE_UP_SECONDS, Place
from tests.e2e.faults.cases import text_of, token_ids_of
from tests.e2e.faults.verdicts import Told

CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


async def ask_raw(place: Place, told: Told, *, gives_seed: bool = True) -> None:
    """Ask for one request and read to the end, over as many streams as it takes."""
    give_up_seconds = time.monotonic() + GIVE_UP_SECONDS
    request = encode_request(place.catalogue[told.case].request(f"raw-{id(told)}"))
    if not gives_seed:
        request.sampling.ClearField("seed")
    has_begun = False
    async with grpc.aio.insecure_channel(place.address, options=CHANNEL_OPTIONS) as channel:
        while (error := await _read_stream(channel, request, told, place)) is not None:
            if told.events and not isinstance(told.events[-1], Delta):
                return  # only the status was lost
            how = _how_to_go_on(error, told)
            if how is None or time.monotonic() > give_up_seconds:
                told.events.append(error_of_rpc(error))
                return
            if how == "resume" or has_begun:
                has_begun = True
                told.num_resumes += 1
                request.resume.Clear()
                request.resume.token_ids.extend(token_ids_of(told.events))
                request.resume.num_text_bytes = len(text_of(told.events).encode())
            else:
                told.num_refusals += 1
            await asyncio.sleep(ASK_AGAIN_SECONDS)


async def _read_stream(
    channel: grpc.aio.Channel, request: pb.GenerateRequest, told: Told, place: Place
) -> grpc.aio.AioRpcError | None:
    """Read one stream; return how it broke, None where it ended well."""
    call = GenerationServiceStub(channel).Generate(request)
    is_first = True
    try:
        async for message in call:
            if is_first:
                is_first = False
                _take_seed(message, request, told)
            event = decode_event(message)
            if isinstance(event, Delta):
                place.progress.note(len(event.token_ids))
            if event is not None:
                told.events.append(event)
    except grpc.aio.AioRpcError as error:
        return error
    return None


def _take_seed(message: pb.GenerateResponse, request: pb.GenerateRequest, told: Told) -> None:
    """Keep the seed that was drawn, to be sent again; one that was sent must be told again."""
    if not message.HasField("seed"):
        told.faults.append("the first message tells no seed")
    elif not request.sampling.HasField("seed"):
        told.seed = request.sampling.seed = message.seed
    elif message.seed != request.sampling.seed:
        told.faults.append(f"the seed {request.sampling.seed} was sent, but {message.seed} is told")


def _how_to_go_on(error: grpc.aio.AioRpcError, told: Told) -> str | None:
    """Tell what a status asks for: "resume", "ask again", or nothing, which is the end."""
    trailers: Mapping[str, str] = {str(k): str(v) for k, v in error.trailing_metadata() or ()}
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    if "x-request-id" not in trailers:
        return "resume"  # made by gRPC: the connection is lost, or could not be made
    if "retry-after-ms" not in trailers:
        told.faults.append(f"UNAVAILABLE without a hint: {error.details()}")
    if "stepwire-resume-seed" not in trailers:
        return "ask again"
    num_told = len(token_ids_of(told.events))
    if trailers.get("stepwire-resume-num-tokens") != str(num_told):
        told.faults.append(f"{num_told} tokens were told, but the status says {dict(trailers)}")
    return "resume"
