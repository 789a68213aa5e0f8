"""From a case to what client processes send: one serialized request each, made before the clock starts.

Knows nothing about processes or channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire_client import GenerationRequest
from stepwire_client.encode import encode_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, ready to be sent."""

    index: int
    request_id: str
    payload: bytes
    num_output_tokens: int
    due_seconds: float | None = None
    """When it is to be sent, from the start of the round; None: as soon as its turn comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What all requests have in common."""

    temperature: float
    is_many: bool = False
    """For the stream of GenerateMany."""
    has_shared_prefixes: bool = False
    """Requests of one round may find each other's blocks in the prefix cache."""


def make_jobs(
    prompts: Sequence[str | list[int]],
    num_outs: Sequence[int],
    *,
    options: JobOptions,
    round_id: str,
    arrivals: Sequence[float] | None = None,
) -> list[Job]:
    """Serialize the requests of one round.

    Args:
        prompts: text or token ids.
        num_outs: tokens to generate for each.
        options: what is the same for all.
        round_id: no other round of any run has it, so that none finds the blocks of another.
        arrivals: when each is to be sent.
    """
    jobs = []
    for index, (prompt, num_out) in enumerate(zip(prompts, num_outs, strict=True)):
        request_id = f"{round_id}/{index}"
        request = GenerationRequest.of(
            prompt,
            request_id=request_id,
            temperature=options.temperature,
            seed=index + 1,
            max_tokens=num_out,
            ignore_eos=True,
            cache_salt=round_id if options.has_shared_prefixes else request_id,
        )
        message = encode_request(request)
        wrapped = service_pb.GenerateManyRequest(generate=message) if options.is_many else message
        jobs.append(
            Job(
                index=index,
                request_id=request_id,
                payload=wrapped.SerializeToString(),
                num_output_tokens=num_out,
                due_seconds=None if arrivals is None else arrivals[index],
            )
        )
    return jobs
