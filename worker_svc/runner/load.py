"""Builds a worker's executor from its configuration: folder, sizes, weights, KV cache, runner.

Tells people what it finds as it goes. Knows nothing about flags, streams or requests.
"""

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path

import torch

from kernels.attention_backend import AttentionBackend, make_attention_backend
from model.config import ModelConfig, read_model_config
from model.errors import ModelFolderError
from model.folder import config_hash, find_model_folder, tokenizer_hash
from model.load import load_model
from worker_svc.batch.checks import TableLimits
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError, StartupError
from worker_svc.rpc.convert import WorkerInfo
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.memory import GIB, choose_max_model_len, choose_num_blocks, kv_bytes_per_block
from worker_svc.runner.model_runner import EagerModelRunner
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.tp.group import TpGroup

Tell = Callable[[str], None]
WeightsProgress = Callable[[], AbstractContextManager[Callable[[int, int], None]]]
