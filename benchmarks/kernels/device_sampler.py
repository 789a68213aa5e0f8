"""The device sampler at Qwen3's vocabulary: microseconds a step, the read floor's share, and PyTorch's ways.

    python benchmarks/kernels/device_sampler.py

Logits are drawn from a normal distribution of deviation 1, as a model of random weights gives them, or
3, which is as peaked as a trained model's. Knows nothing about the model before it.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets
from benchmarks.gpu_timing import Launch, describe_card, graph_microseconds, read_bandwidth
from kernels.device_sampler import sample_decode
from kernels.sampler_tables import (
    LaneSampling,
    SamplerFlavour,
    SamplerWorkspace,
    allocate_lane_sampling,
    allocate_sampler_workspace,
)

V = 151_936
ROWS = (1, 8, 32, 256, 1024)
NUM_LANES = max(ROWS)
MAX_MODEL_LEN, NUM_KNOWN = 4096, 850
GREEDY, SAMPLED, FULL = SamplerFlavour
CASES: tuple[tuple[str, SamplerFlavour, float, dict[str, float]], ...] = (
    ("greedy", GREEDY, 1, {}),
    ("temperature", SAMPLED, 1, {"temperature": 0.6}),
    ("temperature, peaked", SAMPLED, 3, {"temperature": 0.6}),
    ("top_p 0.95", SAMPLED, 1, {"temperature": 0.6, "top_p": 0.95}),
    ("top_p 0.95, peaked", SAMPLED, 3, {"temperature": 0.6, "top_p": 0.95}),
    ("top_k 20, top_p 0.95", SAMPLED, 1, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    ("top_k 500", SAMPLED, 1, {"temperature": 0.6, "top_k": 500}),
    ("min_p 0.1", SAMPLED, 1, {"temperature": 0.6, "min_p": 0.1}),
    ("full, nothing asked", FULL, 1, {"temperature": 0.6}),
    ("full, penalties", FULL, 1, {"temperature": 0.6, "repetition": 1.1, "presence": 0.5}),
    ("full, 5 logprobs", FULL, 1, {"temperature": 0.6, "num_logprobs_plus_one": 6}),
)
RIVALS: tuple[tuple[str, Callable[[torch.Tensor], object]], ...] = (
    ("torch.argmax", lambda logits_BV: logits_BV.argmax(-1)),
    ("torch softmax + multinomial", lambda logits_BV: _draw(logits_BV.float() / 0.6)),
    ("torch sort + top_p", lambda logits_BV: _draw_top_p(logits_BV.float() / 0.6, 0.95)),
)


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = read_bandwidth()
    print(f"{describe_card()}; read bandwidth {ceiling:.0f} GB/s; {V} logits a row in bfloat16")
    workspace = allocate_sampler_workspace(NUM_LANES, V, flavour=FULL, device="cuda")
    print(f"{'µs, and the share of the read floor, by rows':34s}" + "".join(f"{rows:>16d}" for rows in ROWS))
    for name, flavour, deviation, parameters in CASES:
        tables = lane_tables(parameters)
        launches = partial(sampler_launches, tables=tables, workspace=workspace, flavour=flavour)
        tell(name, launches, ceiling=ceiling, deviation=deviation)
    for name, draw in RIVALS:
        tell(name, partial(rival_launches, draw=draw), ceiling=ceiling, deviation=1)


def tell(
    name: str, launches: Callable[[torch.Tensor], list[Launch]], *, ceiling: float, deviation: float
) -> None:
    """Print one line: a figure for each number of rows."""
    figures = []
    for num_rows in ROWS:
        sets = num_input_sets(num_rows * V * 2)
        logits_XBV = torch.randn(sets, num_rows, V, device="cuda", dtype=torch.bfloat16) * deviation
        microseconds = graph_microseconds(launches(logits_XBV), num_replays=3)
        floor = num_rows * V * 2 / ceiling / 1e3
        figures.append(f"{microseconds:9.1f} {100 * floor / microseconds:5.1f}%")
    print(f"{name:34s}" + "".join(figures), flush=True)


def lane_tables(parameters: dict[str, float]) -> LaneSampling:
    """Return tables in which all lanes have these parameters, and seeds of their own."""
    tables = allocate_lane_sampling(NUM_LANES, "cuda")
    tables.seed_L.copy_(torch.arange(NUM_LANES))
    tables.num_prompt_L.fill_(NUM_KNOWN // 2)
    for name, value in parameters.items():
        getattr(tables, f"{name}_L").fill_(value)
    return tables


def sampler_launches(
    logits_XBV: torch.Tensor, *, tables: LaneSampling, workspace: SamplerWorkspace, flavour: SamplerFlavour
) -> list[Launch]:
    """Return one step of the sampler a set."""
    num_rows = logits_XBV.shape[1]
    pool_LP = torch.randint(0, V, (NUM_LANES, MAX_MODEL_LEN + 1), dtype=torch.int32, device="cuda")
    lanes_B = torch.arange(num_rows, dtype=torch.int32, device="cuda")
    positions_B = torch.full_like(lanes_B, NUM_KNOWN - 1)
    return [
        partial(
            sample_decode, logits_BV, lanes_B, positions_B, tables, pool_LP, torch.empty_like(lanes_B),
            flavour=flavour, workspace=workspace,
            out_logprob_ids_BK=lanes_B.new_empty(num_rows, 21),
            out_logprobs_BK=logits_BV.new_empty(num_rows, 21, dtype=torch.float32),
        )
        for logits_BV in logits_XBV
    ]  # fmt: skip


def rival_launches(logits_XBV: torch.Tensor, *, draw: Callable[[torch.Tensor], object]) -> list[Launch]:
    """Return one draw a set."""
    return [partial(draw, logits_BV) for logits_BV in logits_XBV]


def _draw(logits_BV: torch.Tensor) -> torch.Tensor:
    return logits_BV.softmax(-1).multinomial(1)


def _draw_top_p(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered_BV, ids_BV = logits_BV.sort(-1, descending=True)
    weights_BV = ordered_BV.softmax(-1)
    is_dropped_BV = weights_BV.cumsum(-1) - weights_BV >= top_p
    return ids_BV.gather(1, weights_BV.masked_fill(is_dropped_BV, 0).multinomial(1))


if __name__ == "__main__":
    main()
