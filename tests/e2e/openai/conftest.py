"""One gateway in front of two schedulers: of a tiny random model, and of scripted Qwen3 tokens.

Knows nothing about any test. A scripted answer is chosen by the seed of the request: it is where the answer
begins in the script.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from benchmarks.split_text import write_qwen3_folder
from tools.gateway import Gateway, running_gateway
from tools.services import Services, running

SCRIPTED_MODEL = "qwen3-scripted"
ANSWERS = {
    "thinking": "<think>\nThe capital is asked.\n</think>\n\nIt is Paris.<|im_end|>",
    "plain": "It is Paris: é, 日本, 😀.<|im_end|>",
    "tool": (
        '<think>\nI need the weather.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Paris", "unit": "celsius"}}\n</tool_call><|im_end|>'
    ),
    "two tools": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call><|im_end|>'
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiBench:
    """The official client of a gateway, and what to ask it for."""

    client: openai.OpenAI
    gateway: Gateway
    real_model: str
    scripted_model: str
    seed_of: dict[str, int]
    """Of each scripted answer."""
    num_tokens_of: dict[str, int]


@pytest.fixture(scope="session")
def bench(
    services: Services, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAiBench]:
    folder = tmp_path_factory.mktemp("qwen3")
    write_qwen3_folder(folder)
    ids_of = _encode_answers(folder)
    script = folder / "script.npy"
    np.save(script, np.concatenate(list(ids_of.values())).astype(np.int32))
    ends = np.cumsum([len(ids) for ids in ids_of.values()]).tolist()
    common = ("--model", str(folder), "--port", "0")
    with (
        running("tests.stand_in_process", *common, "--script", str(script), "--counts-from-output") as worker,
        running(
            "scheduler_svc", *common, "--worker", worker.address(), "--served-model-name", SCRIPTED_MODEL
        ) as scheduler,
        running_gateway(
            services.address,
            scheduler.address(),
            flags=("--tool-call-parser", "qwen", "--reasoning-parser", "qwen3"),
        ) as gateway,
        openai.DefaultHttpxClient(trust_env=False) as http_client,
    ):
        yield OpenAiBench(
            client=openai.OpenAI(
                base_url=gateway.api_url, api_key="none", max_retries=0, http_client=http_client
            ),
            gateway=gateway,
            real_model=model_folder.name,
            scripted_model=SCRIPTED_MODEL,
            seed_of={name: end - len(ids_of[name]) for name, end in zip(ids_of, ends, strict=True)},
            num_tokens_of={name: len(ids) for name, ids in ids_of.items()},
        )


def _encode_answers(folder: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {name: tokenizer.encode(text, add_special_tokens=False).ids for name, text in ANSWERS.items()}
