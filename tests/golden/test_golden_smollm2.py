"""SmolLM2-135M-Instruct's greedy ids in fp32 equal transformers', on real text of several languages.

Needs the demo's model (``make demo`` or ``make serve`` fetches it); without it these tests skip.
``make test`` runs one prompt, ``make test-long`` all.
"""

from collections.abc import Callable

import numpy as np
import pytest

from scheduler_svc.core.types import Request, SamplingParams
from tests.core_with_worker import CoreWithWorker, core_limits
from tools.fetch_smollm2 import DEFAULT_FOLDER
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker

NUM_TOKENS = 64
PROMPTS = [
    "What is the capital of France?",
    "Erzähle mir kurz, warum der Himmel blau ist.",
    "Écris une phrase sur la mer en hiver.",
    "Explica en dos frases qué es la fotosíntesis.",
    "日本で一番高い山は何ですか。",
    "Напиши короткое стихотворение о весне.",
    "请用一句话介绍北京。",
    "Write a Python function that reverses a list.",
]

Generate = Callable[[list[int]], list[int]]


@pytest.fixture(scope="module", autouse=True)
def _needs_the_model() -> None:
    if not (DEFAULT_FOLDER / "config.json").exists():
        pytest.skip(f"{DEFAULT_FOLDER} is not there: `make demo` fetches it")


@pytest.fixture(scope="module")
def encode() -> Callable[[str], list[int]]:
    """Return a function: text -> the ids of it as a chat prompt."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(DEFAULT_FOLDER)

    def ids(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        token_ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return token_ids

    return ids


@pytest.fixture(scope="module")
def generate() -> Generate:
    """Return transformers' own greedy generate."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(DEFAULT_FOLDER, dtype=torch.float32)

    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        # Said outright: the padding id is also the end of each chat message, and would be masked.
        mask = torch.ones_like(ids)
        output = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=None
        )
        token_ids: list[int] = output[0, len(prompt) :].tolist()
        return token_ids

    return run


def _run(prompts: list[list[int]]) -> list[list[int]]:
    """Run all prompts at once through core, step stream and worker."""
    config = WorkerConfig(
        model=str(DEFAULT_FOLDER),
        dtype="float32",
        torch_threads=1,
        num_blocks=256,
        max_num_seqs=8,
        max_model_len=512,
    )
    worker = load_worker(config)
    loop = CoreWithWorker(executor=worker.executor, limits=core_limits(worker.info.limits), depth=2)
    return loop.run(
        Request(
            request_id=str(number),
            prompt_token_ids=np.array(prompt, np.int32),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=NUM_TOKENS,
            handle=number,
        )
        for number, prompt in enumerate(prompts)
    )


def test_one_prompt(encode: Callable[[str], list[int]], generate: Generate) -> None:
    prompt = encode(PROMPTS[0])
    assert _run([prompt]) == [generate(prompt)]


@pytest.mark.long
def test_all_prompts_at_once(encode: Callable[[str], list[int]], generate: Generate) -> None:
    prompts = [encode(text) for text in PROMPTS]
    for text, ids, expected in zip(PROMPTS, _run(prompts), map(generate, prompts), strict=True):
        assert ids == expected, text
