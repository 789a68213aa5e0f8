"""Attention of new prompts alone on Hopper: emulated on a CPU, and on such a GPU against the reference."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels import drawn_work, hopper_prefill_fetch, hopper_prefill_kernel, ring_stage, told_number
from kernels.paged_prefill import FreshRows, paged_prefill
from kernels.prefill_tiles import PrefillTiles, can_use_hopper, choose_prefill_config, prefill_tiles
from tests.kernels.emulated_gluon import Descriptor, run_emulated

QUERIES, TILE, DIM = 16, 32, 16


def _expected(heads: list[torch.Tensor], lens: list[int], first: int) -> torch.Tensor:
    """Attend row by row in float32 with q_THD, key_TKD and value_TKD."""
    q_THD = heads[0]
    out = torch.full(q_THD.shape, 7.0)
    q_HTD, key_HTD, value_HTD = (
        tensor.float().cpu().transpose(0, 1).repeat_interleave(q_THD.shape[1] // tensor.shape[1], 0)
        for tensor in heads
    )
    for length in lens:
        row = slice(first, first + length)
        out[row] = torch.nn.functional.scaled_dot_product_attention(
            q_HTD[:, row], key_HTD[:, row], value_HTD[:, row], is_causal=True
        ).transpose(0, 1)
        first += length
    return out


@pytest.mark.parametrize("num_programs", [1, 3])
def test_emulated(num_programs: int) -> None:
    lens, first, heads, kv_heads = [1, 15, 16, 17, 33, 100, 64], 3, 4, 2
    generator = np.random.default_rng(num_programs)
    num_tokens = first + sum(lens) + 2
    rows_TX = generator.standard_normal((num_tokens, (heads + 2 * kv_heads) * DIM), np.float32)
    q_TX, key_TX, value_TX = np.split(rows_TX, [heads * DIM, (heads + kv_heads) * DIM], 1)
    bounds = np.cumsum([first, *lens]).astype(np.int32)
    tiles = prefill_tiles(bounds, np.array(lens, np.int32), tokens_per_tile=QUERIES, num_tiles=30)
    counters, out = np.zeros(2, np.int32), np.full(num_tokens * heads * DIM, 7.0, np.float32)
    out_TX = out.reshape(num_tokens, heads * DIM)
    for _ in range(2):  # a launch leaves the counters as the next one needs them
        out[:] = 7.0
        run_emulated(
            (hopper_prefill_kernel, hopper_prefill_fetch, drawn_work, ring_stage, told_number),
            Descriptor(q_TX, (QUERIES, DIM)),
            Descriptor(key_TX, (TILE, DIM)),
            Descriptor(value_TX, (TILE, DIM)),
            *(
                tiles.ravel(),
                counters,
                Descriptor(out_TX, (QUERIES, DIM)),
                out,
                DIM**-0.5 * math.log2(math.e),
                len(tiles) * heads // 2,
            ),
            num_programs=num_programs,
            NUM_HEADS=heads,
            GROUP=heads // kv_heads,
            NUM_STAGES=2,
            IS_BESIDE=False,
            PDL=False,
        )
        assert counters.tolist() == [0, 0]
    parts = [torch.from_numpy(part.copy()).view(num_tokens, -1, DIM) for part in (q_TX, key_TX, value_TX)]
    expected = _expected(parts, lens, first)
    torch.testing.assert_close(torch.from_numpy(out).view_as(expected), expected, rtol=1e-4, atol=1e-4)


def _on_gpu(lens: list[int], *, heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> dict[str, Any]:
    """Rows behind three tokens of none, as paged_prefill takes them; the cache is not read."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")
    (num_heads, num_kv_heads), first = heads, 3
    generator = torch.Generator().manual_seed(head_dim)
    sizes = [number * head_dim for number in (num_heads, num_kv_heads, num_kv_heads)]
    rows_TX = torch.randn(first + sum(lens), sum(sizes), generator=generator).to("cuda", dtype)
    q_TX, key_TX, value_TX = torch.split(rows_TX, sizes, 1)
    cache = torch.full((1, 16, num_kv_heads, head_dim), math.nan, dtype=dtype, device="cuda")
    config = choose_prefill_config(max(lens), cache_NSKD=cache, group=num_heads // num_kv_heads, are_new=True)
    assert config.is_hopper
    bounds, seq_lens = np.cumsum([first, *lens]).astype(np.int32), np.array(lens, np.int32)
    tiles = prefill_tiles(bounds, seq_lens, tokens_per_tile=64, num_tiles=sum(lens) // 64 + 2 * len(lens))
    return {
        "q_THD": q_TX.view(len(q_TX), num_heads, head_dim),
        "key_cache_NSKD": cache,
        "value_cache_NSKD": cache,
        "block_table_LM": torch.zeros(len(lens), 1, dtype=torch.int32, device="cuda"),
        "lanes_R": torch.arange(len(lens), dtype=torch.int32, device="cuda"),
        "cu_seqlens_q": torch.from_numpy(bounds).cuda(),
        "seq_lens_R": torch.from_numpy(seq_lens).cuda(),
        "scale": head_dim**-0.5,
        "tiles": PrefillTiles(tiles_I4=torch.from_numpy(tiles).cuda(), config=config, has_old=False),
        "fresh": FreshRows(key_TX=key_TX, value_TX=value_TX),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "head_dim"), [((16, 8), 128), ((8, 2), 128), ((4, 2), 64)])
def test_on_hopper(heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> None:
    lens = [1, 63, 64, 65, 127, 128, 129, 700, 1024, 333, 2]
    given = _on_gpu(lens, heads=heads, head_dim=head_dim, dtype=dtype)
    sides = (given["fresh"].key_TX, given["fresh"].value_TX)
    parts = [given["q_THD"], *(side.view(len(side), -1, head_dim) for side in sides)]
    out = torch.full_like(given["q_THD"], 7.0, memory_format=torch.contiguous_format)
    for _ in range(2):
        paged_prefill(**given, out=out)
        expected = _expected(parts, lens, 3)
        torch.testing.assert_close(out.float().cpu(), expected, rtol=2e-2, atol=2e-2)
        out[3:] = 0


@pytest.mark.gpu
def test_a_prompt_gets_the_same_alone_and_beside_others() -> None:
    lens = [700, 128, 1024, 65]
    given = _on_gpu(lens, heads=(16, 8), head_dim=128, dtype=torch.bfloat16)
    out = paged_prefill(**given)
    for row, length in enumerate(lens):
        first = 3 + sum(lens[:row])
        bounds, lengths = np.array([first, first + length], np.int32), np.array([length], np.int32)
        tiles = torch.from_numpy(prefill_tiles(bounds, lengths, tokens_per_tile=64)).cuda()
        alone = paged_prefill(**given | {"tiles": replace(given["tiles"], tiles_I4=tiles)})
        assert torch.equal(alone[first : first + length], out[first : first + length])


def test_other_devices_and_heads_do_without() -> None:
    cache = torch.empty(1, 16, 2, 128, dtype=torch.bfloat16)
    assert not can_use_hopper(cache, 2)
    assert not choose_prefill_config(1024, cache_NSKD=cache, group=2, are_new=True).is_hopper
