"""Decides what a worker loads and how large everything gets, before a weight is read.

Reads the model's configuration and no weights. Knows nothing about streams or requests.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention_backend import make_attention_backend
from kernels.gpu import LEAST_SHARED_BYTES, shared_bytes
from model.config import ModelConfig, read_model_config
from model.folder import find_model_folder
from model.ranks import Ranks
from model.share import ModelShare, share_model
from worker_svc.batch.checks import TableLimits
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError
from worker_svc.runner.memory import choose_max_model_len, kv_bytes_per_block
from worker_svc.tp.group import TpGroup
from worker_svc.tp.model_ranks import make_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All that is decided before a weight is read."""

    config: WorkerConfig
    folder: Path
    model: ModelConfig
    share: ModelShare
    """What this rank holds of the model."""
    ranks: Ranks
    attention_backend: str
    device: torch.device
    dtype: torch.dtype
    bytes_per_block: int
    """On this rank."""

    def limits(self, num_blocks: int) -> TableLimits:
        """Tell what steps may ask for, where requests can hold this many blocks.

        Raises:
            StartupError: if --max-model-len asks for more than they or the model hold.
        """
        config = self.config
        max_model_len = choose_max_model_len(
            config.max_model_len,
            max_position_embeddings=self.model.max_position_embeddings,
            num_blocks=num_blocks,
            block_size=config.block_size,
        )
        return TableLimits(
            block_size=config.block_size,
            num_blocks=num_blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=max_model_len,
            vocab_size=self.model.vocab_size,
        )


def make_load_plan(config: WorkerConfig, group: TpGroup) -> LoadPlan:
    """Decide what to load.

    Raises:
        StartupError: naming the flag that is wrong.
        ModelFolderError: naming the file that is wrong.
        ShareError: the model does not fit so many ranks.
    """
    attention_backend = _attention_backend(config)
    folder = find_model_folder(config.model)
    model = read_model_config(folder)
    share = share_model(model, rank=group.rank, size=group.size)
    dtype, device = _dtype(config, model), _device(config, group)
    if attention_backend != "torch":
        _check_shared_memory(device)
    return LoadPlan(
        config=config,
        folder=folder,
        model=model,
        share=share,
        ranks=make_ranks(group),
        attention_backend=attention_backend,
        device=device,
        dtype=dtype,
        bytes_per_block=kv_bytes_per_block(
            share.config, block_size=config.block_size, itemsize_bytes=dtype.itemsize
        ),
    )


def _attention_backend(config: WorkerConfig) -> str:
    """Choose the backend's name, and see whether it can be made."""
    name = config.attention_backend
    if name == "auto":
        name = "torch" if config.device == "cpu" else "triton"
    if name != "torch" and config.device == "cpu":
        raise ConfigError(f"--attention-backend is {name!r}, but --device cpu has 'torch' only")
    try:
        make_attention_backend(name, block_size=config.block_size)
    except ValueError as error:
        raise ConfigError(f"--attention-backend: {error}") from error
    return name


def _device(config: WorkerConfig, group: TpGroup) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device is 'cuda', but torch finds no CUDA device here: use --device cpu")
    return torch.device(group.device)


def _check_shared_memory(device: torch.device) -> None:
    """Refuse a GPU whose programs cannot have as much shared memory as kernels take."""
    num_bytes = shared_bytes(device)
    if num_bytes < LEAST_SHARED_BYTES:
        raise ConfigError(
            f"--device is 'cuda', but a program on {torch.cuda.get_device_name(device)} has "
            f"{num_bytes >> 10} KiB of shared memory, and kernels take {LEAST_SHARED_BYTES >> 10} KiB: "
            "use --attention-backend torch"
        )


def _dtype(config: WorkerConfig, model: ModelConfig) -> torch.dtype:
    automatic = "float32" if config.device == "cpu" else model.dtype
    name = automatic if config.dtype == "auto" else config.dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), f"no dtype: {name}"
    return dtype
