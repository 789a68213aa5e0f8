"""A case's prompts as text: what a client that sends text would send for about as many tokens.

Random token ids rarely survive being text, so each prompt is turned into text, back, cut to its length
and turned into text again. Knows nothing about how a server tokenizes.
"""

import asyncio
from collections.abc import Callable

from stepwire_client import AsyncStepwireClient

MAX_CALLS_AT_ONCE = 32


async def prompts_as_text(
    make_client: Callable[[], AsyncStepwireClient], prompts: list[list[int]]
) -> list[str]:
    """Ask the server of ``make_client()`` for the texts.

    Raises:
        StepwireClientError: if it refuses or fails.
    """
    may_call = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
    async with make_client() as client:

        async def as_text(prompt: list[int]) -> str:
            async with may_call:
                text = await client.detokenize(prompt)
                token_ids = (await client.tokenize(text)).token_ids
                return await client.detokenize(token_ids[: len(prompt)])

        return list(await asyncio.gather(*map(as_text, prompts)))
