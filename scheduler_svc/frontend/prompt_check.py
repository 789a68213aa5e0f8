"""Checks a prompt as it was given, and as the chat template rendered it, against its limits; pure.

Each refusal names the field by its full path, its value and the limit. Knows nothing about protobuf, the
tokenizer or how many tokens a prompt may have (request_check.py).
"""

import numpy as np

from scheduler_svc.core.types import Int64Array
from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.values import ChatInput, PromptInput, TextInput, TokenIdsInput

DEFAULT_MAX_PROMPT_BYTES = 8 * 1024 * 1024
ENTRY_BYTES = 64
"""What a message of a chat, or a value in its arguments, counts beyond its own bytes: about what a template
puts around a message (Qwen3: 24, Llama 3: 48), so that the number of empty ones is bounded too.
"""


def check_prompt_input(
    prompt: PromptInput | None, vocab_size: int, *, max_bytes: int = DEFAULT_MAX_PROMPT_BYTES
) -> None:
    """Check a prompt as it was given, before it is rendered and tokenized.

    Raises:
        InvalidRequestError: if there is none, an empty or too long one, or ids outside the vocabulary.
    """
    match prompt:
        case None:
            raise InvalidRequestError.of("input", None, "be one of text, token_ids and chat")
        case TextInput(text=text):
            if not text:
                raise InvalidRequestError.of("text", text, "not be empty")
            _check_bytes("text", _num_bytes(text), max_bytes)
        case TokenIdsInput(token_ids=token_ids):
            if not len(token_ids):
                raise InvalidRequestError.of("token_ids.ids", [], "hold at least one token id")
            check_token_ids("token_ids.ids", token_ids, vocab_size=vocab_size)
        case ChatInput(messages=messages):
            if not messages:
                raise InvalidRequestError.of("chat.messages", [], "hold at least one message")
            _check_bytes("chat", num_chat_bytes(prompt), max_bytes)
            for index, (role, _) in enumerate(messages):
                if not role:
                    raise InvalidRequestError.of(f"chat.messages[{index}].role", role, "not be empty")


def check_rendered(text: str, *, max_bytes: int) -> None:
    """Check what the chat template made of a chat, before it is tokenized.

    Raises:
        InvalidRequestError: if it is too long.
    """
    _check_bytes("chat as rendered", _num_bytes(text), max_bytes)


def num_chat_bytes(chat: ChatInput) -> int:
    """Tell what a chat counts: its bytes, and ``ENTRY_BYTES`` for each message and value of its arguments."""
    texts = (text for message in chat.messages for text in message)
    # Each value follows one of these. Those inside of strings count too: telling them apart is parsing, which
    # takes a second for 8 MiB of lists.
    num_values = sum(map(chat.template_arguments_json.count, ",[{"))
    num_own_bytes = _num_bytes(chat.template_arguments_json) + sum(map(_num_bytes, texts))
    return num_own_bytes + ENTRY_BYTES * (len(chat.messages) + num_values)


def check_token_ids(field: str, token_ids: Int64Array, *, vocab_size: int, first_index: int = 0) -> None:
    """Check that all ids are in the vocabulary; the first of them is the field's ``first_index``-th.

    Raises:
        InvalidRequestError: naming the first that is not.
    """
    outside = np.flatnonzero((token_ids < 0) | (token_ids >= vocab_size))
    if len(outside):
        index = int(outside[0])
        raise outside_vocabulary(
            f"{field}[{first_index + index}]", int(token_ids[index]), vocab_size=vocab_size
        )


def outside_vocabulary(field: str, token_id: int, *, vocab_size: int) -> InvalidRequestError:
    """Build the error for an id that the model has no token for."""
    return InvalidRequestError.of(field, token_id, f"be in [0, {vocab_size}), the vocabulary")


def _check_bytes(field: str, num_bytes: int, highest: int) -> None:
    if num_bytes > highest:
        raise InvalidRequestError.of(
            f"number of bytes in {field}", num_bytes, f"be at most max_prompt_bytes, {highest}"
        )


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
