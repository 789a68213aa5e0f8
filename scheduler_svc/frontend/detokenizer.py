"""Incremental detokenizers: token ids in, valid UTF-8 text out, linear in the output length.

A token that ends inside a character is held back; a real U+FFFD is text like any other and is
never held, because the decision looks at bytes, not at text. All deltas together equal the decode
of all ids at once. Knows nothing about requests, stop strings or the event loop.
"""

import codecs
import json
import re
from contextlib import suppress
from typing import Any, Protocol

from tokenizers import Tokenizer

from scheduler_svc.errors import ModelFolderError
from scheduler_svc.frontend.tokenizer import ModelTokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Detokenizer(Protocol):
    """The text of one token stream."""

    def push(self, token_id: int) -> str:
        """Take one more token; return the text that is now certain."""

    def push_all(self, token_ids: list[int]) -> str:
        """Take more tokens; return the text that is now certain."""

    def flush(self) -> str:
        """Return what is left at the end: a half character becomes U+FFFD."""


class DetokenizerFactory:
    """Makes detokenizers for one tokenizer; what they share is computed once."""

    def __init__(self, model_tokenizer: ModelTokenizer, vocab_size: int) -> None:
        """Prepare for ids in [0, vocab_size).

        Raises:
            ModelFolderError: if the tokenizer's decoder mixes bytes with other steps.
        """
        self._tokenizer = model_tokenizer.tokenizer
        self._special_ids = model_tokenizer.special_token_ids()
        decoders = _decoder_types(self._tokenizer)
        self._is_byte_level = decoders == ["ByteLevel"]
        if "ByteLevel" in decoders and not self._is_byte_level:
            raise ModelFolderError(f"tokenizer.json: a decoder of {decoders} is not supported")
        if self._is_byte_level:
            self._pieces = _byte_level_pieces(self._tokenizer, vocab_size)
            self._pieces_without_special = list(self._pieces)
            for token_id in self._special_ids:
                if token_id < len(self._pieces):
                    self._pieces_without_special[token_id] = ""
        else:
            self._byte_of_id = _fallback_bytes(self._tokenizer) if "ByteFallback" in decoders else {}

    def make(self, *, skips_special_tokens: bool) -> Detokenizer:
        """Return a detokenizer for a new token stream."""
        if self._is_byte_level:
            return ByteLevelDetokenizer(
                self._pieces_without_special if skips_special_tokens else self._pieces
            )
        skipped_ids = self._special_ids if skips_special_tokens else frozenset[int]()
        return AnchoredDetokenizer(self._tokenizer, self._byte_of_id, skipped_ids)


class ByteLevelDetokenizer:
    """For byte-level BPE (Qwen3, Llama 3, SmolLM2): each token is a fixed run of bytes.

    Most tokens are whole characters and their text is looked up; the others go through an
    incremental UTF-8 decoder that keeps the unfinished character.
    """

    def __init__(self, pieces: list[str | bytes]) -> None:
        """Take the pieces by token id: text where it is whole characters, else bytes."""
        self._pieces = pieces
        self._decoder = _Utf8Decoder("replace")
        self._is_inside_character = False

    def push(self, token_id: int) -> str:
        """Take one more token; return the text that is now certain."""
        piece = self._pieces[token_id]
        if isinstance(piece, str) and not self._is_inside_character:
            return piece
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self._is_inside_character = bool(self._decoder.getstate()[0])
        return text

    def push_all(self, token_ids: list[int]) -> str:
        """Take more tokens; return the text that is now certain."""
        if not self._is_inside_character:
            with suppress(TypeError):  # bytes among them, which go the longer way
                return "".join([self._pieces[token_id] for token_id in token_ids])  # type: ignore[misc]
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        """Return what is left at the end: a half character becomes U+FFFD."""
        self._is_inside_character = False
        return self._decoder.decode(b"", final=True)


class AnchoredDetokenizer:
    """For all other decoders (SentencePiece style, WordPiece, word level).

    A token's text depends on whether another stands before it (a leading space is stripped at the
    start only), so it is what the token adds to the decode of the token before it, the anchor.
    Byte tokens such as <0xE2> go through an incremental UTF-8 decoder instead: a byte that fits no
    character becomes U+FFFD by itself, where the library replaces its whole run, whose text is told.
    """

    def __init__(
        self, tokenizer: Tokenizer, byte_of_id: dict[int, bytes], skipped_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._byte_of_id = byte_of_id
        self._skipped_ids = skipped_ids
        self._decoder = _Utf8Decoder("replace")
        self._anchor: list[int] = []

    def push(self, token_id: int) -> str:
        """Take one more token; return the text that is now certain."""
        if token_id in self._skipped_ids or self._tokenizer.id_to_token(token_id) is None:
            return ""
        byte = self._byte_of_id.get(token_id)
        if byte is not None:
            self._anchor = [token_id]
            return self._decoder.decode(byte)
        text = self.flush() + self._added_text(token_id)
        self._anchor = [token_id]
        return text

    def push_all(self, token_ids: list[int]) -> str:
        """Take more tokens; return the text that is now certain."""
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        """Return what is left at the end: a half character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _added_text(self, token_id: int) -> str:
        before: str = self._tokenizer.decode(self._anchor, skip_special_tokens=False)
        after: str = self._tokenizer.decode([*self._anchor, token_id], skip_special_tokens=False)
        return after[len(before) :]


def _decoder_types(tokenizer: Tokenizer) -> list[str]:
    if tokenizer.decoder is None:
        return []
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps]


def _byte_level_pieces(tokenizer: Tokenizer, vocab_size: int) -> list[str | bytes]:
    byte_of_character = _byte_alphabet()
    num_ids = max(vocab_size, 1 + max(tokenizer.get_vocab().values(), default=0))
    tokens = map(tokenizer.id_to_token, range(num_ids))
    return [_byte_level_piece(token, byte_of_character) for token in tokens]


def _byte_level_piece(token: str | None, byte_of_character: dict[str, int]) -> str | bytes:
    if token is None:  # the model's vocabulary is padded past the tokenizer's
        return ""
    try:
        piece = bytes([byte_of_character[character] for character in token])
    except KeyError:  # an added token with a character outside the alphabet stands for itself
        return token
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return piece


def _byte_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-ins to the bytes they stand for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _fallback_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    found = {}
    for token, token_id in tokenizer.get_vocab().items():
        if match := _BYTE_TOKEN.fullmatch(token):
            found[token_id] = bytes.fromhex(match[1])
    return found
