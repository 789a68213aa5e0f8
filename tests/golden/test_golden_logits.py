"""Our logits against transformers', fp32, for tiny random checkpoints of every supported kind.

Model level: no scheduler, no worker. The same tokens run as one prefill, in chunks over a paged cache,
one by one, and in steps that mix requests at different places.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kernels.attention_backend import make_attention_backend
from model.config import read_model_config
from model.decoder import CausalLM
from model.forward_context import ForwardContext
from model.load import load_model

SHAPES = [
    "qwen3_tiny",
    "qwen3_gqa3",
    "qwen3_untied_sharded",
    "llama3_rope",
    "llama_tied",
    "llama3_rope_v5_bias",
]
BLOCK_SIZE = 16
MAX_BLOCKS = 8
NUM_TOKENS = 100
# Measured at most 4e-6 of a row's largest logit; sums in another order, nothing else.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens [start, end) of a request."""

    request: int
    start: int
    end: int


class PagedModel:
    """A model over a paged cache; request r owns blocks of its own, scattered over the pool."""

    def __init__(self, model: CausalLM, num_requests: int) -> None:
        self.model = model
        config = model.config
        pool_size = 1 + num_requests * MAX_BLOCKS
        order = torch.randperm(pool_size - 1, generator=torch.Generator().manual_seed(0)) + 1
        self.tables = order.view(num_requests, MAX_BLOCKS).int()
        shape = (2, pool_size, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        # NaN: a cell that is read before it is written shows.
        self.kv_caches = tuple(
            (cache[0], cache[1]) for cache in torch.full((config.num_layers, *shape), float("nan"))
        )

    def run(self, tokens: torch.Tensor, *, chunks: list[Chunk]) -> list[torch.Tensor]:
        """Run one step (decode rows first) and return each chunk's logits."""
        lengths = [chunk.end - chunk.start for chunk in chunks]
        context_lens = tuple(chunk.end for chunk in chunks)
        positions_T = torch.cat([torch.arange(chunk.start, chunk.end) for chunk in chunks])
        rows = torch.tensor([chunk.request for chunk in chunks])
        rows_T = rows.repeat_interleave(torch.tensor(lengths))
        block_ids_T = self.tables[rows_T, positions_T // BLOCK_SIZE].long()
        context = ForwardContext(
            slot_mapping_T=block_ids_T * BLOCK_SIZE + positions_T % BLOCK_SIZE,
            cu_seqlens_q=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
            seq_lens_B=torch.tensor(context_lens, dtype=torch.int32),
            block_table_BM=self.tables[rows],
            query_lens=tuple(lengths),
            context_lens=context_lens,
            num_decode_rows=len(list(itertools.takewhile(lambda length: length == 1, lengths))),
            kv_caches=self.kv_caches,
            backend=make_attention_backend("torch"),
        )
        with torch.inference_mode():
            hidden_TE = self.model(tokens[rows_T, positions_T], positions_T, context)
            return list(torch.split(self.model.compute_logits(hidden_TE), lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A model of ours, transformers' of the same folder, and its logits of some requests' tokens."""

    model: CausalLM
    their_logits: Callable[[torch.Tensor], torch.Tensor]
    tokens: torch.Tensor
    logits: torch.Tensor


@pytest.fixture(scope="module", params=SHAPES)
def golden(request: pytest.FixtureRequest, checkpoint_folder: Callable[[str], Path]) -> Golden:
    folder = checkpoint_folder(request.param)
    config = read_model_config(folder)
    model = load_model(folder, config, device="cpu", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(config.vocab_size, (4, NUM_TOKENS), generator=generator)

    def their_logits(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = theirs(tokens).logits
            return logits

    return Golden(model=model, their_logits=their_logits, tokens=tokens, logits=their_logits(tokens))


def _check(logits: torch.Tensor, expected: torch.Tensor) -> None:
    error = (logits - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert error.max() < TOLERANCE


def _cut(request: int, lengths: list[int]) -> list[Chunk]:
    ends = list(itertools.accumulate(lengths))
    return [Chunk(request=request, start=end - n, end=end) for n, end in zip(lengths, ends, strict=True)]


def test_logits_are_float32_and_vary(golden: Golden) -> None:
    (logits,) = PagedModel(golden.model, 1).run(golden.tokens, chunks=_cut(0, [NUM_TOKENS]))
    assert logits.dtype == torch.float32
    # A model that says the same everywhere would hide a wrong position or mask.
    assert len(set(logits.argmax(-1).tolist())) > NUM_TOKENS // 3


def test_whole_prefill(golden: Golden) -> None:
    (logits,) = PagedModel(golden.model, 1).run(golden.tokens, chunks=_cut(0, [NUM_TOKENS]))
    _check(logits, golden.logits[0])


@pytest.mark.parametrize("lengths", [[15, 17, 16, 52], [1, 1, 30, 68], [99, 1], [33] * 3 + [1]])
def test_chunked_prefill(golden: Golden, lengths: list[int]) -> None:
    paged = PagedModel(golden.model, 1)
    logits = [paged.run(golden.tokens, chunks=[chunk])[0] for chunk in _cut(0, lengths)]
    _check(torch.cat(logits), golden.logits[0])


def test_one_by_one(golden: Golden) -> None:
    paged = PagedModel(golden.model, 1)
    logits = [paged.run(golden.tokens, chunks=[chunk])[0] for chunk in _cut(0, [1] * NUM_TOKENS)]
    _check(torch.cat(logits), golden.logits[0])


def test_several_prompts_in_one_step(golden: Golden) -> None:
    chunks = [Chunk(request=row, start=0, end=end) for row, end in enumerate((7, 100, 16, 33))]
    for chunk, logits in zip(
        chunks, PagedModel(golden.model, 4).run(golden.tokens, chunks=chunks), strict=True
    ):
        _check(logits, golden.logits[chunk.request, : chunk.end])


def test_steps_that_mix_decode_and_prefill(golden: Golden) -> None:
    paged = PagedModel(golden.model, 4)
    chunks = [
        _cut(0, [40, *[1] * 30]),
        _cut(1, [3, *[1] * 30]),
        _cut(2, [*[3] * 30, 5]),
        _cut(3, [*[1] * 15, *[2] * 15]),
    ]
    for step in itertools.zip_longest(*chunks):
        row_chunks = sorted((chunk for chunk in step if chunk), key=lambda chunk: chunk.end - chunk.start > 1)
        for chunk, logits in zip(row_chunks, paged.run(golden.tokens, chunks=row_chunks), strict=True):
            _check(logits, golden.logits[chunk.request, chunk.start : chunk.end])


def test_greedy_ids_for_64_varied_tokens(golden: Golden) -> None:
    paged = PagedModel(golden.model, 1)
    tokens = torch.zeros(1, 20 + 64, dtype=torch.int64)
    tokens[0, :20] = golden.tokens[1, :20]
    start = 0
    for end in range(20, 20 + 64):
        (logits,) = paged.run(tokens, chunks=[Chunk(request=0, start=start, end=end)])
        tokens[0, end] = logits[-1].argmax()
        start = end
    # Each token must be what transformers takes after all those before it.
    expected = golden.their_logits(tokens)[0, 19:-1].argmax(-1)
    assert tokens[0, 20:].tolist() == expected.tolist()
    assert len(set(expected.tolist())) > 20
