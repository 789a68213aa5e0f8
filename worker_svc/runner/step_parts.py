"""What every step on the device works with: made once, shared by decode steps and mixed ones.

Holds, and computes nothing. Legend: B rows, R sampling rows, V vocabulary.
"""

from dataclasses import dataclass

import torch

from kernels.attention_backend import LaneAttentionBackend, make_lane_backend
from kernels.decode_config import DecodeWorkspace, make_decode_workspace
from kernels.paged_decode import decode_config_for
from kernels.qkv_decode import qkv_decode_config_for
from model.decoder import CausalLM
from model.forward_context import KvCache
from model.fused_decoder import FusedDecoder
from worker_svc.batch.admission_layout import most_admissions
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.padding import DecodeLayout
from worker_svc.runner.cell_writer import CellWriter
from worker_svc.runner.device_sampler import DeviceSampler
from worker_svc.runner.device_tables import DeviceTables
from worker_svc.runner.packed_upload import PackedUpload, packed_starts
from worker_svc.runner.parameter_write import WORDS_PER_LANE
from worker_svc.runner.staging import StagingRing

NUM_STAGING_BUFFERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Model, tables and memory of one rank."""

    decoder: FusedDecoder
    kv_caches: tuple[KvCache, ...]
    tables: DeviceTables
    sampler: DeviceSampler
    ring: StagingRing
    upload: PackedUpload
    writer: CellWriter
    limits: TableLimits
    device: torch.device
    attention: LaneAttentionBackend
    group: int
    """Query heads a KV head."""
    logits_RV: torch.Tensor
    """Of as many rows as a step can sample, and of this rank's token ids."""
    token_ids_R: torch.Tensor
    """int32: what the last step sampled."""


def make_step_parts(
    model: CausalLM,
    limits: TableLimits,
    *,
    kv_caches: tuple[KvCache, ...],
    attention_backend: str = "triton",
    device: torch.device,
) -> StepParts:
    """Allocate all that steps within these limits need, next to a loaded model and its caches."""
    ring = StagingRing(NUM_STAGING_BUFFERS, staging_words(limits), device=device)
    upload = PackedUpload(ring, device)
    writer = CellWriter(upload)
    tables = DeviceTables(limits, writer, device=device)
    max_rows = limits.max_num_seqs
    return StepParts(
        decoder=FusedDecoder(
            model, max_num_tokens=limits.max_num_batched_tokens, max_position=limits.max_model_len
        ),
        kv_caches=kv_caches,
        tables=tables,
        sampler=DeviceSampler(
            limits,
            tables.token_pool_LP,
            vocabulary=model.shared_vocabulary,
            device=device,
        ),
        ring=ring,
        upload=upload,
        writer=writer,
        limits=limits,
        device=device,
        attention=make_lane_backend(
            attention_backend,
            block_size=limits.block_size,
            workspace=_attention_workspace(limits, kv_caches[0][0], num_heads=model.config.num_heads),
        ),
        group=model.config.num_heads // model.config.num_kv_heads,
        logits_RV=model.embedding.weight.new_empty((max_rows, model.config.vocab_size)),
        token_ids_R=torch.zeros(max_rows, dtype=torch.int32, device=device),
    )


def staging_words(limits: TableLimits) -> int:
    """Tell how many words the largest upload takes: of a mixed step, of admissions, of a decode step."""
    alignment = 128
    # Two words a token, ten a row, and four a tile of either list: a token each at least, and padded one more
    # a row.
    mixed = 10 * limits.max_num_batched_tokens + 18 * limits.max_num_seqs
    mixed += packed_starts(most_admissions(limits, words_per_lane=WORDS_PER_LANE).sizes)[-1]
    return (
        max(mixed, 16 * limits.max_num_seqs, DecodeLayout(num_rows=limits.max_num_seqs).num_words) + alignment
    )


def _attention_workspace(limits: TableLimits, cache_NSKD: torch.Tensor, *, num_heads: int) -> DecodeWorkspace:
    """Allocate for the most demanding number of decode rows: few rows are split more often."""
    max_context_len = limits.max_blocks_per_seq * limits.block_size
    num_split_rows = max(
        num_rows * config_for(num_rows, max_context_len, cache_NSKD=cache_NSKD).num_splits
        for num_rows in range(1, limits.max_num_seqs + 1)
        for config_for in (decode_config_for, qkv_decode_config_for)
    )
    num_kv_heads, head_dim = cache_NSKD.shape[2:]
    return make_decode_workspace(
        num_split_rows * num_heads,
        num_counters=limits.max_num_seqs * num_kv_heads,
        head_dim=head_dim,
        device=cache_NSKD.device,
    )
