"""Norms, RoPE and KV store in one: any head dim, any group, skipped slots, addresses past 32 bits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from kernels.qk_norm_rope import choose_warps, qk_norm_rope_store, qk_norm_rope_store_ref
from model.rope import apply_rope, inverse_frequencies, rope_angles
from model.rope_config import RopeConfig

EPS = 1e-6
CANARY = 7.0
NUM_POSITIONS = 300
SHAPES = [(4, 2, 64), (3, 1, 80), (9, 3, 64), (16, 8, 128), (1, 1, 6), (2, 1, 256)]
SLOTS = [79, -1, 0, 31, -1000]


@dataclass(kw_only=True)
class Case:
    """What the kernel is given, and caches full of canaries."""

    qkv: torch.Tensor
    positions: torch.Tensor
    cos_sin: torch.Tensor
    weights: tuple[torch.Tensor | None, torch.Tensor | None]
    caches: torch.Tensor
    slots: torch.Tensor
    num_heads: int
    num_kv_heads: int

    def run(
        self, function: Callable[..., torch.Tensor], caches: torch.Tensor, *out: torch.Tensor
    ) -> torch.Tensor:
        inputs = (self.qkv, self.positions, self.cos_sin, *self.weights, EPS)
        return function(*inputs, *caches, self.slots, self.num_heads, self.num_kv_heads, *out)


def _case(
    place: Any, shape: tuple[int, int, int], *, has_norm: bool = True, slots: list[int] = SLOTS
) -> Case:
    num_heads, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(head_dim)
    num_tokens, size = len(slots), (num_heads + 2 * num_kv_heads) * head_dim
    weights = (1 + 0.2 * torch.randn(2, head_dim, generator=generator)).to(place.device, place.dtype)
    angles = torch.randn(NUM_POSITIONS, head_dim // 2, generator=generator)
    caches = torch.full((2, 5, 16, num_kv_heads, head_dim), CANARY, dtype=place.dtype, device=place.device)
    return Case(
        qkv=torch.randn(num_tokens, size, generator=generator).to(place.device, place.dtype),
        positions=torch.randint(0, NUM_POSITIONS, (num_tokens,), generator=generator).to(place.device),
        cos_sin=torch.cat((angles.cos(), angles.sin()), 1).to(place.device),
        weights=(weights[0], weights[1]) if has_norm else (None, None),
        caches=caches,
        slots=torch.tensor(slots, device=place.device),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


def _out(case: Case) -> torch.Tensor:
    shape = (len(case.slots), case.num_heads, case.caches.shape[-1])
    return torch.full(shape, CANARY, dtype=case.qkv.dtype, device=case.qkv.device)


def _check(place: Any, case: Case) -> None:
    expected_caches = case.caches.clone()
    expected = case.run(qk_norm_rope_store_ref, expected_caches)
    out = _out(case)
    assert case.run(qk_norm_rope_store, case.caches, out) is out
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)
    torch.testing.assert_close(case.caches, expected_caches, rtol=place.tolerance, atol=place.tolerance)
    # Values are copied, and cells that nobody writes keep their canary.
    assert torch.equal(case.caches[1], expected_caches[1])
    assert torch.equal(case.caches == CANARY, expected_caches == CANARY)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_norm", [True, False])
def test_queries_and_caches_equal_the_references(
    place: Any, shape: tuple[int, int, int], has_norm: bool
) -> None:
    _check(place, _case(place, shape, has_norm=has_norm))


@pytest.mark.parametrize("has_norm", [True, False])
def test_a_residuals_norm_is_a_factor_of_each_row(place: Any, has_norm: bool) -> None:
    case = _case(place, (3, 1, 80), has_norm=has_norm)
    residual = torch.randn(len(SLOTS), 2, 48, generator=torch.Generator().manual_seed(1))
    residual_TE = 3 * residual.to(place.device, place.dtype)[:, 1]
    projected, expected_caches = case.qkv.clone(), case.caches.clone()
    expected = case.run(partial(qk_norm_rope_store_ref, residual_TE=residual_TE), expected_caches)
    function = partial(qk_norm_rope_store, residual_TE=residual_TE, in_place=True)
    out = case.run(function, case.caches, _out(case))
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)
    torch.testing.assert_close(case.caches, expected_caches, rtol=place.tolerance, atol=place.tolerance)
    # Keys and values lie in the rows, too, as they do in the cache.
    key_value_TKD = case.qkv[:, 3 * 80 :].view(-1, 2, 80)
    assert torch.equal(case.qkv[:, : 3 * 80], projected[:, : 3 * 80])
    assert torch.equal(key_value_TKD[0], case.caches[:, 4, 15, 0])
    assert torch.equal(key_value_TKD[2], case.caches[:, 0, 0, 0])


def test_positions_may_be_int32_and_of_padding_negative(place: Any) -> None:
    case = _case(place, (4, 2, 64))
    case.positions = case.positions.int()
    case.positions[1] = -1
    _check(place, case)


def test_a_table_of_the_models_dtype_and_strided_rows(place: Any) -> None:
    case = _case(place, (4, 2, 64))
    case.cos_sin = case.cos_sin.to(place.dtype)
    case.qkv = torch.cat((case.qkv, case.qkv), 1)[:, : case.qkv.shape[1]]
    _check(place, case)


def test_the_reference_rotates_as_the_model_does() -> None:
    rope = RopeConfig(
        theta=1e4,
        rope_type="default",
        factor=1.0,
        low_freq_factor=1.0,
        high_freq_factor=1.0,
        original_max_position_embeddings=64,
    )
    inv_freq = inverse_frequencies(rope, 64)
    positions = torch.tensor([0, 3, 250])
    freqs = torch.arange(NUM_POSITIONS)[:, None] * inv_freq
    qkv = torch.randn(3, 4 * 64, generator=torch.Generator().manual_seed(0))
    caches = torch.zeros(2, 1, 16, 1, 64)
    cos_sin = torch.cat((freqs.cos(), freqs.sin()), 1)
    slots = torch.tensor([0, 1, 2])
    out = qk_norm_rope_store_ref(qkv, positions, cos_sin, None, None, EPS, caches[0], caches[1], slots, 2, 1)
    angles = rope_angles(positions, inv_freq, dtype=torch.float32)
    expected = apply_rope(qkv.view(3, 4, 64)[:, :3], angles)
    torch.testing.assert_close(out, expected[:, :2])
    torch.testing.assert_close(caches[0, 0, :3], expected[:, 2:])
    assert torch.equal(caches[1, 0, :3, 0], qkv[:, 3 * 64 :])


def test_addresses_past_two_to_the_31_do_not_wrap(place: Any) -> None:
    if place.dtype != torch.float16:
        pytest.skip("once is enough: it takes 8 GiB of addresses, and on a GPU of memory")
    case = _case(place, (1, 1, 2), slots=[(1 << 30) + 8])
    # On a CPU only the pages that are touched take memory.
    caches = torch.empty(2, (1 << 26) + 1, 16, 1, 2, dtype=place.dtype, device=place.device)
    caches[:, 0, 8] = CANARY
    out = case.run(qk_norm_rope_store, caches, _out(case))
    assert torch.isfinite(out).all()
    assert torch.equal(caches[1, -1, 8, 0], case.qkv[0, 4:])
    assert (caches[:, 0, 8] == CANARY).all()


def test_no_tokens_are_no_launch(place: Any) -> None:
    case = _case(place, (4, 2, 64), slots=[])
    case.slots = case.slots.long()
    assert case.run(qk_norm_rope_store, case.caches, _out(case)).shape == (0, 4, 64)


def test_a_thread_has_sixteen_bytes_of_each_half() -> None:
    assert choose_warps(16, 16, 64) == 4
    assert choose_warps(32, 16, 64) == 4
    assert choose_warps(16, 8, 32) == 2
    assert choose_warps(4, 4, 128) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("qkv", r"qkv must be dense, of \(5, 512\)"),
        ("head dim", "head dim must be even and at most 256, but is 7"),
        ("weight", "must both be given, or neither"),
        ("dtype", "fits neither a cache of torch.float16"),
        ("slots", "slot_mapping must be int64"),
        ("table", r"cos_sin must be dense, of \(300, 64\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, message: str) -> None:
    case = _case(torch.zeros(0), (4, 2, 64))
    out = _out(case)
    if change == "qkv":
        case.qkv = case.qkv[:, 1:]
    elif change == "head dim":
        out = torch.zeros(5, 4, 7)
    elif change == "weight":
        case.weights = (case.weights[0], None)
    elif change == "dtype":
        case.caches = case.caches.half()
    elif change == "slots":
        case.slots = case.slots.int()
    else:
        case.cos_sin = case.cos_sin[:, 1:]
    with pytest.raises(ValueError, match=message):
        case.run(qk_norm_rope_store, case.caches, out)
