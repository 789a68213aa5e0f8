"""The torch backend against attention written as loops over rows, heads and tokens, in float64."""

import math
from dataclasses import dataclass

import pytest
import torch

from kernels import paged_attention
from kernels.attention_backend import make_attention_backend

BLOCK_SIZE = 4
NAN = float("nan")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step, its queries and every row's whole K and V."""

    step: FakeStep
    q_THD: torch.Tensor
    new_key_TKD: torch.Tensor
    new_value_TKD: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def _case(
    rows: list[tuple[int, int]], *, num_decode_rows: int, heads: tuple[int, int] = (6, 2), head_dim: int = 8
) -> Case:
    """Rows of (query_len, context_len); the context before the queries is in the cache already."""
    generator = torch.Generator().manual_seed(len(rows) * 1000 + sum(map(sum, rows)))
    num_heads, num_kv_heads = heads
    num_blocks = [-(-context // BLOCK_SIZE) for _, context in rows]
    pool_size = 1 + sum(num_blocks) + 3
    # What nobody wrote is NaN: reading it shows.
    cache = torch.full((2, pool_size, BLOCK_SIZE, num_kv_heads, head_dim), NAN)
    ids = torch.tensor_split(torch.randperm(pool_size - 1, generator=generator) + 1, _ends(num_blocks))
    table = torch.full((len(rows), max(num_blocks) + 2), 10_000, dtype=torch.int32)
    keys, values, slots = [], [], []
    for row, (query_len, context_len) in enumerate(rows):
        table[row, : num_blocks[row]] = ids[row]
        key, value = torch.randn(2, context_len, num_kv_heads, head_dim, generator=generator)
        place = torch.arange(context_len)
        row_slots = ids[row][place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
        num_old = context_len - query_len
        cache[0].flatten(0, 1)[row_slots[:num_old]] = key[:num_old]
        cache[1].flatten(0, 1)[row_slots[:num_old]] = value[:num_old]
        keys.append(key)
        values.append(value)
        slots.append(row_slots[num_old:])
    query_lens = tuple(query for query, _ in rows)
    context_lens = tuple(context for _, context in rows)
    step = FakeStep(
        slot_mapping_T=torch.cat(slots),
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens_B=torch.tensor(context_lens, dtype=torch.int32),
        block_table_BM=table,
        query_lens=query_lens,
        context_lens=context_lens,
        num_decode_rows=num_decode_rows,
        kv_caches=((cache[0], cache[1]),),
    )
    return Case(
        step=step,
        q_THD=torch.randn(sum(query_lens), num_heads, head_dim, generator=generator),
        new_key_TKD=torch.cat([key[-query:] for key, query in zip(keys, query_lens, strict=True)]),
        new_value_TKD=torch.cat([value[-query:] for value, query in zip(values, query_lens, strict=True)]),
        keys=keys,
        values=values,
    )


def _ends(counts: list[int]) -> list[int]:
    return torch.tensor(counts).cumsum(0).tolist()


def _run(case: Case) -> torch.Tensor:
    backend = make_attention_backend("torch")
    plan = backend.plan(case.step)
    cache = case.step.kv_caches[0]
    backend.store(case.new_key_TKD, case.new_value_TKD, *cache, plan)
    return backend.attend(case.q_THD, *cache, plan)


def _naive(case: Case) -> torch.Tensor:
    outputs = []
    token = 0
    for row, (query_len, context_len) in enumerate(
        zip(case.step.query_lens, case.step.context_lens, strict=True)
    ):
        for place in range(context_len - query_len, context_len):
            outputs.append(_naive_token(case, token, row=row, num_seen=place + 1))
            token += 1
    return torch.stack(outputs).float()


def _naive_token(case: Case, token: int, *, row: int, num_seen: int) -> torch.Tensor:
    num_heads, head_dim = case.q_THD.shape[1:]
    group = num_heads // case.keys[row].shape[1]
    heads = []
    for head in range(num_heads):
        key = case.keys[row][:num_seen, head // group].double()
        value = case.values[row][:num_seen, head // group].double()
        weights = (key @ case.q_THD[token, head].double() / math.sqrt(head_dim)).softmax(0)
        heads.append(weights @ value)
    return torch.stack(heads)


CASES = {
    "one decode row": ([(1, 9)], 1),
    "first token of a context": ([(1, 1)], 1),
    "decode rows of many lengths": ([(1, 1), (1, 4), (1, 5), (1, 31), (1, 8), (1, 3)], 6),
    "decode rows at full blocks": ([(1, 8), (1, 8), (1, 8)], 3),
    "whole prompts": ([(7, 7), (1, 1), (16, 16)], 0),
    "chunks after a prefix": ([(3, 11), (1, 6), (5, 9), (4, 8)], 0),
    "all mixed": ([(1, 13), (1, 2), (6, 6), (3, 17), (1, 5)], 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("heads", [(6, 2), (3, 3), (4, 1), (9, 3)])
def test_equals_loops(name: str, heads: tuple[int, int]) -> None:
    rows, num_decode_rows = CASES[name]
    case = _case(rows, num_decode_rows=num_decode_rows, heads=heads)
    # 1e-5: a float32 sum of at most 31 products of unit normals.
    torch.testing.assert_close(_run(case), _naive(case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("max_tile_tokens", [1, 16, 40, 10_000])
def test_tiles_of_any_size_give_the_same(max_tile_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "MAX_TILE_TOKENS", max_tile_tokens)
    case = _case([(1, length) for length in (30, 2, 9, 9, 1, 40, 12)], num_decode_rows=7)
    torch.testing.assert_close(_run(case), _naive(case), rtol=1e-5, atol=1e-5)


def test_tiles_cover_all_rows_in_order_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "MAX_TILE_TOKENS", 32)
    # In blocks of 4: 1, 2, 2 | 5, 1 is 2 x 20 = 40 and too many | 1, 3 | 9 is over alone.
    case = _case([(1, length) for length in (4, 8, 5, 20, 1, 12, 36)], num_decode_rows=7)
    plan = paged_attention.TorchAttentionBackend().plan(case.step)
    rows = [(tile.rows.start, tile.rows.stop) for tile in plan.decode_tiles]
    assert rows == [(0, 3), (3, 4), (4, 6), (6, 7)]


def test_decode_row_is_bit_equal_whatever_lies_in_its_neighbours_cells() -> None:
    case = _case([(1, 5), (1, 30), (1, 7)], num_decode_rows=3)
    first = _run(case)
    other = _case([(1, 5), (1, 30), (1, 7)], num_decode_rows=3)
    other.step.kv_caches[0][0].nan_to_num_(1e30)
    other.step.kv_caches[0][1].nan_to_num_(1e30)
    assert torch.equal(_run(other), first)


def test_negative_slots_are_skipped() -> None:
    case = _case([(1, 5), (3, 7)], num_decode_rows=1)
    slots = case.step.slot_mapping_T
    untouched = int(slots[2])
    slots[2] = -1
    backend = make_attention_backend("torch")
    key_cache, value_cache = case.step.kv_caches[0]
    before = key_cache.clone()
    backend.store(case.new_key_TKD, case.new_value_TKD, key_cache, value_cache, backend.plan(case.step))
    cells = key_cache.flatten(0, 1)
    for token in (0, 1, 3):
        assert torch.equal(cells[slots[token]], case.new_key_TKD[token])
    assert cells[untouched].isnan().all()
    changed = (~torch.isclose(cells, before.flatten(0, 1), equal_nan=True)).any(-1).any(-1)
    assert sorted(changed.nonzero().flatten().tolist()) == sorted(slots[[0, 1, 3]].tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    case = _case([(1, 13), (1, 2), (6, 6), (3, 17)], num_decode_rows=2)
    cache = case.step.kv_caches[0]
    half = Case(
        step=FakeStep(
            **{
                name: getattr(case.step, name)
                for name in FakeStep.__dataclass_fields__
                if name != "kv_caches"
            },
            kv_caches=((cache[0].to(dtype), cache[1].to(dtype)),),
        ),
        q_THD=case.q_THD.to(dtype),
        new_key_TKD=case.new_key_TKD.to(dtype),
        new_value_TKD=case.new_value_TKD.to(dtype),
        keys=[key.to(dtype) for key in case.keys],
        values=[value.to(dtype) for value in case.values],
    )
    # 2e-2: bfloat16 has 8 bits of mantissa, outputs are of order 1.
    torch.testing.assert_close(_run(half).float(), _naive(half), rtol=2e-2, atol=2e-2)
