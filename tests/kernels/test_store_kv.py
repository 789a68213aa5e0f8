"""Writing K and V into slots: the right cells, no other cell, and addresses past 32 bits."""

from typing import Any

import pytest
import torch

from kernels.kv_slots import write_slots
from kernels.store_kv import store_kv, store_kv_ref

CANARY = 7.0


def _caches(num_blocks: int = 5, block_size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    cache = torch.full((2, num_blocks, block_size, 3, 6), CANARY)
    return cache[0], cache[1]


def _tokens(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    pair = torch.randn(2, num_tokens, 3, 6, generator=generator)
    return pair[0], pair[1]


def test_each_token_lands_in_its_slot_and_nowhere_else() -> None:
    key_cache, value_cache = _caches()
    key, value = _tokens(4)
    slots = [17, 0, 6, 11]
    store_kv_ref(key, value, key_cache, value_cache, torch.tensor(slots))
    for cache, tokens in ((key_cache, key), (value_cache, value)):
        cells = cache.flatten(0, 1)
        for token, slot in enumerate(slots):
            assert torch.equal(cells[slot], tokens[token])
        others = [slot for slot in range(20) if slot not in slots]
        assert (cells[others] == CANARY).all()


def test_negative_slots_are_skipped_and_the_last_cell_stays() -> None:
    key_cache, value_cache = _caches()
    key, value = _tokens(3)
    store_kv_ref(key, value, key_cache, value_cache, torch.tensor([-1, 5, -20]))
    cells = key_cache.flatten(0, 1)
    assert torch.equal(cells[5], key[1])
    assert (cells[[slot for slot in range(20) if slot != 5]] == CANARY).all()
    assert torch.equal(value_cache.flatten(0, 1)[5], value[1])


def test_all_slots_negative_writes_nothing() -> None:
    key_cache, value_cache = _caches()
    store_kv_ref(*_tokens(2), key_cache, value_cache, torch.tensor([-1, -1]))
    assert (key_cache == CANARY).all()
    assert (value_cache == CANARY).all()


def test_tokens_may_be_strided_as_slices_of_a_fused_projection_are() -> None:
    key_cache, value_cache = _caches()
    fused = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))
    store_kv_ref(fused[:, 3:6], fused[:, 6:], key_cache, value_cache, torch.tensor([1, 2]))
    assert torch.equal(key_cache.flatten(0, 1)[1:3], fused[:, 3:6])
    assert torch.equal(value_cache.flatten(0, 1)[1:3], fused[:, 6:])


def test_addresses_past_two_to_the_31_do_not_wrap() -> None:
    # 2^31 + 3 cells of one byte: only the pages that are touched take memory.
    num_cells = (1 << 31) + 3
    cache_NSKD = torch.empty(num_cells, 1, 1, 1, dtype=torch.int8)
    cache_NSKD[2] = 1
    slots = torch.tensor([num_cells - 1])
    write_slots(torch.full((1, 1, 1), 5, dtype=torch.int8), cache_NSKD, slots)
    assert cache_NSKD[num_cells - 1].item() == 5
    # Where a 32-bit address would have wrapped to.
    assert cache_NSKD[2].item() == 1


def test_a_slot_past_the_cache_is_refused() -> None:
    with pytest.raises(IndexError):
        store_kv_ref(*_tokens(1), *_caches(), torch.tensor([20]))


@pytest.mark.parametrize(("num_heads", "head_dim"), [(3, 64), (1, 80), (2, 128), (5, 6)])
def test_triton_writes_what_the_reference_writes(place: Any, num_heads: int, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    fused = torch.randn(5, 3 * num_heads, head_dim, generator=generator).to(place.device, place.dtype)
    key, value = fused[:, :num_heads], fused[:, 2 * num_heads :]
    slots = torch.tensor([67, -1, 0, 31, -1000], device=place.device)
    shape = (2, 2, 5, 16, num_heads, head_dim)
    (keys, values), (keys_ref, values_ref) = torch.full(shape, CANARY, dtype=place.dtype, device=place.device)
    store_kv(key, value, keys, values, slots)
    store_kv_ref(key, value, keys_ref, values_ref, slots)
    assert torch.equal(keys, keys_ref)
    assert torch.equal(values, values_ref)


def test_tritons_addresses_past_two_to_the_31_do_not_wrap() -> None:
    # On a CPU only the pages that are touched take memory; a GPU's own test is below.
    if torch.cuda.is_available():
        pytest.skip("the GPU runs its own")
    num_cells = (1 << 31) + 3
    caches = torch.empty(2, num_cells, 1, 1, 1, dtype=torch.int8)
    caches[:, 2] = 1
    token = torch.full((1, 1, 1), 5, dtype=torch.int8)
    store_kv(token, token, caches[0], caches[1], torch.tensor([num_cells - 1]))
    assert caches[:, num_cells - 1].flatten().tolist() == [5, 5]
    assert caches[:, 2].flatten().tolist() == [1, 1]


@pytest.mark.gpu
def test_tritons_addresses_past_two_to_the_31_do_not_wrap_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    num_blocks = (1 << 31) // (16 * 8 * 128) + 2
    caches = torch.zeros(2, num_blocks, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    token = torch.ones(1, 8, 128, dtype=torch.bfloat16, device="cuda")
    store_kv(token, token, caches[0], caches[1], torch.tensor([num_blocks * 16 - 1], device="cuda"))
    assert (caches[:, -1, -1] == 1).all()
    assert caches.count_nonzero().item() == 2 * 8 * 128


def test_no_tokens_are_no_launch() -> None:
    key_cache, value_cache = _caches()
    store_kv(*_tokens(0), key_cache, value_cache, torch.empty(0, dtype=torch.int64))
    assert (key_cache == CANARY).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("value", "K and V must have equal shapes"),
        ("heads", r"tokens of \(heads, dim\) \(2, 6\) do not fit"),
        ("slots", r"slot_mapping must be int64 of shape \(2,\)"),
        ("slot dtype", "slot_mapping must be int64"),
        ("dtype", r"tokens of torch.float32 do not fit a cache of torch.float16"),
        ("strides", "caches must be contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, message: str) -> None:
    key, value = _tokens(2)
    key_cache, value_cache = _caches()
    slots = torch.tensor([0, 1])
    if change == "value":
        value = value[:1]
    elif change == "heads":
        key, value = key[:, :2], value[:, :2]
    elif change == "slots":
        slots = slots[:1]
    elif change == "slot dtype":
        slots = slots.int()
    elif change == "strides":
        key_cache = key_cache.transpose(0, 1)
        value_cache = value_cache.transpose(0, 1)
    else:
        key_cache, value_cache = key_cache.half(), value_cache.half()
    with pytest.raises(ValueError, match=message):
        store_kv_ref(key, value, key_cache, value_cache, slots)
