"""Decode attention of many rows on Hopper: emulated on a CPU, and on such a GPU against the reference."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from kernels import hopper_decode_fetch, hopper_decode_kernel, ring_stage, told_number
from kernels.hopper_decode import can_use_hopper_decode, hopper_decode
from kernels.paged_decode import LOG2_E, paged_decode_ref
from tests.kernels.emulated_gluon import Descriptor, run_emulated

TILE, DIM, BLOCK_SIZE = 32, 16, 8
SEQ_LENS = [1, 15, 16, 17, 0, 63, 64, 65, 127, 128, 129, 700, 1024, 333, 2, 400, 40, *range(200, 260, 3)]


def _rows(
    seq_lens: list[int], *, heads: tuple[int, int], block_size: int, spare_blocks: int = 3, **shape: Any
) -> dict[str, torch.Tensor]:
    """Rows, the last one padding. Cells that no context holds are NaN, block ids that none does are none."""
    head_dim, move = shape["head_dim"], {name: shape[name] for name in ("device", "dtype")}
    (num_heads, num_kv_heads), num_rows = heads, len(seq_lens)
    generator = torch.Generator().manual_seed(block_size)
    num_blocks = [-(-seq_len // block_size) for seq_len in seq_lens]
    pool_size = sum(num_blocks) + spare_blocks
    caches = torch.full((2, pool_size, block_size, num_kv_heads, head_dim), math.nan, **move)
    ids = (pool_size - 1 - torch.randperm(sum(num_blocks), generator=generator)).int()
    lanes = torch.randperm(num_rows + 2, generator=generator)[:num_rows].int()
    table = torch.full((num_rows + 2, max(num_blocks) + 1), 2**30, dtype=torch.int32)
    for lane, seq_len, blocks in zip(lanes, seq_lens, torch.split(ids, num_blocks), strict=True):
        table[lane, : len(blocks)] = blocks
        cells = torch.randn(2, len(blocks), block_size, num_kv_heads, head_dim, generator=generator)
        cells.flatten(1, 2)[:, seq_len:] = math.nan
        caches[:, blocks.to(move["device"])] = cells.to(**move)
    lanes[-1] = -1
    return {
        "q_BHD": torch.randn(num_rows, num_heads, head_dim, generator=generator).to(**move),
        "key_cache_NSKD": caches[0],
        "value_cache_NSKD": caches[1],
        "block_table_LM": table.to(move["device"]),
        "lanes_B": lanes.to(move["device"]),
        "seq_lens_B": torch.tensor(seq_lens, dtype=torch.int32, device=move["device"]),
    }


@pytest.mark.parametrize(("num_programs", "heads"), [(1, (6, 2)), (3, (4, 1)), (40, (2, 2))])
def test_emulated(num_programs: int, heads: tuple[int, int]) -> None:
    seq_lens = [1, 7, 8, 0, 9, 32, 33, 63, 64, 100, 5]
    given = _rows(
        seq_lens, heads=heads, block_size=BLOCK_SIZE, head_dim=DIM, device="cpu", dtype=torch.float32
    )
    q, key, value, table, lanes, lens = (tensor.numpy() for tensor in given.values())
    out, counters = np.empty(q.size, np.float32), np.zeros(2, np.int32)
    num_cells, num_kv_heads = len(key) * BLOCK_SIZE, heads[1]
    for _ in range(2):  # a launch leaves the counters as the next one needs them
        out[:] = 7.0
        run_emulated(
            (hopper_decode_kernel, hopper_decode_fetch, ring_stage, told_number),
            q.ravel(),
            *(Descriptor(side.reshape(num_cells, -1), (BLOCK_SIZE, DIM // 2)) for side in (key, value)),
            *(table.ravel(), lanes, lens, np.argsort(-lens).astype(np.int32), out, counters),
            *(DIM**-0.5 * LOG2_E, q[0].size, table.shape[1], len(lens) * num_kv_heads, num_cells),
            num_programs=num_programs,
            BLOCK_SIZE=BLOCK_SIZE,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=heads[0] // num_kv_heads,
            TILE=TILE,
            NUM_STAGES=2,
            PDL=False,
            WEIGHTS=None,
            TILES=None,
        )
        assert counters.tolist() == [0, 0]
    expected = paged_decode_ref(**given, scale=DIM**-0.5)
    torch.testing.assert_close(torch.from_numpy(out).view_as(expected), expected, rtol=1e-4, atol=1e-4)


def _on_gpu(
    *, heads: tuple[int, int], block_size: int, dtype: torch.dtype, spare_blocks: int = 3
) -> dict[str, torch.Tensor]:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")
    shape: dict[str, Any] = {"head_dim": 128, "device": "cuda", "dtype": dtype}
    return _rows(SEQ_LENS, heads=heads, block_size=block_size, spare_blocks=spare_blocks, **shape)


def _run(given: dict[str, Any], **options: Any) -> torch.Tensor:
    order = torch.argsort(given["seq_lens_B"], descending=True).int()
    out = torch.full_like(given["q_BHD"], 7.0, memory_format=torch.contiguous_format)
    scale_log2 = given["q_BHD"].shape[2] ** -0.5 * LOG2_E
    hopper_decode(**given, scale_log2=scale_log2, **{"order_B": order, "out": out} | options)
    return out


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "block_size", "dtype"),
    [
        ((16, 8), 16, torch.bfloat16),
        ((9, 3), 32, torch.float16),
        ((8, 1), 64, torch.bfloat16),
        ((4, 4), 256, torch.bfloat16),
    ],
)
def test_on_hopper(heads: tuple[int, int], block_size: int, dtype: torch.dtype) -> None:
    given = _on_gpu(heads=heads, block_size=block_size, dtype=dtype)
    expected = paged_decode_ref(**given, scale=128**-0.5)
    for is_dependent in (False, True, True):
        out = _run(given, is_dependent=is_dependent)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_row_gets_the_same_alone_and_beside_others() -> None:
    given = _on_gpu(heads=(16, 8), block_size=16, dtype=torch.bfloat16)
    out = _run(given)
    backwards = torch.argsort(given["seq_lens_B"]).int()
    assert torch.equal(_run(given, order_B=backwards), out)
    for row in (0, 11, 16):
        one = {name: given[name][row : row + 1] for name in ("q_BHD", "lanes_B", "seq_lens_B")}
        assert torch.equal(_run(given | one)[0], out[row])


@pytest.mark.gpu
def test_strided_queries() -> None:
    given = _on_gpu(heads=(16, 8), block_size=16, dtype=torch.bfloat16)
    wide = torch.full((len(SEQ_LENS), 32, 128), math.nan, dtype=torch.bfloat16, device="cuda")
    wide[:, :16] = given["q_BHD"]
    assert torch.equal(_run(given | {"q_BHD": wide[:, :16]}), _run(given))


@pytest.mark.gpu
def test_addresses_past_32_bits() -> None:
    given = _on_gpu(heads=(2, 1), block_size=16, dtype=torch.bfloat16, spare_blocks=2**31 // (16 * 128))
    expected = paged_decode_ref(**given, scale=128**-0.5)
    torch.testing.assert_close(_run(given), expected, rtol=2e-2, atol=2e-2)


def test_what_does_not_fit_goes_another_way() -> None:
    cache = torch.empty(1, 16, 8, 128, dtype=torch.bfloat16)
    assert not can_use_hopper_decode(cache, 256, num_heads=16)  # on a CPU
