"""Decides what a worker loads and how large everything gets, before a weight is read.

Reads the model's configuration and no weights. Knows nothing about streams or requests.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention_backend import AttentionBackend, make_attention_backend
from model.config import ModelConfig, read_model_config
from model.folder import find_model_folder
from worker_svc.batch.checks import TableLimits
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError
from worker_svc.runner.memory import choose_max_model_len, choose_num_blocks, kv_bytes_per_block
from worker_svc.tp.group import TpGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All that is decided before a weight is read."""

    folder: Path
    model: ModelConfig
    backend: AttentionBackend
    device: torch.device
    dtype: torch.dtype
    bytes_per_block: int
    limits: TableLimits


def make_load_plan(config: WorkerConfig, group: TpGroup) -> LoadPlan:
    """Decide what to load and how large everything gets.

    Raises:
        StartupError: naming the flag that is wrong.
        ModelFolderError: naming the file that is wrong.
    """
    folder = find_model_folder(config.model)
    model = read_model_config(folder)
    device = _device(config, group)
    dtype = _dtype(config, model)
    bytes_per_block = kv_bytes_per_block(model, block_size=config.block_size, itemsize_bytes=dtype.itemsize)
    return LoadPlan(
        folder=folder,
        model=model,
        backend=_backend(config),
        device=device,
        dtype=dtype,
        bytes_per_block=bytes_per_block,
        limits=_limits(config, model, bytes_per_block),
    )


def _limits(config: WorkerConfig, model: ModelConfig, bytes_per_block: int) -> TableLimits:
    num_blocks = choose_num_blocks(
        num_blocks=config.num_blocks, kv_cache_gib=config.kv_cache_gib, bytes_per_block=bytes_per_block
    )
    max_model_len = choose_max_model_len(
        config.max_model_len,
        max_position_embeddings=model.max_position_embeddings,
        num_blocks=num_blocks,
        block_size=config.block_size,
    )
    return TableLimits(
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        vocab_size=model.vocab_size,
    )


def _backend(config: WorkerConfig) -> AttentionBackend:
    try:
        return make_attention_backend(config.attention_backend)
    except ValueError as error:
        raise ConfigError(f"--attention-backend: {error}") from error


def _device(config: WorkerConfig, group: TpGroup) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device is 'cuda', but torch finds no CUDA device here: use --device cpu")
    return torch.device(group.device)


def _dtype(config: WorkerConfig, model: ModelConfig) -> torch.dtype:
    automatic = "float32" if config.device == "cpu" else model.dtype
    name = automatic if config.dtype == "auto" else config.dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), f"no dtype: {name}"
    return dtype
