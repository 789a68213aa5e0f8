"""The tokenizer of a model folder: the ids transformers gives, and clear start-up errors."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from scheduler_svc.errors import ModelFolderError
from scheduler_svc.frontend.detokenizer import DetokenizerFactory
from scheduler_svc.frontend.tokenizer import ModelTokenizer

VOCAB = {"<s>": 0, "hello": 1, "world": 2, "<unk>": 3, "</s>": 4}


def write_tokenizer(folder: Path, *, adds_bos: bool = False) -> None:
    tokenizer = Tokenizer(models.WordLevel(VOCAB, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=8)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))


def test_the_post_processor_adds_bos_to_plain_text_only(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, adds_bos=True)
    tokenizer = ModelTokenizer.load(tmp_path)
    assert tokenizer.encode("hello world", adds_special_tokens=True) == [0, 1, 2]
    assert tokenizer.encode("hello world", adds_special_tokens=False) == [1, 2]


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert ModelTokenizer.load(tmp_path).encode("hello world", adds_special_tokens=True) == [1, 2]


def test_named_tokens_are_special_and_known_by_name(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    settings = {
        "eos_token": {"content": "</s>"},
        "bos_token": "<s>",
        "pad_token": None,
        "add_bos_token": True,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = ModelTokenizer.load(tmp_path)
    assert tokenizer.named_tokens == {"eos_token": "</s>", "bos_token": "<s>"}
    assert tokenizer.special_token_ids() == {0, 4}


def test_special_tokens_map_is_read_where_the_config_lists_no_added_tokens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    tokenizer = ModelTokenizer.load(tmp_path)
    assert tokenizer.named_tokens == {"eos_token": "</s>"}
    assert tokenizer.special_token_ids() == {0, 4}


def added(content: str, *, special: bool) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, "special": special, **flags}


def test_added_tokens_of_the_config_are_added(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokens = {"5": added("<think>", special=False), "6": added("<end>", special=True)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    tokenizer = ModelTokenizer.load(tmp_path)
    assert tokenizer.encode("hello<think>world<end>", adds_special_tokens=False) == [1, 5, 2, 6]
    assert tokenizer.special_token_ids() == {0, 6}


def test_an_added_token_whose_id_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokens = {"9": added("<end>", special=True)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    with pytest.raises(ModelFolderError, match=r"tokenizer_config\.json gives '<end>' the id 9, but .* is 5"):
        ModelTokenizer.load(tmp_path)


@pytest.mark.parametrize("tokens", [{"5": "<end>"}, {"five": added("<end>", special=True)}, ["<end>"]])
def test_added_tokens_that_cannot_be_read_name_the_file(tmp_path: Path, tokens: Any) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    with pytest.raises(
        ModelFolderError, match=r"tokenizer_config\.json: added_tokens_decoder cannot be read"
    ):
        ModelTokenizer.load(tmp_path)


def test_a_missing_tokenizer_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json is missing"):
        ModelTokenizer.load(tmp_path)


def test_a_broken_tokenizer_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        ModelTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"tokenizer_config\.json is no valid JSON"),
        ("[]", r"tokenizer_config\.json must hold a JSON object"),
    ],
)
def test_broken_settings_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(ModelFolderError, match=message):
        ModelTokenizer.load(tmp_path)


async def test_long_texts_are_encoded_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    tokenizer = ModelTokenizer.load(tmp_path)
    threads: list[threading.Thread] = []
    encode = tokenizer.encode

    def spy(text: str, *, adds_special_tokens: bool) -> list[int]:
        threads.append(threading.current_thread())
        return encode(text, adds_special_tokens=adds_special_tokens)

    monkeypatch.setattr(tokenizer, "encode", spy)
    assert await tokenizer.encode_async("hello world", adds_special_tokens=True) == [1, 2]
    long = "hello " * 2000
    ids = await asyncio.gather(*[tokenizer.encode_async(long, adds_special_tokens=True) for _ in range(3)])
    assert ids == [[1] * 2000] * 3
    assert [thread is threading.main_thread() for thread in threads] == [True, False, False, False]
    tokenizer.close()


async def test_other_requests_go_on_while_a_long_text_is_encoded(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = ModelTokenizer.load(tmp_path)
    encoding = asyncio.create_task(tokenizer.encode_async("hello " * 400_000, adds_special_tokens=False))
    num_turns = 0
    while not encoding.done():
        await asyncio.sleep(0.005)
        num_turns += 1
    assert encoding.result() == [1] * 400_000
    assert num_turns >= 10
    tokenizer.close()


# ---- the real Qwen3 tokenizer, against transformers ----

TEXTS = [
    "The capital of France is Paris.",
    "Grüße aus München, où est Łódź? 你好，世界 👩‍👩‍👧 \ufffd नमस्ते",
    "  spaces\t\tand\n\n\nlines ",
    "<|im_start|>user<think>x</think><|endoftext|>",
    "e\u0301 cafe\u0301",
]


def test_qwen3_ids_and_text_equal_transformers(qwen3_folder: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415

    theirs = AutoTokenizer.from_pretrained(qwen3_folder)
    ours = ModelTokenizer.load(qwen3_folder)
    assert ours.named_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert ours.special_token_ids() == set(theirs.all_special_ids)
    detokenizers = DetokenizerFactory(ours, vocab_size=151_936)
    for text in TEXTS:
        ids = ours.encode(text, adds_special_tokens=True)
        assert ids == theirs(text)["input_ids"]
        for skips in (True, False):
            detokenizer = detokenizers.make(skips_special_tokens=skips)
            got = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
            assert got == theirs.decode(ids, skip_special_tokens=skips)


def test_a_byte_level_folder_round_trips(tmp_path: Path) -> None:
    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = ModelTokenizer.load(tmp_path)
    ids = ours.encode("naïve 👩 <end>", adds_special_tokens=True)
    detokenizer = DetokenizerFactory(ours, vocab_size=257).make(skips_special_tokens=False)
    assert "".join(map(detokenizer.push, ids)) == "naïve 👩 <end>"
