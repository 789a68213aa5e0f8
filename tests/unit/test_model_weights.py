"""Loading safetensors: every parameter once, or an error that names the file and the parameter."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import decoder
from model.checkpoint import find_checkpoint_files
from model.config import read_model_config
from model.decoder import CausalLM
from model.errors import ModelFolderError
from model.load import load_model

Tensors = dict[str, torch.Tensor]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def make_folder(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a checkpoint to where a test may break it."""
    return lambda name: Path(shutil.copytree(checkpoint_folder(name), tmp_path / name))


@pytest.fixture
def tied(make_folder: Callable[[str], Path]) -> Path:
    return make_folder("qwen3_tiny")


@pytest.fixture
def sharded(make_folder: Callable[[str], Path]) -> Path:
    return make_folder("qwen3_untied_sharded")


def _load(folder: Path, **options: object) -> CausalLM:
    dtype = options.pop("dtype", torch.float32)
    assert isinstance(dtype, torch.dtype)
    return load_model(folder, read_model_config(folder), device="cpu", dtype=dtype, **options)  # type: ignore[arg-type]


def _change(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Rewrite the single file after a change of its tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def _shard_of(folder: Path, name: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / str(index["weight_map"][name])


def _change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def _fails(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelFolderError) as caught:
        _load(folder)
    for part in parts:
        assert part in str(caught.value)


def test_progress_counts_every_tensor_once(sharded: Path) -> None:
    calls: list[tuple[int, int]] = []
    _load(sharded, on_progress=lambda done, total: calls.append((done, total)))
    # 3 layers of 11 tensors, embedding, norm and head.
    assert calls == [(done, 36) for done in range(1, 37)]


def test_fused_parameters_hold_their_parts_in_order(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Packed weights cannot be looked into.
    monkeypatch.setattr(CausalLM, "pack_weights", lambda _: None)
    ours = dict(_load(tied).named_parameters())
    theirs = load_file(tied / "model.safetensors")
    prefix = "model.layers.1."
    qkv = torch.cat([theirs[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(ours["layers.1.attention.qkv_proj.weight"], qkv)
    gate_up = torch.cat([theirs[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")])
    assert torch.equal(ours["layers.1.mlp.gate_up_proj.weight"], gate_up)
    norm = theirs[f"{prefix}post_attention_layernorm.weight"]
    assert torch.equal(ours["layers.1.mlp_norm.weight"], norm)


def test_weights_are_cast_and_then_packed(tied: Path) -> None:
    model = _load(tied, dtype=torch.bfloat16)
    assert model.embedding.weight.dtype == torch.bfloat16
    assert model.head.packed is not None
    assert model.head.weight is None


def test_large_models_are_held_once(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    held_twice = _load(tied)
    monkeypatch.setattr(decoder, "MAX_BYTES_HELD_TWICE", 1000)
    held_once = _load(tied)
    assert held_twice.head.packed is not None
    assert held_once.head.packed is not None
    assert held_twice.head.packed.transposed_IO is not None
    assert held_once.head.packed.transposed_IO is None
    torch.testing.assert_close(held_once.compute_logits(hidden), held_twice.compute_logits(hidden))


def test_a_tied_head_in_the_file_is_not_used(tied: Path) -> None:
    hidden = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    expected = _load(tied).compute_logits(hidden)
    _change(tied, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(320, 64)}))
    assert torch.equal(_load(tied).compute_logits(hidden), expected)


def test_old_rope_buffers_are_not_used(tied: Path) -> None:
    _change(tied, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": torch.zeros(8)}))
    _load(tied)


def test_a_missing_parameter(tied: Path) -> None:
    _change(tied, lambda tensors: tensors.pop(Q_PROJ))
    _fails(tied, Q_PROJ, "is missing (1 missing in all)", str(tied / "model.safetensors"))


def test_a_missing_head_of_an_untied_model(tied: Path) -> None:
    config = json.loads((tied / "config.json").read_text())
    (tied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    _fails(tied, "lm_head.weight is missing", "model.safetensors")


def test_an_unexpected_parameter(tied: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    _change(tied, lambda tensors: tensors.update({name: torch.zeros(64)}))
    _fails(tied, name, "Qwen3ForCausalLM has no place for", str(tied / "model.safetensors"))


def test_another_shape(tied: Path) -> None:
    _change(tied, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 63)}))
    _fails(
        tied,
        str(tied / "model.safetensors"),
        f"{Q_PROJ} has shape (64, 63), but the config asks for (64, 64)",
    )


def test_an_integer_parameter(tied: Path) -> None:
    _change(tied, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)}))
    _fails(tied, f"{Q_PROJ} is of torch.int8, but must be of a floating dtype")


@pytest.mark.parametrize("num_bytes", [0, 4, 100, -1])
def test_a_truncated_file(tied: Path, num_bytes: int) -> None:
    path = tied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    _fails(tied, f"cannot read {path}, it is truncated or broken")


def test_a_file_that_may_not_be_read(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _mode: str) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # file modes do not keep root out
    with pytest.raises(ModelFolderError, match=r"^cannot read .*/model\.safetensors: Permission denied$"):
        find_checkpoint_files(tied)


def test_no_file_at_all(tied: Path) -> None:
    (tied / "model.safetensors").unlink()
    _fails(tied, f"{tied} holds neither model.safetensors nor model.safetensors.index.json")


def test_a_missing_shard(sharded: Path) -> None:
    path = _shard_of(sharded, Q_PROJ)
    path.unlink()
    _fails(sharded, f"{path} is missing; model.safetensors.index.json says that it holds model.layers.")


def test_a_truncated_shard(sharded: Path) -> None:
    path = _shard_of(sharded, Q_PROJ)
    path.write_bytes(path.read_bytes()[:-1])
    _fails(sharded, f"cannot read {path}, it is truncated or broken")


def test_an_index_that_names_the_wrong_shard(sharded: Path) -> None:
    path = _shard_of(sharded, Q_PROJ)
    other = _shard_of(sharded, "lm_head.weight").name
    assert other != path.name
    _change_index(sharded, lambda weight_map: weight_map.update({Q_PROJ: other}))
    _fails(sharded, Q_PROJ, "model.safetensors.index.json")


def test_an_index_that_leaves_a_tensor_out(sharded: Path) -> None:
    path = _shard_of(sharded, Q_PROJ)
    _change_index(sharded, lambda weight_map: weight_map.pop(Q_PROJ))
    _fails(sharded, f"{path} holds {Q_PROJ}, but model.safetensors.index.json does not say so")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 3}}'])
def test_a_broken_index(sharded: Path, text: str) -> None:
    path = sharded / "model.safetensors.index.json"
    path.write_text(text)
    _fails(sharded, str(path))


def test_an_index_that_reaches_outside_the_folder(sharded: Path) -> None:
    _change_index(sharded, lambda weight_map: weight_map.update({Q_PROJ: "../x.safetensors"}))
    _fails(sharded, f"{Q_PROJ} is said to be in '../x.safetensors', which is no file name")
