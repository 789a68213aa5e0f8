"""Paged prefill attention at Qwen3-0.6B's shapes: TFLOP/s, and the share of the matrix product ceiling.

    python benchmarks/kernels/paged_prefill.py                   the chosen configuration
    python benchmarks/kernels/paged_prefill.py --tune --block-sizes 16 256

Beside it: PyTorch's scaled_dot_product_attention on K and V that lie together and are repeated for
each head beforehand, and flash-attn on the same pages where it is installed and takes the block
size. A causal score counts as half. Knows nothing about the model around it.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_timing import Launch, describe_card, graph_microseconds, matmul_ceiling
from kernels.paged_prefill import FreshRows, paged_prefill
from kernels.prefill_tiles import PrefillConfig, choose_prefill_config, make_prefill_tiles

HEADS, KV_HEADS, HEAD_DIM = 16, 8, 128
NUM_SETS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Equal rows of (query_len, context_len), or decode-like rows beside long ones."""

    name: str
    rows: tuple[tuple[int, int], ...]

    @property
    def num_flops(self) -> float:
        """Multiplications and additions of visible scores and their values."""
        cells = sum(query * (2 * context - query + 1) / 2 for query, context in self.rows)
        return 4 * HEADS * HEAD_DIM * cells


CASES = (
    Case(name="64x1024", rows=((1024, 1024),) * 64),
    Case(name="1x4000", rows=((4000, 4000),)),
    Case(name="8x1024 of 4096", rows=((1024, 4096),) * 8),
    Case(name="1x512", rows=((512, 512),)),
    Case(name="mixed", rows=((2048, 2048), *(((1, 700)),) * 100, (300, 900))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One set of tensors."""

    q_THD: torch.Tensor
    caches: tuple[torch.Tensor, torch.Tensor]
    table_BM: torch.Tensor
    bounds_q: torch.Tensor
    bounds_k: torch.Tensor
    seq_lens_B: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int


def make_inputs(case: Case, block_size: int) -> Inputs:
    """Return random inputs, each row in blocks of its own, scattered."""
    widest = max(context for _, context in case.rows)
    num_columns = -(-widest // block_size)
    num_blocks = len(case.rows) * num_columns
    cache = torch.randn(2, num_blocks + 1, block_size, KV_HEADS, HEAD_DIM, device="cuda").bfloat16()
    queries = torch.tensor([0, *(query for query, _ in case.rows)], device="cuda")
    contexts = torch.tensor([0, *(context for _, context in case.rows)], device="cuda")
    num_tokens = sum(query for query, _ in case.rows)
    return Inputs(
        q_THD=torch.randn(num_tokens, HEADS, HEAD_DIM, device="cuda").bfloat16(),
        caches=(cache[0], cache[1]),
        table_BM=1 + torch.randperm(num_blocks, device="cuda", dtype=torch.int32).view(-1, num_columns),
        bounds_q=queries.cumsum(0, dtype=torch.int32),
        bounds_k=contexts.cumsum(0, dtype=torch.int32),
        seq_lens_B=contexts[1:].int(),
        max_seqlen_q=max(query for query, _ in case.rows),
        max_seqlen_k=widest,
    )


def our_launch(inputs: Inputs, config: PrefillConfig) -> Launch:
    """Return our launch with this configuration."""
    return _launch(inputs, config, fresh=None)


def fresh_launch(inputs: Inputs, config: PrefillConfig) -> Launch | None:
    """Return our launch over new prompts, K and V where a projection leaves them; None for other rows."""
    if not torch.equal(inputs.bounds_q, inputs.bounds_k):
        return None
    sizes = [heads * HEAD_DIM for heads in (HEADS, KV_HEADS, KV_HEADS)]
    rows_TX = torch.randn(len(inputs.q_THD), sum(sizes), device="cuda").bfloat16()
    _, key_TX, value_TX = torch.split(rows_TX, sizes, 1)
    return _launch(inputs, config, fresh=FreshRows(key_TX=key_TX, value_TX=value_TX))


def _launch(inputs: Inputs, config: PrefillConfig, *, fresh: FreshRows | None) -> Launch:
    out = torch.empty_like(inputs.q_THD)
    lanes = torch.arange(len(inputs.seq_lens_B), dtype=torch.int32, device="cuda")
    tiles = make_prefill_tiles(inputs.bounds_q, inputs.seq_lens_B, config=config, group=HEADS // KV_HEADS)
    return lambda: paged_prefill(
        inputs.q_THD,
        *inputs.caches,
        inputs.table_BM,
        lanes,
        inputs.bounds_q,
        inputs.seq_lens_B,
        HEAD_DIM**-0.5,
        out=out,
        tiles=tiles,
        fresh=fresh,
    )


def flash_launch(inputs: Inputs) -> Launch | None:
    """Return flash-attn's launch; None where it cannot."""
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415
    except ImportError:
        return None
    if inputs.caches[0].shape[1] % 256:
        return None
    return lambda: flash_attn_varlen_func(
        inputs.q_THD,
        *inputs.caches,
        cu_seqlens_q=inputs.bounds_q,
        cu_seqlens_k=inputs.bounds_k,
        max_seqlen_q=inputs.max_seqlen_q,
        max_seqlen_k=inputs.max_seqlen_k,
        block_table=inputs.table_BM,
        causal=True,
    )


def torch_launch(case: Case) -> Launch | None:
    """Return PyTorch's launch over dense K and V; None where rows are not whole prompts of one length."""
    query_len, context_len = case.rows[0]
    if len(set(case.rows)) > 1 or query_len != context_len:
        return None
    shape = (len(case.rows), HEADS, query_len, HEAD_DIM)
    query, key, value = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
    return lambda: scaled_dot_product_attention(query, key, value, is_causal=True)


def candidates() -> Iterator[PrefillConfig]:
    """Yield configurations worth a try."""
    for num_queries, tile_size, num_warps in (
        (128, 64, 8),
        (128, 64, 4),
        (64, 64, 4),
        (128, 32, 4),
        (64, 32, 4),
    ):
        for num_stages in (2, 3, 4):
            yield PrefillConfig(
                num_queries=num_queries,
                tile_size=tile_size,
                fresh_tile_size=64,
                num_warps=num_warps,
                num_stages=num_stages,
            )


def tell(case: Case, name: str, *, block_size: int, microseconds: float, ceiling: float) -> None:
    """Print one line of the table."""
    rate = case.num_flops / microseconds / 1e6
    print(
        f"{case.name:15s} {block_size:5d}  {name:26s} {microseconds:9.1f} {rate:8.0f} "
        f"{100 * rate / ceiling:6.1f}",
        flush=True,
    )


def name_of(config: PrefillConfig) -> str:
    """Return a configuration in few letters."""
    return f"{config.num_queries}x{config.tile_size} w{config.num_warps} s{config.num_stages}"


def run_chosen(case: Case, block_size: int, *, ceiling: float) -> None:
    """Time the chosen configuration and what stands beside it."""
    sets = [make_inputs(case, block_size) for _ in range(NUM_SETS)]
    config = choose_prefill_config(
        sets[0].max_seqlen_q, cache_NSKD=sets[0].caches[0], group=HEADS // KV_HEADS
    )
    ours = graph_microseconds([our_launch(inputs, config) for inputs in sets])
    tell(case, name_of(config), block_size=block_size, microseconds=ours, ceiling=ceiling)
    alone = choose_prefill_config(
        sets[0].max_seqlen_q, cache_NSKD=sets[0].caches[0], group=HEADS // KV_HEADS, are_new=True
    )
    fresh = [launch for inputs in sets if (launch := fresh_launch(inputs, alone))]
    if fresh:
        tell(
            case,
            f"new prompts, {name_of(alone)}",
            block_size=block_size,
            microseconds=graph_microseconds(fresh),
            ceiling=ceiling,
        )
    flash = [launch for inputs in sets if (launch := flash_launch(inputs))]
    if flash:
        tell(
            case, "flash-attn", block_size=block_size, microseconds=graph_microseconds(flash), ceiling=ceiling
        )
    dense = [launch for _ in range(NUM_SETS) if (launch := torch_launch(case))]
    if dense:
        tell(
            case,
            "PyTorch, dense",
            block_size=block_size,
            microseconds=graph_microseconds(dense),
            ceiling=ceiling,
        )


def run_candidates(case: Case, block_size: int, *, ceiling: float) -> None:
    """Time all candidates and print the six best."""
    sets = [make_inputs(case, block_size) for _ in range(NUM_SETS)]
    times = []
    for config in candidates():
        try:
            launches = [our_launch(inputs, config) for inputs in sets]
            times.append((graph_microseconds(launches, num_replays=5), config))
        except triton.OutOfResources as error:
            print(f"{case.name:15s} {block_size:5d}  {name_of(config):26s} does not fit: {error}")
    for microseconds, config in sorted(times, key=lambda pair: pair[0])[:6]:
        tell(case, name_of(config), block_size=block_size, microseconds=microseconds, ceiling=ceiling)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time paged prefill attention.")
    parser.add_argument("--tune", action="store_true", help="try many configurations, print the best")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    ceiling = matmul_ceiling()
    print(f"{describe_card()}; matrix product {ceiling:.0f} TFLOP/s")
    print("case            block  configuration                    µs  TFLOP/s  share%")
    for case in CASES:
        if options.cases and case.name not in options.cases:
            continue
        for block_size in options.block_sizes:
            (run_candidates if options.tune else run_chosen)(case, block_size, ceiling=ceiling)


if __name__ == "__main__":
    main()
