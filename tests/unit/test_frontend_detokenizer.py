"""Detokenizers: valid text always, nothing lost, nothing invented, work linear in the length."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scheduler_svc.errors import ModelFolderError
from scheduler_svc.frontend.detokenizer import ByteLevelDetokenizer, Detokenizer, DetokenizerFactory
from scheduler_svc.frontend.tokenizer import ModelTokenizer

FAMILY = "👨‍👩‍👧"
NUM_PLAIN = 256


def byte_level_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes themselves; then one merged token and three added ones."""
    alphabet = {}
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocab = {alphabet[byte]: byte for byte in range(256)} | {"hi": 256}
    tokenizer = Tokenizer(models.BPE(vocab, [("h", "i")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<end>", special=True), AddedToken("a b"), AddedToken("é")])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def factory(tokenizer: Tokenizer) -> DetokenizerFactory:
    return DetokenizerFactory(ModelTokenizer(tokenizer, {}), vocab_size=300)


def deltas(detokenizer: Detokenizer, token_ids: Iterable[int]) -> list[str]:
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


def test_a_character_split_over_tokens_is_held_until_it_is_whole(factory: DetokenizerFactory) -> None:
    detokenizer = factory.make(skips_special_tokens=True)
    assert deltas(detokenizer, "a€b".encode()) == ["a", "", "", "€", "b", ""]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_many_tokens_at_once_make_the_same_text(factory: DetokenizerFactory, size: int) -> None:
    token_ids = [*"a€b".encode(), *b"\xf0\x9f", *FAMILY.encode(), *b"\xf0\x9f"]
    detokenizer = factory.make(skips_special_tokens=True)
    runs = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    got = "".join(map(detokenizer.push_all, runs)) + detokenizer.flush()
    assert got == f"a€b\ufffd{FAMILY}\ufffd"


def test_an_emoji_sequence_comes_code_point_by_code_point(factory: DetokenizerFactory) -> None:
    got = [text for text in deltas(factory.make(skips_special_tokens=True), FAMILY.encode()) if text]
    assert got == ["👨", "\u200d", "👩", "\u200d", "👧"]


def test_a_real_replacement_character_flows(factory: DetokenizerFactory) -> None:
    got = deltas(factory.make(skips_special_tokens=True), b"\xef\xbf\xbdx")
    assert got == ["", "", "\ufffd", "x", ""]


def test_a_half_character_at_the_end_becomes_one_replacement_character(factory: DetokenizerFactory) -> None:
    assert deltas(factory.make(skips_special_tokens=True), b"a\xf0\x9f") == ["a", "", "", "\ufffd"]


def test_a_broken_character_is_told_as_soon_as_it_is_known_broken(factory: DetokenizerFactory) -> None:
    assert deltas(factory.make(skips_special_tokens=True), b"\xe2\x82a") == ["", "", "\ufffda", ""]


def test_special_tokens_are_told_or_skipped(factory: DetokenizerFactory) -> None:
    assert deltas(factory.make(skips_special_tokens=True), [256, 257, 33]) == ["hi", "", "!", ""]
    assert deltas(factory.make(skips_special_tokens=False), [256, 257, 33]) == ["hi", "<end>", "!", ""]


def test_a_skipped_special_token_inside_a_character_does_not_break_it(factory: DetokenizerFactory) -> None:
    assert deltas(factory.make(skips_special_tokens=True), [0xC3, 257, 0xA9]) == ["", "", "é", ""]
    assert deltas(factory.make(skips_special_tokens=False), [0xC3, 257, 0xA9]) == [
        "",
        "\ufffd<end>",
        "\ufffd",
        "",
    ]


def test_an_added_token_outside_the_byte_alphabet_stands_for_itself(factory: DetokenizerFactory) -> None:
    assert deltas(factory.make(skips_special_tokens=True), [258]) == ["a b", ""]


def test_ids_of_a_padded_vocabulary_have_no_text(factory: DetokenizerFactory) -> None:
    assert deltas(factory.make(skips_special_tokens=False), [33, 299, 34]) == ["!", "", '"', ""]


@given(token_ids=st.lists(st.integers(0, 259), max_size=40), skips=st.booleans())
def test_all_deltas_together_are_the_full_decode(token_ids: list[int], skips: bool) -> None:
    tokenizer = byte_level_tokenizer()
    detokenizer = DetokenizerFactory(ModelTokenizer(tokenizer, {}), 260).make(skips_special_tokens=skips)
    got = deltas(detokenizer, token_ids)
    assert "".join(got) == tokenizer.decode(token_ids, skip_special_tokens=skips)
    for delta in got:
        delta.encode()  # no lone surrogates: valid UTF-8


class CountingDecoder:
    """Counts the bytes that an incremental decoder is given."""

    def __init__(self, decoder: object) -> None:
        self._decoder = decoder
        self.num_bytes = 0

    def decode(self, data: bytes, final: bool = False) -> str:
        self.num_bytes += len(data)
        text: str = self._decoder.decode(data, final)  # type: ignore[attr-defined]
        return text

    def getstate(self) -> tuple[bytes, int]:
        state: tuple[bytes, int] = self._decoder.getstate()  # type: ignore[attr-defined]
        return state


def test_work_is_linear_in_the_output(factory: DetokenizerFactory) -> None:
    detokenizer = factory.make(skips_special_tokens=True)
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    counting = CountingDecoder(detokenizer._decoder)
    detokenizer._decoder = counting  # type: ignore[assignment]
    data = (FAMILY * 2000).encode()
    assert "".join(deltas(detokenizer, data)) == FAMILY * 2000
    assert counting.num_bytes == len(data)


# ---- other decoders ----

SENTENCEPIECE_VOCAB = [
    "<unk>",
    "</s>",
    "▁Hello",
    "▁",
    "world",
    "!",
    "�",
    *[f"<0x{byte:02X}>" for byte in range(256)],
]
FIRST_BYTE = 7


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    vocab = {token: index for index, token in enumerate(SENTENCEPIECE_VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def sentencepiece_deltas(tokenizer: Tokenizer, token_ids: list[int], *, skips: bool = True) -> list[str]:
    factory = DetokenizerFactory(ModelTokenizer(tokenizer, {}), len(SENTENCEPIECE_VOCAB))
    return deltas(factory.make(skips_special_tokens=skips), token_ids)


def test_sentencepiece_strips_the_first_space_only(sentencepiece: Tokenizer) -> None:
    assert sentencepiece_deltas(sentencepiece, [2, 2, 3, 3, 4]) == ["Hello", " Hello", " ", " ", "world", ""]


def test_sentencepiece_bytes_make_characters(sentencepiece: Tokenizer) -> None:
    ids = [2, *[FIRST_BYTE + byte for byte in "€é".encode()], 5]
    assert sentencepiece_deltas(sentencepiece, ids) == ["Hello", "", "", "€", "", "é", "!", ""]
    assert "".join(sentencepiece_deltas(sentencepiece, ids)) == sentencepiece.decode(ids)


def test_sentencepiece_half_character_before_text_and_at_the_end(sentencepiece: Tokenizer) -> None:
    assert sentencepiece_deltas(sentencepiece, [2, FIRST_BYTE + 0xE2, 5, FIRST_BYTE + 0xE2]) == [
        "Hello", "", "\ufffd!", "", "\ufffd",
    ]  # fmt: skip


def test_sentencepiece_real_replacement_character_flows(sentencepiece: Tokenizer) -> None:
    assert sentencepiece_deltas(sentencepiece, [2, 6, 5]) == ["Hello", "\ufffd", "!", ""]


def test_sentencepiece_special_tokens_are_told_or_skipped(sentencepiece: Tokenizer) -> None:
    assert sentencepiece_deltas(sentencepiece, [2, 1, 2]) == ["Hello", "", " Hello", ""]
    assert sentencepiece_deltas(sentencepiece, [2, 1, 2], skips=False) == ["Hello", "</s>", " Hello", ""]


def test_sentencepiece_deltas_are_the_full_decode(sentencepiece: Tokenizer) -> None:
    rng = random.Random(1)
    characters = ["€", "é", "👩", "\ufffd"]
    for _ in range(200):
        ids: list[int] = []
        for _ in range(rng.randrange(12)):
            if rng.random() < 0.5:
                ids.append(rng.randrange(FIRST_BYTE))
            else:
                ids.extend(FIRST_BYTE + byte for byte in rng.choice(characters).encode())
        for skips in (True, False):
            want = sentencepiece.decode(ids, skip_special_tokens=skips)
            assert "".join(sentencepiece_deltas(sentencepiece, ids, skips=skips)) == want


def test_word_level_tokens_are_joined_by_spaces() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    factory = DetokenizerFactory(ModelTokenizer(tokenizer, {}), 2)
    assert deltas(factory.make(skips_special_tokens=True), [0, 1, 0]) == ["a", " b", " a", ""]


def test_a_decoder_that_mixes_bytes_with_other_steps_is_refused(tokenizer: Tokenizer) -> None:
    mixed = Tokenizer.from_str(tokenizer.to_str())
    mixed.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    with pytest.raises(ModelFolderError, match=r"tokenizer.json: a decoder of \['ByteLevel', 'Strip'\]"):
        DetokenizerFactory(ModelTokenizer(mixed, {}), 300)


def test_the_alphabet_is_the_library_s_own(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocab = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert set(pre_tokenizers.ByteLevel.alphabet()) == {token for token in vocab if len(token) == 1}
