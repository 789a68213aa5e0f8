"""Builds the runner of a GPU: measured memory, KV cache, captured graphs.

Imports Triton, so only a worker that needs it imports this. Knows nothing about flags or streams.
"""

from dataclasses import replace

import torch

from model.decoder import CausalLM
from model.forward_context import KvCache
from worker_svc.batch.captured_shapes import captured_kinds
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.mixed_layout import sampling_row_counts
from worker_svc.batch.padding import captured_batch_sizes
from worker_svc.runner.fused_runner import FusedModelRunner
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.load_plan import LoadPlan
from worker_svc.runner.memory import DeviceMemory, choose_num_blocks, choose_num_blocks_of_device
from worker_svc.runner.mixed_step import captured_counts
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.step_parts import StepParts, make_step_parts
from worker_svc.runner.warm_up import warm_up_steps

CAPTURED_AT_START = (SamplingFlavour.GREEDY, SamplingFlavour.DRAWN, SamplingFlavour.SAMPLED)
"""Steps with penalties, masks or log-probabilities are captured when they first come."""
BYTES_PER_GRAPH = 4 << 20
"""What an instantiated graph of some hundred kernels is taken to need on the device."""


def build_fused_runner(plan: LoadPlan, model: CausalLM) -> tuple[FusedModelRunner, TableLimits]:
    """Measure, allocate the KV cache, and make the runner; nothing is captured yet.

    Raises:
        MemoryBudgetError: saying what to change.
    """
    config = plan.config
    # Sized for requests as long as the model allows: what the KV cache holds is known only later.
    widest = plan.limits(-(-plan.model.max_position_embeddings // config.block_size))
    sizes = captured_batch_sizes(config.max_num_seqs)
    parts = make_step_parts(
        model,
        widest,
        kv_caches=_kv_caches(plan, 1),
        attention_backend=plan.attention_backend,
        device=plan.device,
    )
    num_graphs = count_graphs(parts, sizes) if config.cuda_graphs else 0
    limits = plan.limits(_choose_num_blocks(plan, parts, num_graphs=num_graphs))
    parts = replace(parts, kv_caches=_kv_caches(plan, limits.num_blocks), limits=limits)
    return FusedModelRunner(parts, batch_sizes=sizes, has_graphs=config.cuda_graphs), limits


def count_graphs(parts: StepParts, batch_sizes: tuple[int, ...]) -> int:
    """Tell how many graphs a runner of these parts captures in all."""
    limits = parts.limits
    num_row_counts = len(batch_sizes) + len(sampling_row_counts(limits.max_num_seqs))
    num_graphs = num_row_counts * len(set(parts.sampler.flavours.values()))
    return num_graphs + len(captured_kinds(captured_counts(parts), max_num_seqs=limits.max_num_seqs))


def _kv_caches(plan: LoadPlan, num_blocks: int) -> tuple[KvCache, ...]:
    return allocate_kv_caches(
        plan.share.config, num_blocks, block_size=plan.config.block_size, dtype=plan.dtype, device=plan.device
    )


def _choose_num_blocks(plan: LoadPlan, parts: StepParts, *, num_graphs: int) -> int:
    config = plan.config
    if config.num_blocks or config.kv_cache_gib:
        return choose_num_blocks(
            num_blocks=config.num_blocks,
            kv_cache_gib=config.kv_cache_gib,
            bytes_per_block=plan.bytes_per_block,
        )
    num_blocks = choose_num_blocks_of_device(
        _measure(parts),
        gpu_memory_utilization=config.gpu_memory_utilization,
        reserved_bytes=num_graphs * BYTES_PER_GRAPH,
        bytes_per_block=plan.bytes_per_block,
    )
    if plan.ranks.size == 1:
        return num_blocks
    # All ranks run the same steps: what the fullest GPU holds counts.
    num_blocks_G1 = plan.ranks.all_gather(torch.tensor([num_blocks], device=plan.device))
    return int(num_blocks_G1.min())


def _measure(parts: StepParts) -> DeviceMemory:
    """Run the largest steps and tell the memory that there is and that they took."""
    limits, device = replace(parts.limits, num_blocks=1), parts.device
    runner = FusedModelRunner(parts, batch_sizes=(limits.max_num_seqs,), has_graphs=False)
    executor = StepExecutor(limits, runner)
    torch.cuda.reset_peak_memory_stats(device)
    for step in warm_up_steps(limits):
        executor.launch(step).finish()
    transient_bytes = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        total_bytes=total_bytes, used_bytes=total_bytes - free_bytes, transient_bytes=transient_bytes
    )
