"""The backends for steps by lane against the torch backend: mixed steps, padding, capture in a graph."""

from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels import triton_attention
from kernels.attention_backend import LaneAttentionBackend, make_attention_backend, make_lane_backend
from kernels.decode_config import make_decode_workspace
from kernels.lane_step import LaneStep, PrefillRows, lane_step_of
from kernels.prefill_tiles import PrefillConfig, PrefillTiles, prefill_tiles
from kernels.qkv_rows import QkvRows, rotate_and_store

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
CANARY = 7.0
MIXED = [(1, 13), (1, 2), (6, 6), (3, 17), (1, 5), (1, 40)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeStep:
    """What a backend reads of a step."""

    slot_mapping_T: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens_B: torch.Tensor
    block_table_BM: torch.Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    num_decode_rows: int
    kv_caches: tuple[tuple[torch.Tensor, torch.Tensor], ...]


def _step(place: Any, rows: list[tuple[int, int]], *, num_decode_rows: int, block_size: int) -> FakeStep:
    """Rows of (query_len, context_len), each in blocks of its own; block 0 is nobody's."""
    widest = max(-(-context // block_size) for _, context in rows)
    table = 1 + torch.arange(len(rows) * widest, dtype=torch.int32).view(len(rows), widest).flip(0)
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(2, 1 + table.numel(), block_size, KV_HEADS, HEAD_DIM, generator=generator)
    cache[:, 0] = CANARY
    slots = []
    for row, (query_len, context) in enumerate(rows):
        index = torch.arange(context - query_len, context)
        slots.append(table[row].long()[index // block_size] * block_size + index % block_size)
    query_lens, context_lens = tuple(query for query, _ in rows), tuple(context for _, context in rows)
    cache = cache.to(device=place.device, dtype=place.dtype)
    return FakeStep(
        slot_mapping_T=torch.cat(slots).to(place.device),
        cu_seqlens_q=torch.tensor([0, *query_lens], device=place.device).cumsum(0, dtype=torch.int32),
        seq_lens_B=torch.tensor(context_lens, dtype=torch.int32, device=place.device),
        block_table_BM=table.to(place.device),
        query_lens=query_lens,
        context_lens=context_lens,
        num_decode_rows=num_decode_rows,
        kv_caches=((cache[0], cache[1]),),
    )


def _random(place: Any, num_tokens: int, num_heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_tokens, num_heads, HEAD_DIM, generator=generator)
    return values.to(device=place.device, dtype=place.dtype)


def _compare_with_torch(backend: LaneAttentionBackend, place: Any, *, block_size: int) -> None:
    """Store and attend with both, each over its own copy of the cache."""
    for num_decode_rows, rows in ((2, MIXED), (0, MIXED), (3, [(1, 9), (1, 16), (1, 33)])):
        step = _step(place, rows, num_decode_rows=num_decode_rows, block_size=block_size)
        num_tokens = sum(step.query_lens)
        new_keys, new_values = (
            _random(place, num_tokens, KV_HEADS, 1),
            _random(place, num_tokens, KV_HEADS, 2),
        )
        queries = _random(place, num_tokens, HEADS, 3)
        results = []
        for one in (make_attention_backend("torch"), backend):
            keys, values = (cache.clone() for cache in step.kv_caches[0])
            plan = one.plan(step)
            one.store(new_keys, new_values, keys, values, plan)
            out = torch.full_like(queries, CANARY)
            assert one.attend(queries, keys, values, plan, out=out) is out
            assert torch.equal(one.attend(queries, keys, values, plan), out)
            results.append((keys, values, out))
        for expected, result in zip(*results, strict=True):
            torch.testing.assert_close(result, expected, rtol=place.tolerance, atol=place.tolerance)


def _check_lanes(backend: LaneAttentionBackend, place: Any, *, block_size: int) -> None:
    """Rows in other lanes, with padding between them, give what they give by row; padding gives zeros."""
    rows = [(1, 20), (1, 1), (5, 37), (1, 16)]
    step = _step(place, rows, num_decode_rows=2, block_size=block_size)
    queries = _random(place, 8, HEADS, 4)
    by_row = backend.attend(queries, *step.kv_caches[0], backend.plan(step))
    lanes = torch.tensor([5, -1, 0, 2, 4], dtype=torch.int32, device=place.device)
    table = torch.full((6, step.block_table_BM.shape[1]), 2**30, dtype=torch.int32, device=place.device)
    table[lanes[[0, 2, 3, 4]].long()] = step.block_table_BM
    # Tokens of prefill rows begin one later: padding stands before them.
    bounds = torch.tensor([3, 8, 9], dtype=torch.int32, device=place.device)
    lane_step = LaneStep(
        block_table_LM=table,
        lanes_B=lanes,
        seq_lens_B=torch.tensor([20, 0, 1, 37, 16], dtype=torch.int32, device=place.device),
        num_decode_rows=3,
        prefill=PrefillRows(cu_seqlens_q=bounds, max_seqlen_q=5),
    )
    padded = torch.cat((queries[:1], torch.full_like(queries[:1], float("nan")), queries[1:]))
    by_lane = backend.attend(padded, *step.kv_caches[0], backend.plan_lanes(lane_step))
    assert torch.equal(by_lane[[0, *range(2, 9)]], by_row)
    assert (by_lane[1] == 0).all()


def test_triton_equals_torch(place: Any) -> None:
    _compare_with_torch(make_lane_backend("triton", block_size=16), place, block_size=16)


def test_triton_by_lane(place: Any) -> None:
    _check_lanes(make_lane_backend("triton", block_size=16), place, block_size=16)


def test_triton_by_lists_of_tiles(place: Any) -> None:
    """Rows of one list leave the others' alone, whichever are in it; all together are those of one list."""
    backend = make_lane_backend("triton", block_size=16)
    rows = [(1, 13), (40, 40), (3, 17), (9, 9), (20, 50)]
    step = _step(place, rows, num_decode_rows=1, block_size=16)
    queries = _random(place, sum(step.query_lens), HEADS, 5)
    whole = lane_step_of(step)
    rows_alone = whole.prefill
    assert rows_alone is not None
    config = PrefillConfig(num_queries=16, tile_size=16, fresh_tile_size=16, num_warps=4, num_stages=2)
    bounds, seq_lens = np.array([1, 41, 44, 53, 73], np.int32), np.array([40, 17, 9, 50], np.int32)

    def attend(*lists: list[int]) -> torch.Tensor:
        tiles = []
        for rows_of_list in lists:
            tiles_I4 = prefill_tiles(
                bounds, seq_lens, tokens_per_tile=8, rows=np.array(rows_of_list), num_tiles=14
            )
            moved = torch.from_numpy(tiles_I4).to(place.device)
            tiles.append(PrefillTiles(tiles_I4=moved, config=config, has_old=1 in rows_of_list))
        prefill = replace(rows_alone, tiles=tuple(tiles))
        out = torch.full_like(queries, CANARY)
        plan = backend.plan_lanes(replace(whole, prefill=prefill))
        return backend.attend(queries, *step.kv_caches[0], plan, out=out)

    expected = make_attention_backend("torch")
    everything = expected.attend(queries, *step.kv_caches[0], expected.plan(step))
    both = attend([0, 2], [1, 3])
    torch.testing.assert_close(both, everything, rtol=place.tolerance, atol=place.tolerance)
    new = attend([0, 2])
    for old in (slice(41, 44), slice(53, 73)):
        assert (new[old] == CANARY).all()
        new[old] = both[old]
    assert torch.equal(new, both)


@pytest.mark.parametrize("num_decode_rows", [1, 15, 16, 40])
def test_few_rows_beside_prompts_are_launched_as_those_of_captured_steps(
    num_decode_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured steps have room for 16 decode rows at least: no other shape may be left to compile."""
    place = SimpleNamespace(device="cpu", dtype=torch.float32)
    step = _step(
        place, [(1, 40)] * num_decode_rows + [(5, 9)], num_decode_rows=num_decode_rows, block_size=16
    )
    chosen: list[tuple[int, ...]] = []
    launched: list[Any] = []

    def choose(*sizes: int, **_: Any) -> str:
        chosen.append(sizes)
        return "shape"

    monkeypatch.setattr(triton_attention, "decode_config_for", choose)
    monkeypatch.setattr(triton_attention, "paged_decode", lambda *_, config, **__: launched.append(config))
    backend = make_lane_backend("triton", block_size=16)
    backend.attend(_random(place, num_decode_rows + 5, HEADS, 3), *step.kv_caches[0], backend.plan(step))
    assert (chosen, launched) == ([(max(16, num_decode_rows), 48)], ["shape"])


def _compare_qkv(
    backend: LaneAttentionBackend, place: Any, *, block_size: int, has_residual: bool = False
) -> None:
    """Projected tokens give what norms, RoPE, store and attention one after another give.

    With has_residual they were projected without their norm.
    """
    for num_decode_rows, rows in ((2, [(1, 13), (1, 2), (3, 17)]), (3, [(1, 9), (1, 16), (1, 33)])):
        step = _step(place, rows, num_decode_rows=num_decode_rows, block_size=block_size)
        num_tokens = sum(step.query_lens)
        ends = [range(context - query, context) for query, context in rows]
        angles = _random(place, 40, 1, 6)[:, 0].float()
        qkv_rows = QkvRows(
            qkv_TX=_random(place, num_tokens, HEADS + 2 * KV_HEADS, 7).flatten(1),
            positions_T=torch.tensor([*chain(*ends)], dtype=torch.int32, device=place.device),
            slot_mapping_T=step.slot_mapping_T,
            cos_sin_PD=angles,
            q_norm_D=None,
            k_norm_D=None,
            eps=1e-6,
            q_THD=_random(place, num_tokens, HEADS, 8),
            residual_TE=3 * _random(place, num_tokens, 1, 9)[:, 0] if has_residual else None,
        )
        (keys, values), (old_keys, old_values) = (
            [cache.clone() for cache in step.kv_caches[0]] for _ in range(2)
        )
        plan = backend.plan(step)
        q_THD = rotate_and_store(qkv_rows, old_keys, old_values)
        expected = backend.attend(q_THD, old_keys, old_values, plan)
        out = torch.full_like(expected, CANARY)
        assert backend.attend_qkv(qkv_rows, keys, values, plan, out=out) is out
        for result, reference in ((keys, old_keys), (values, old_values), (out, expected)):
            torch.testing.assert_close(result, reference, rtol=place.tolerance, atol=place.tolerance)


def test_triton_from_projected_tokens(place: Any) -> None:
    _compare_qkv(make_lane_backend("triton", block_size=16), place, block_size=16)


def test_triton_from_tokens_projected_without_their_norm(one_place: Any) -> None:
    _compare_qkv(make_lane_backend("triton", block_size=16), one_place, block_size=16, has_residual=True)


@pytest.mark.gpu
def test_flash_attn_from_projected_tokens(place: Any) -> None:
    _compare_qkv(_flash_place(place), place, block_size=256)


def _flash_place(place: Any) -> LaneAttentionBackend:
    pytest.importorskip("flash_attn", reason="flash-attn is not installed", exc_type=ImportError)
    if place.dtype == torch.float32:
        pytest.skip("flash-attn has no float32")
    return make_lane_backend("flash-attn", block_size=256)


@pytest.mark.gpu
def test_flash_attn_equals_torch(place: Any) -> None:
    _compare_with_torch(_flash_place(place), place, block_size=256)


@pytest.mark.gpu
def test_flash_attn_by_lane(place: Any) -> None:
    _check_lanes(_flash_place(place), place, block_size=256)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["triton", "flash-attn"])
def test_decode_in_a_graph(place: Any, name: str) -> None:
    """A captured step reads lanes, lengths and tables as they are when it is replayed."""
    if name == "flash-attn":
        _flash_place(place)
    workspace = make_decode_workspace(
        4 * HEADS * 32, num_counters=4 * KV_HEADS, head_dim=HEAD_DIM, device=place.device
    )
    backend = make_lane_backend(name, block_size=256, workspace=workspace)
    step = _step(place, [(1, 700), (1, 3), (1, 256), (1, 511)], num_decode_rows=4, block_size=256)
    queries = _random(place, 4, HEADS, 5)
    expected = backend.attend(queries, *step.kv_caches[0], backend.plan(step))
    lanes = torch.tensor([0, -1, -1, -1], dtype=torch.int32, device=place.device)
    seq_lens = torch.tensor([1, 0, 0, 0], dtype=torch.int32, device=place.device)
    lane_step = LaneStep(
        block_table_LM=step.block_table_BM, lanes_B=lanes, seq_lens_B=seq_lens, num_decode_rows=4
    )
    out = torch.empty_like(queries)

    def launch() -> None:
        backend.attend(queries, *step.kv_caches[0], backend.plan_lanes(lane_step), out=out)

    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for num_live in (4, 2, 0, 3):
        lanes.copy_(torch.tensor([*range(num_live), *[-1] * (4 - num_live)]))
        seq_lens.copy_(step.seq_lens_B)
        seq_lens[num_live:] = 0
        out.fill_(CANARY)
        graph.replay()
        assert torch.equal(out[:num_live], expected[:num_live])
        assert (out[num_live:] == 0).all()
