"""Projections of thousands of rows: each equals its reference, and leaves alone what is not its own.

Gluon has no interpreter: the kernels run on Hopper GPUs only, and elsewhere are emulated and compiled.
"""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels import (
    hopper_decode,
    large_gate_kernel,
    large_product,
    large_projection,
    large_qkv_kernel,
    ring_stage,
)
from kernels.large_projection_ref import (
    Heads,
    norm_gate_up_silu_ref,
    norm_qkv_rotate_ref,
)
from tests.kernels.emulated_gluon import Descriptor, run_emulated

NUM_INPUTS, NUM_GATED, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 320, 256, 4, 2, 128
BLOCK_SIZE = 16
EPS = 1e-6
CANARY = 7.0
MAX_SHARED_BYTES = 227 << 10
"""Of a program on a Hopper GPU."""
ROWS = [1, 64, 129, 700]
"""Of which tiles take 128, and each half of a kernel 64."""
DTYPES = [torch.bfloat16, torch.float16]


@pytest.fixture
def _hopper() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")


def _random(
    *shape: int,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    scale: float = 1.0,
    device: str = "cuda",
) -> Any:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (scale * torch.randn(shape, generator=generator)).to(device, dtype)


def _weight(num_outputs: int, dtype: torch.dtype) -> torch.Tensor:
    weight: torch.Tensor = _random(num_outputs, NUM_INPUTS, dtype=dtype, seed=1, scale=NUM_INPUTS**-0.5)
    return weight


def _assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 2e-2 if got.dtype == torch.bfloat16 else 4e-3
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
def test_gates_equal_the_reference(num_rows: int, dtype: torch.dtype) -> None:
    x, weight = _random(num_rows, NUM_INPUTS, dtype=dtype, scale=3.0), _weight(2 * NUM_GATED, dtype)
    room = torch.full((num_rows + 1, 2 * NUM_GATED), CANARY, dtype=dtype, device="cuda")
    out = room[:num_rows, :NUM_GATED]
    large_projection.norm_gate_up_silu(x, weight, EPS, out)
    expected = norm_gate_up_silu_ref(x, weight, EPS, torch.empty_like(out))
    _assert_close(out, expected)
    assert (room[num_rows:] == CANARY).all()
    assert (room[:, NUM_GATED:] == CANARY).all()


def _heads(num_rows: int, dtype: torch.dtype, *, has_norm: bool, device: str = "cuda") -> Heads:
    cells = (2 * num_rows // BLOCK_SIZE + 1, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    slots = torch.randperm(2 * num_rows, generator=torch.Generator().manual_seed(num_rows))[:num_rows]
    slots[num_rows // 2] = -1
    return Heads(
        positions_R=torch.arange(-1, num_rows - 1, dtype=torch.int32, device=device),
        cos_sin_PD=_random(num_rows, HEAD_DIM, dtype=torch.float32, device=device),
        q_weight_D=_random(HEAD_DIM, dtype=dtype, seed=3, device=device) if has_norm else None,
        k_weight_D=_random(HEAD_DIM, dtype=dtype, seed=4, device=device) if has_norm else None,
        eps=1e-5,
        key_cache_NSKD=torch.full(cells, CANARY, dtype=dtype, device=device),
        value_cache_NSKD=torch.full(cells, CANARY, dtype=dtype, device=device),
        slot_mapping_R=slots.to(device),
        out_q_RHD=torch.zeros(num_rows, NUM_HEADS, HEAD_DIM, dtype=dtype, device=device),
        out_RX=torch.full(
            (num_rows, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM), CANARY, dtype=dtype, device=device
        ),
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("has_norm", [False, True])
def test_heads_equal_the_reference(num_rows: int, dtype: torch.dtype, has_norm: bool) -> None:
    x = _random(num_rows, NUM_INPUTS, dtype=dtype, scale=2.0)
    weight = _weight((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM, dtype)
    ours, expected = (_heads(num_rows, dtype, has_norm=has_norm) for _ in range(2))
    large_projection.norm_qkv_rotate(x, weight, EPS, ours)
    norm_qkv_rotate_ref(x, weight, EPS, expected)
    for name in ("out_q_RHD", "out_RX", "key_cache_NSKD", "value_cache_NSKD"):
        _assert_close(getattr(ours, name), getattr(expected, name))


def _without_queries(heads: Heads) -> Heads:
    num_queries = NUM_HEADS * HEAD_DIM
    return replace(
        heads,
        out_q_RHD=heads.out_q_RHD[:, :0],
        out_RX=heads.out_RX[:, num_queries:],
        is_in_place=False,
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("num_rows", ROWS)
def test_keys_and_values_alone_go_to_their_cells_as_beside_queries(num_rows: int) -> None:
    dtype = torch.bfloat16
    x = _random(num_rows, NUM_INPUTS, dtype=dtype, scale=2.0)
    weight = _weight((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM, dtype)
    both, alone = (_heads(num_rows, dtype, has_norm=True) for _ in range(2))
    large_projection.norm_qkv_rotate(x, weight, EPS, both)
    large_projection.norm_qkv_rotate(x, weight[NUM_HEADS * HEAD_DIM :], EPS, _without_queries(alone))
    for name in ("key_cache_NSKD", "value_cache_NSKD"):
        assert torch.equal(getattr(alone, name), getattr(both, name))
    assert (alone.out_RX == CANARY).all()


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
def test_a_row_is_the_same_alone_and_among_others() -> None:
    x, weight = _random(700, NUM_INPUTS), _weight(2 * NUM_GATED, torch.bfloat16)
    out, alone = torch.zeros(2, 700, NUM_GATED, dtype=torch.bfloat16, device="cuda")
    large_projection.norm_gate_up_silu(x, weight, EPS, out)
    large_projection.norm_gate_up_silu(x[600:601], weight, EPS, alone[:1])
    assert torch.equal(out[600], alone[0])


@pytest.mark.parametrize("num_rows", [150, 128])
@pytest.mark.parametrize("span", [1, 2])
def test_emulated_gates(num_rows: int, span: int) -> None:
    generator = np.random.default_rng(num_rows)
    x, weight = (generator.standard_normal(shape, np.float32) for shape in ((num_rows, 192), (1024, 192)))
    weight *= np.float32(192**-0.5)
    x *= np.arange(1, num_rows + 1, dtype=np.float32)[:, None]  # a row's norm is its own
    out = np.full((num_rows, 512), CANARY, np.float32)
    run_emulated(
        (large_gate_kernel, large_product, ring_stage),
        Descriptor(x, (128, 64)),
        Descriptor(weight.reshape(2, 512, 192), (2, 128, 64)),
        Descriptor(out, (64, 128)),
        *(num_rows, span, EPS),
        num_programs=2,
        I=192,
        O=512,
        STAGES=2,
        GROUP=2,
        PDL=False,
    )
    expected = torch.empty(num_rows, 512)
    norm_gate_up_silu_ref(torch.from_numpy(x), torch.from_numpy(weight), EPS, expected)
    torch.testing.assert_close(torch.from_numpy(out), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("num_rows", "span", "lead", "has_norm", "has_queries"),
    [(150, 1, 0, True, True), (70, 4, 1, True, True), (150, 4, 1, False, True), (150, 2, 1, True, False)],
)
def test_emulated_heads(num_rows: int, span: int, lead: int, has_norm: bool, has_queries: bool) -> None:
    heads = [_heads(num_rows, torch.float32, has_norm=has_norm, device="cpu") for _ in range(2)]
    ours, expected = heads if has_queries else [_without_queries(one) for one in heads]
    x = _random(num_rows, 128, dtype=torch.float32, device="cpu", scale=2.0)
    weight = _random(ours.out_RX.shape[1], 128, dtype=torch.float32, device="cpu", scale=0.1)
    norms = [None if norm is None else norm.numpy() for norm in (ours.q_weight_D, ours.k_weight_D)]
    caches = (ours.key_cache_NSKD, ours.value_cache_NSKD, ours.slot_mapping_R)
    outs = (ours.out_q_RHD.flatten(1), ours.out_RX)
    run_emulated(
        (large_qkv_kernel, large_product, ring_stage),
        Descriptor(x.numpy(), (128, 64)),
        Descriptor(weight.numpy().reshape(-1, 256, 128), (1, 256, 64)),
        *(Descriptor(out.numpy(), (64, 64)) if has_queries else None for out in outs),
        *(ours.positions_R.numpy(), ours.cos_sin_PD.numpy().ravel(), *norms),
        *(tensor.numpy().ravel() for tensor in caches),
        *(num_rows, span, EPS, ours.eps),
        num_programs=3,
        I=128,
        H=ours.out_q_RHD.shape[1],
        K=NUM_KV_HEADS,
        STAGES=2,
        GROUP=8,
        LEAD=lead,
        PDL=False,
    )
    norm_qkv_rotate_ref(x, weight, EPS, expected)
    for name in ("out_q_RHD", "out_RX", "key_cache_NSKD", "value_cache_NSKD"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_goes_another_way() -> None:
    assert not large_projection.can_project(torch.empty(256, 64, dtype=torch.bfloat16))  # on a CPU
    assert large_projection.can_rotate(16, 8, 128)
    assert not large_projection.can_rotate(16, 1, 128)
    assert not large_projection.can_rotate(3, 1, 128)
    assert not large_projection.can_rotate(16, 8, 64)


@pytest.mark.long
def test_kernels_compile_for_hopper_without_one() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compile_large"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    shared_bytes = [(name, int(size)) for name, size in (line.split() for line in output.splitlines())]
    names = {f"hopper_{name}_kernel" for name in ("decode", "heads", "projection")}
    names |= {f"large_{name}_kernel" for name in ("gate", "head", "qkv")}
    assert {name for name, _ in shared_bytes} == names
    assert max(size for _, size in shared_bytes) <= MAX_SHARED_BYTES
    of_decode = [size for name, size in shared_bytes if name == "hopper_decode_kernel"]
    ways = [*(way for _, way in hopper_decode.PROGRAMS), hopper_decode.PROGRAMS_OF_MANY]
    for way, size in zip(ways, of_decode, strict=True):
        assert way.num_programs * (size + 1024) <= 228 << 10


@pytest.mark.parametrize(
    ("num_row_blocks", "num_column_blocks", "span"),
    [(128, 16, 8), (32, 24, 6), (32, 16, 4), (16, 16, 2), (8, 24, 2), (5, 24, 1)],
)
def test_spans_are_long_where_programs_stay_busy(
    num_row_blocks: int, num_column_blocks: int, span: int
) -> None:
    assert large_projection.choose_span(num_row_blocks, num_column_blocks, 132) == span
