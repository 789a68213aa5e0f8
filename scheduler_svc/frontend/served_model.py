"""The model that a front end serves: what its folder says and what follows for requests.

Reads the folder once, at start. Knows nothing about gRPC or about the engine's socket, and loads no
weights.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.config import ModelConfig, read_model_config
from model.errors import ModelFolderError as BrokenModelFolderError
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.core.types import Int32Array
from scheduler_svc.errors import InvalidRequestError, ModelFolderError
from scheduler_svc.frontend.chat_template import ChatTemplate
from scheduler_svc.frontend.detokenizer import DetokenizerFactory
from scheduler_svc.frontend.prompt_check import (
    check_prompt_input,
    check_rendered,
    check_token_ids,
    num_chat_bytes,
)
from scheduler_svc.frontend.request_check import RequestLimits
from scheduler_svc.frontend.tokenizer import ModelTokenizer
from scheduler_svc.frontend.values import ChatInput, EngineFacts, PromptInput, TextInput, TokenIdsInput

_NUM_TOKENS_BETWEEN_YIELDS = 8192
"""A long Detokenize lets other requests run after this many tokens, about 1 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """All that a front end needs of its model folder."""

    name: str
    folder: Path
    config: ModelConfig
    tokenizer: ModelTokenizer
    detokenizers: DetokenizerFactory
    chat_template: ChatTemplate | None
    max_model_len: int
    """Most tokens of one request as far as the model and the flags go; the worker may allow fewer."""
    max_prompt_tokens: int
    """Most tokens of a prompt; 0: as many as leave room for output."""
    max_prompt_bytes: int
    """Most bytes of a prompt before it is tokenized."""

    @classmethod
    def load(cls, config: SchedulerConfig) -> "ServedModel":
        """Read the folder ``config.model``.

        Raises:
            ModelFolderError: naming the file or parameter that is missing or broken.
        """
        folder = Path(config.model)
        try:
            model_config = read_model_config(folder)
        except BrokenModelFolderError as error:
            raise ModelFolderError(str(error)) from error
        tokenizer = ModelTokenizer.load(folder)
        longest = model_config.max_position_embeddings
        return cls(
            name=config.served_model_name or folder.resolve().name,
            folder=folder,
            config=model_config,
            tokenizer=tokenizer,
            detokenizers=DetokenizerFactory(tokenizer, model_config.vocab_size),
            chat_template=ChatTemplate.load(folder, tokenizer.named_tokens),
            max_model_len=min(longest, config.max_model_len) if config.max_model_len else longest,
            max_prompt_tokens=config.max_prompt_tokens,
            max_prompt_bytes=config.max_prompt_bytes,
        )

    def limits(self, facts: EngineFacts | None, *, max_quota_tokens: int = 0) -> RequestLimits:
        """Join the model's limits with what the engine told so far, and with a caller's quota."""
        return RequestLimits(
            vocab_size=self.config.vocab_size,
            eos_token_ids=self.config.eos_token_ids,
            max_model_len=(facts.max_model_len if facts else 0) or self.max_model_len,
            max_pool_tokens=facts.max_pool_tokens if facts else 0,
            max_prompt_tokens=self.max_prompt_tokens,
            max_quota_tokens=max_quota_tokens,
            num_unknown_groups=facts.num_unknown_groups if facts else 0,
            widest_model_len=self.max_model_len,
            max_prompt_bytes=self.max_prompt_bytes,
        )

    async def read_prompt(self, prompt: PromptInput | None) -> tuple[str, Int32Array]:
        """Turn a prompt into its text (empty for token ids) and token ids.

        Raises:
            InvalidRequestError: if it is missing, empty, too long, as given or rendered, outside the
                vocabulary or does not fit the chat template.
        """
        check_prompt_input(prompt, self.config.vocab_size, max_bytes=self.max_prompt_bytes)
        assert prompt is not None, "a missing prompt was refused"
        if isinstance(prompt, TokenIdsInput):
            return "", prompt.token_ids.astype(np.int32)
        text = prompt.text if isinstance(prompt, TextInput) else await self._render(prompt)
        # A rendered chat holds its special tokens already.
        is_text = isinstance(prompt, TextInput)
        token_ids = await self.tokenizer.encode_async(text, adds_special_tokens=is_text)
        # Folders exist whose tokenizer knows tokens that the model has no embedding for.
        if max(token_ids, default=0) >= self.config.vocab_size:
            field = "text as tokens" if is_text else "chat as tokens"
            check_token_ids(field, np.array(token_ids, np.int64), vocab_size=self.config.vocab_size)
        return text, np.array(token_ids, np.int32)

    async def _render(self, chat: ChatInput) -> str:
        template = self.chat_template
        if template is None:
            raise InvalidRequestError("chat is set, but the model has no chat template: send text")

        def render() -> str:
            text = template.render(chat)
            check_rendered(text, max_bytes=self.max_prompt_bytes)
            return text

        return await self.tokenizer.run_by_length(render, length=num_chat_bytes(chat))

    async def detokenize(self, token_ids: Sequence[int], *, skips_special_tokens: bool) -> str:
        """Turn token ids into text, piece by piece: all at once, millions would hold up the event loop.

        Raises:
            InvalidRequestError: if an id is outside the vocabulary.
        """
        detokenizer = self.detokenizers.make(skips_special_tokens=skips_special_tokens)
        texts: list[str] = []
        for start in range(0, len(token_ids), _NUM_TOKENS_BETWEEN_YIELDS):
            chunk = list(token_ids[start : start + _NUM_TOKENS_BETWEEN_YIELDS])
            check_token_ids(
                "token_ids", np.array(chunk, np.int64), vocab_size=self.config.vocab_size, first_index=start
            )
            texts.append(detokenizer.push_all(chunk))
            await asyncio.sleep(0)
        return "".join([*texts, detokenizer.flush()])
