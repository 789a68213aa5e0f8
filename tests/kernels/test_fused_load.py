"""What a GPU's runner reserves memory for, before it knows how much the KV cache may take."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.config import read_model_config
from model.load import MODEL_CLASSES
from worker_svc.batch.admission_layout import padded_admissions
from worker_svc.batch.captured_shapes import captured_kinds, captured_token_counts, padded_shape
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.mixed_layout import TileTokens, mixed_sizes
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.packed_upload import packed_starts

LIMITS = TableLimits(
    block_size=16, num_blocks=4, max_num_seqs=10, max_num_batched_tokens=100, max_model_len=64, vocab_size=320
)


class CountedGraphs:
    """Takes the place of CudaGraphs: notes what is captured."""

    keys: list[Any] = []  # noqa: RUF012

    def __init__(self, launch: Callable[[Any], None], *, device: torch.device) -> None:
        """Take what CudaGraphs does."""

    def capture(self, key: Any) -> None:
        self.keys.append(key)


def test_all_graphs_that_a_runner_captures_are_counted(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker_svc.runner import fused_load, fused_runner, mixed_sampling, mixed_step  # noqa: PLC0415
    from worker_svc.runner.step_parts import make_step_parts  # noqa: PLC0415

    for module in (fused_runner, mixed_sampling, mixed_step):
        monkeypatch.setattr(module, "CudaGraphs", CountedGraphs)
    monkeypatch.setattr(CountedGraphs, "keys", [])
    config = read_model_config(checkpoint_folder("qwen3_one_layer"))
    model, cpu = MODEL_CLASSES[config.architecture](config, dtype=torch.float32), torch.device("cpu")
    caches = allocate_kv_caches(config, LIMITS.num_blocks, block_size=16, dtype=torch.float32, device=cpu)
    parts = make_step_parts(model, LIMITS, kv_caches=caches, device=cpu)
    sizes = (1, 2, 4, 8, 10)
    runner = fused_runner.FusedModelRunner(parts, batch_sizes=sizes, has_graphs=True)
    runner.capture(tuple(SamplingFlavour))
    assert fused_load.count_graphs(parts, sizes) == len(CountedGraphs.keys)


@pytest.mark.parametrize("max_num_seqs", [1, 64, 256, 1024])
@pytest.mark.parametrize("max_num_batched_tokens", [16, 256, 512, 2048, 16384, 20000])
@pytest.mark.parametrize("tokens_per_tile", [1, 32])
def test_every_padded_step_fits_a_staging_buffer(
    max_num_seqs: int, max_num_batched_tokens: int, tokens_per_tile: int
) -> None:
    from worker_svc.runner.step_parts import staging_words  # noqa: PLC0415

    tile_tokens = TileTokens(new=tokens_per_tile, old=tokens_per_tile)
    limits = replace(LIMITS, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    counts = captured_token_counts(max_num_batched_tokens, layer_weights=1)
    for kind in captured_kinds(counts, max_num_seqs=max_num_seqs):
        shape = padded_shape(kind, max_num_seqs=max_num_seqs, tile_tokens=tile_tokens)
        admitted = padded_admissions(kind.num_tokens, limits, words_per_lane=14)
        assert packed_starts(mixed_sizes(shape) | admitted.sizes)[-1] <= staging_words(limits)


@pytest.mark.parametrize(
    ("hidden_size", "intermediate_size", "most"), [(1024, 3072, 16384), (4096, 12288, 8192), (4096, 64, 8192)]
)
def test_large_steps_are_captured_where_launching_them_takes_longer_and_nobody_cuts_them(
    hidden_size: int, intermediate_size: int, most: int
) -> None:
    """Those of the last shape would take little time, but several ranks cut them."""
    from worker_svc.runner.mixed_step import captured_counts  # noqa: PLC0415

    config = SimpleNamespace(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        head_dim=16,
        num_heads=8,
        num_kv_heads=4,
    )
    parts: Any = SimpleNamespace(
        attention=SimpleNamespace(captures_prefill=True),
        decoder=SimpleNamespace(config=config),
        limits=replace(LIMITS, max_num_batched_tokens=16384),
        logits_RV=torch.empty(1, dtype=torch.bfloat16),
    )
    assert captured_counts(parts)[-1] == most
    parts.attention.captures_prefill = False
    assert captured_counts(parts) == ()
