"""Brings a request's output to where a broken stream had got, so that a new one tells the rest.

The tokens go through the request's own detokenizer and stop strings, which then stand as if they had
made them. Pure but for giving way to other requests. Knows nothing about streams or the engine.
"""

import asyncio

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.values import AskedResume, CheckedRequest, Ended

_NUM_TOKENS_BETWEEN_YIELDS = 8192
"""A long output lets other requests run after this many tokens, about 1 ms."""


async def resume_generation(generation: Generation, checked: CheckedRequest) -> Ended | None:
    """Take in the output that was told; return how the request has ended, where it has.

    Raises:
        InvalidRequestError: if that output goes on after a stop string, or has less text than was told.
    """
    resume = checked.asked.resume
    if resume is None:
        return None
    token_ids = resume.token_ids.tolist()
    for index, token_id in enumerate(token_ids, start=1):
        if generation.push(token_id) and index < len(token_ids):
            stop_string = generation.matched_stop_string
            raise InvalidRequestError(
                f"resume.token_ids go on after token {index}, but its text ends the request: {stop_string!r}"
            )
        if index % _NUM_TOKENS_BETWEEN_YIELDS == 0:
            await asyncio.sleep(0)
    ended = _end_of(generation, checked, token_ids)
    _leave_out_told(generation, resume, is_ended=ended is not None)
    return ended


def _end_of(generation: Generation, checked: CheckedRequest, token_ids: list[int]) -> Ended | None:
    """Find out, as the engine would have, whether the last token ended the request."""
    if generation.matched_stop_string is not None:
        return Ended(reason=FinishReason.STOP_STRING)
    if len(token_ids) > checked.asked.stop.min_tokens and token_ids[-1] in checked.stop_token_ids:
        return Ended(reason=FinishReason.STOP_TOKEN, matched_stop_token_id=token_ids[-1])
    if len(token_ids) >= checked.max_output_tokens:
        return Ended(reason=FinishReason.LENGTH)
    return None


def _leave_out_told(generation: Generation, resume: AskedResume, *, is_ended: bool) -> None:
    """Keep, of the text so far, what the broken streams had not told."""
    told = generation.take()
    certain = b"" if told is None else told.text.encode()
    num_told = len(certain) if resume.num_text_bytes is None else resume.num_text_bytes
    if is_ended:
        # What is held back is told before the final message: the stream may have broken between the two.
        generation.close()
        rest = generation.take()
        certain += b"" if rest is None else rest.text.encode()
    if num_told > len(certain):
        limit = f"be at most {len(certain)}, the text of resume.token_ids"
        raise InvalidRequestError.of("resume.num_text_bytes", num_told, limit)
    try:
        generation.put_text(certain[num_told:].decode())
    except UnicodeDecodeError as error:
        raise InvalidRequestError.of(
            "resume.num_text_bytes", num_told, "not be inside a character"
        ) from error
