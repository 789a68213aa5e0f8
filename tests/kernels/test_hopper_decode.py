"""Decode attention of many rows on Hopper: emulated on a CPU, and on such a GPU against the reference."""

import math
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from kernels import drawn_work, hopper_decode_fetch, hopper_decode_kernel, ring_stage, told_number
from kernels import hopper_decode as module
from kernels import paged_decode as paged_decode_module
from kernels.decode_config import DecodeConfig
from kernels.hopper_decode import can_use_hopper_decode, hopper_decode
from kernels.paged_decode import LOG2_E, decode_config_for, paged_decode, paged_decode_ref
from tests.kernels.emulated_gluon import Descriptor, run_emulated

TILE, DIM = 32, 16
UNTOUCHED, IN_USE = 7.0, [5, 1]
SEQ_LENS = [1, 15, 16, 17, 0, 63, 64, 65, 127, 128, 129, 700, 1024, 333, 2, 400, 40, *range(200, 260, 3)]


def _rows(
    seq_lens: list[int], *, heads: tuple[int, int], block_size: int, spare_blocks: int = 3, **shape: Any
) -> dict[str, Any]:
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


class _Front:
    """The kernel in front of a launch: queries, newest cells and counters are right once it has ended."""

    def __init__(self, given: dict[str, Any], out: Any, counters: Any) -> None:
        self._lock, self._has_ended, self._out, self._counters = threading.Lock(), False, out, counters
        table, lanes, lens = (given[name].numpy() for name in ("block_table_LM", "lanes_B", "seq_lens_B"))
        block_size = given["key_cache_NSKD"].shape[1]
        self._late: list[tuple[Any, Any]] = [(given["q_BHD"].numpy(), slice(None))]
        for lane, seq_len in zip(lanes, lens, strict=True):
            if lane >= 0 and seq_len > 0:
                cell = (table[lane, (seq_len - 1) // block_size], (seq_len - 1) % block_size)
                self._late += [(given[f"{side}_cache_NSKD"].numpy(), cell) for side in ("key", "value")]
        self._values = [numbers[place].copy() for numbers, place in self._late]
        counters[:] = IN_USE
        for numbers, place in self._late:
            numbers[place] = math.nan

    def end(self) -> None:
        """Be waited for."""
        with self._lock:
            if self._has_ended:
                return
            time.sleep(0.05)  # what does not wait shows
            assert (self._out == UNTOUCHED).all()
            assert self._counters.tolist() == IN_USE
            self._counters[:] = 0
            for (numbers, place), values in zip(self._late, self._values, strict=True):
                numbers[place] = values
            self._has_ended = True


@pytest.mark.parametrize(
    ("num_programs", "num_stages", "heads", "block_size"),
    [(1, 2, (6, 2), 8), (3, 2, (4, 1), 32), (5, 6, (4, 1), 16), (40, 3, (2, 2), 64)],
)
def test_emulated(num_programs: int, num_stages: int, heads: tuple[int, int], block_size: int) -> None:
    given = _rows(
        [1, 7, 8, 0, 9, 32, 33, 63, 64, 100, 129, 5],
        heads=heads, block_size=block_size, head_dim=DIM, device="cpu", dtype=torch.float32,
    )  # fmt: skip
    given["q_BHD"][9] *= 40  # weights that are not relative to the best so far would overflow
    expected = paged_decode_ref(**given, scale=DIM**-0.5)
    wide = torch.full((len(expected), heads[0] + 3, DIM), math.nan)
    wide[:, : heads[0]] = given["q_BHD"]
    q, key, value, table, lanes, lens = (tensor.numpy() for tensor in (given | {"q_BHD": wide}).values())
    # A short row first: nothing of it is there early.
    order = np.argsort(np.where(lens == 1, -1000, -lens)).astype(np.int32)
    out, counters = np.empty(expected.shape, np.float32), np.zeros(2, np.int32)
    num_kv_heads, box_size = heads[1], min(block_size, TILE)
    for _ in range(2):  # a launch leaves the counters as the next one needs them
        out[:] = UNTOUCHED
        run_emulated(
            (hopper_decode_kernel, hopper_decode_fetch, drawn_work, ring_stage, told_number),
            q.reshape(-1),
            *(
                Descriptor(side.reshape(-1, box_size, num_kv_heads * DIM), (1, box_size, DIM // 2))
                for side in (key, value)
            ),
            *(table.reshape(-1), lanes, lens, order, out.reshape(-1), counters),
            *(DIM**-0.5 * LOG2_E, q[0].size, table.shape[1], len(lens) * num_kv_heads),
            num_programs=num_programs,
            end_front=_Front(given | {"q_BHD": wide}, out, counters).end,
            BLOCK_SIZE=block_size,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=heads[0] // num_kv_heads,
            QUERIES=8,
            TILE=TILE,
            NUM_STAGES=num_stages,
            WEIGHTS=None,
            TILES=None,
            PDL=True,
        )
        assert counters.tolist() == [0, 0]
        torch.testing.assert_close(torch.from_numpy(out), expected, rtol=1e-4, atol=1e-4)


def _on_gpu(
    *, heads: tuple[int, int], block_size: int, dtype: torch.dtype, spare_blocks: int = 3
) -> dict[str, Any]:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")
    shape: dict[str, Any] = {"head_dim": 128, "device": "cuda", "dtype": dtype}
    return _rows(SEQ_LENS, heads=heads, block_size=block_size, spare_blocks=spare_blocks, **shape)


def _times(given: dict[str, Any], number: int) -> dict[str, Any]:
    """Return rows as often as that: several have a lane."""
    return given | {name: torch.cat([given[name]] * number) for name in ("q_BHD", "lanes_B", "seq_lens_B")}


def _run(given: dict[str, Any], **options: Any) -> torch.Tensor:
    order = torch.argsort(given["seq_lens_B"], descending=True).int()
    out = torch.full_like(given["q_BHD"], 7.0, memory_format=torch.contiguous_format)
    scale_log2 = given["q_BHD"].shape[2] ** -0.5 * LOG2_E
    hopper_decode(**given, scale_log2=scale_log2, **{"order_B": order, "out": out} | options)
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("num_multiprocessors", [1, 132])
@pytest.mark.parametrize(
    ("heads", "block_size", "dtype", "num_times"),
    [
        ((16, 8), 16, torch.bfloat16, 1),
        ((16, 8), 16, torch.bfloat16, 2),
        ((16, 8), 16, torch.bfloat16, 4),
        ((9, 3), 32, torch.float16, 4),
        ((8, 1), 64, torch.bfloat16, 1),
        ((4, 4), 256, torch.bfloat16, 8),
    ],
)
def test_on_hopper(
    heads: tuple[int, int],
    block_size: int,
    dtype: torch.dtype,
    num_times: int,
    num_multiprocessors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many pieces of work as each way of sharing a multiprocessor out is for."""
    given = _times(_on_gpu(heads=heads, block_size=block_size, dtype=dtype), num_times)
    # Of one: up to three programs, each of which draws up to some four hundred pieces of work.
    monkeypatch.setattr(module, "num_multiprocessors", lambda _: num_multiprocessors)
    expected = paged_decode_ref(**given, scale=128**-0.5)
    for is_dependent in (False, True, True):
        out = _run(given, is_dependent=is_dependent)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_row_gets_the_same_alone_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    given = _on_gpu(heads=(16, 8), block_size=16, dtype=torch.bfloat16)
    monkeypatch.setattr(module, "num_multiprocessors", lambda _: 2)
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


@pytest.mark.gpu
def test_whole_rows_in_an_order_go_here(monkeypatch: pytest.MonkeyPatch) -> None:
    given = _on_gpu(heads=(16, 8), block_size=16, dtype=torch.bfloat16)
    given = _times(given, 2)
    order = torch.argsort(given["seq_lens_B"], descending=True).int()
    calls: list[None] = []

    def count(*arguments: Any, **options: Any) -> None:
        calls.append(None)
        hopper_decode(*arguments, **options)

    monkeypatch.setattr(paged_decode_module, "hopper_decode", count)
    out = paged_decode(**given, scale=128**-0.5, order_B=order)
    assert len(calls) == 1
    expected = paged_decode_ref(**given, scale=128**-0.5)
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    split = DecodeConfig(num_splits=2, tile_size=64, num_warps=4, num_stages=3)
    others: tuple[dict[str, Any], ...] = ({"order_B": order, "config": split}, {})
    for options in others:
        out = paged_decode(**given, scale=128**-0.5, **options)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("fits", "shape", "num_rows", "num_heads", "dtype"),
    [
        (True, (1, 16, 8, 128), 33, 16, torch.bfloat16),
        (True, (1, 256, 8, 128), 33, 64, torch.float16),
        (False, (1, 16, 8, 128), 32, 16, torch.bfloat16),
        (False, (1, 16, 8, 128), 49, 72, torch.bfloat16),
        (False, (1, 24, 8, 128), 49, 16, torch.bfloat16),
        (False, (1, 8, 8, 128), 49, 16, torch.bfloat16),
        (False, (1, 16, 8, 64), 49, 16, torch.bfloat16),
        (False, (1, 16, 8, 128), 49, 16, torch.float32),
        (False, (2**31 // 16, 16, 8, 128), 49, 16, torch.bfloat16),
    ],
)
def test_what_does_not_fit_goes_another_way(
    fits: bool,
    shape: tuple[int, ...],
    num_rows: int,
    num_heads: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = torch.empty(shape, dtype=dtype, device="meta")
    assert not can_use_hopper_decode(cache, num_rows, num_heads=num_heads)  # this device is none
    monkeypatch.setattr(module, "runs_gluon", lambda _: True)
    assert can_use_hopper_decode(cache, num_rows, num_heads=num_heads) == fits


@pytest.mark.parametrize(("num_rows", "num_splits"), [(32, 2), (33, 1), (48, 1), (256, 1)])
def test_rows_that_go_here_are_not_split(
    num_rows: int, num_splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = torch.empty((1, 16, 8, 128), dtype=torch.bfloat16)
    given: dict[str, Any] = {"max_context_len": 4096, "cache_NSKD": cache}
    assert decode_config_for(33, **given, is_ordered=True).num_splits == 2  # this device has no such kernel
    monkeypatch.setattr(module, "runs_gluon", lambda _: True)
    assert decode_config_for(num_rows, **given, is_ordered=True).num_splits == num_splits
    assert decode_config_for(33, **given).num_splits == 2
