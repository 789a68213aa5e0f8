"""What a rank reads of a checkpoint: its pieces and no byte more, put where the layers expect them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from model import weights
from model.checkpoint import open_checkpoint_file
from model.config import read_model_config
from model.decoder import CausalLM
from model.load import load_model
from tests.thread_ranks import Meeting, ThreadRank


class CountingFile:
    """A safetensors file that notes what is read."""

    def __init__(self, file: Any, sizes: list[int]) -> None:
        self._file, self._sizes = file, sizes

    def get_slice(self, name: str) -> "CountingSlice":
        return CountingSlice(self._file.get_slice(name), self._sizes)

    def get_tensor(self, name: str) -> torch.Tensor:
        return count(self._file.get_tensor(name), self._sizes)


class CountingSlice:
    """A tensor that notes which of its parts are read."""

    def __init__(self, tensor: Any, sizes: list[int]) -> None:
        self._tensor, self._sizes = tensor, sizes

    def get_shape(self) -> list[int]:
        shape: list[int] = self._tensor.get_shape()
        return shape

    def __getitem__(self, part: Any) -> torch.Tensor:
        return count(self._tensor[part], self._sizes)


def count(tensor: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    sizes.append(tensor.nbytes)
    return tensor


def load_rank(folder: Path, rank: int, size: int) -> CausalLM:
    # Loading needs nothing of the others.
    ranks = ThreadRank(rank, Meeting(size))
    return load_model(folder, read_model_config(folder), device="cpu", dtype=torch.float32, ranks=ranks)


@pytest.fixture(autouse=True)
def _plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights cannot be looked into."""
    monkeypatch.setattr(CausalLM, "pack_weights", lambda _: None)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_reads_as_many_bytes_as_it_holds(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    sizes: list[int] = []

    @contextmanager
    def open_counting(path: Path) -> Iterator[CountingFile]:
        with open_checkpoint_file(path) as file:
            yield CountingFile(file, sizes)

    monkeypatch.setattr(weights, "open_checkpoint_file", open_counting)
    model = load_rank(checkpoint_folder("llama_odd_vocabulary"), rank, 4)
    num_held_bytes = sum(parameter.nbytes for parameter in model.parameters())
    # The last rank has 79 of 81 rows of two tables; the first alone reads the biases of two layers.
    num_zeros = 2 * 2 * 48 if rank == 3 else 0
    num_zeros += 0 if rank == 0 else 2 * 48
    assert sum(sizes) == num_held_bytes - 4 * num_zeros
    # Nothing was read and cut afterwards: at once in memory is no more than the table's rows.
    assert max(sizes) <= 81 * 48 * 4


def test_pieces_lie_where_the_layers_expect_them(checkpoint_folder: Callable[[str], Path]) -> None:
    """Rank 2 of 4 of four query heads and two KV heads: query head 2, KV head 1."""
    folder = checkpoint_folder("qwen3_tiny")
    ours = dict(load_rank(folder, 2, 4).named_parameters())
    theirs = load_file(folder / "model.safetensors")
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    heads = {"q": 2, "k": 1, "v": 1}
    qkv = [
        theirs[f"{attention}{name}_proj.weight"][16 * head : 16 * head + 16] for name, head in heads.items()
    ]
    assert torch.equal(ours["layers.1.attention.qkv_proj.weight"], torch.cat(qkv))
    output = theirs[f"{attention}o_proj.weight"][:, 32:48]
    assert torch.equal(ours["layers.1.attention.o_proj.weight"], output)
    gate_up = [theirs[f"{mlp}{name}_proj.weight"][48:72] for name in ("gate", "up")]
    assert torch.equal(ours["layers.1.mlp.gate_up_proj.weight"], torch.cat(gate_up))
    assert torch.equal(ours["layers.1.mlp.down_proj.weight"], theirs[f"{mlp}down_proj.weight"][:, 48:72])
    assert torch.equal(ours["embedding.weight"], theirs["model.embed_tokens.weight"][160:240])


@pytest.mark.parametrize(("rank", "num_token_ids"), [(0, 81), (3, 79)])
def test_padding_is_masked_and_the_output_bias_lies_on_the_first_rank(
    checkpoint_folder: Callable[[str], Path], rank: int, num_token_ids: int
) -> None:
    folder = checkpoint_folder("llama_odd_vocabulary")
    model = load_rank(folder, rank, 4)
    ours = dict(model.named_parameters())
    theirs = load_file(folder / "model.safetensors")
    for parameter, name in (("embedding", "model.embed_tokens"), ("head", "lm_head")):
        table = ours[f"{parameter}.weight"]
        assert torch.equal(table[:num_token_ids], theirs[f"{name}.weight"][81 * rank :][:81])
        assert torch.equal(table[num_token_ids:], torch.zeros(81 - num_token_ids, 48))
    is_masked_RV = model.compute_logits(torch.ones(2, 48)).isinf()
    assert is_masked_RV.tolist() == [[token_id >= num_token_ids for token_id in range(81)]] * 2
    bias = theirs["model.layers.1.self_attn.o_proj.bias"]
    expected = bias if rank == 0 else torch.zeros(48)
    assert torch.equal(ours["layers.1.attention.o_proj.bias"], expected)
