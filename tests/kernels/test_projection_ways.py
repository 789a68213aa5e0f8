"""Which kernels a projection takes: by its rows, and by how large its weight is."""

from dataclasses import replace

import pytest
import torch

from kernels import large_head
from model.fused_decoder import ROW_LIMITS
from model.projection import Projection, Way


def projection(num_outputs: int, num_inputs: int) -> Projection:
    weight = torch.empty(num_outputs, num_inputs, dtype=torch.bfloat16, device="meta")
    return Projection(weight_OI=weight, weight_IO=weight.t(), bias_O=None, has_norm=False)


# Qwen3-0.6B's gates and ups, and the output projection of 8B on one of two ranks: the smallest that is large.
@pytest.mark.parametrize(
    ("size", "ways"),
    [
        ((6144, 1024), {32: Way.FEW_ROWS, 33: Way.TILED, 256: Way.TILED, 257: Way.CUBLAS}),
        ((4096, 2048), {16: Way.FEW_ROWS, 17: Way.TILED, 32: Way.TILED, 33: Way.CUBLAS}),
        ((4096, 12288), {1: Way.FEW_ROWS, 2: Way.TILED, 32: Way.TILED, 33: Way.CUBLAS}),
    ],
)
def test_ways_by_rows_and_weight(size: tuple[int, int], ways: dict[int, Way]) -> None:
    weight = projection(*size)
    assert {num_rows: weight.way(num_rows, ROW_LIMITS.down) for num_rows in ways} == ways


def test_gates_and_ups_of_a_large_weight_are_tiled_from_two_rows_on() -> None:
    gate_up = projection(12288, 4096)
    ways = {1: Way.FEW_ROWS, 2: Way.TILED, 32: Way.TILED, 33: Way.CUBLAS}
    assert {num_rows: gate_up.way(num_rows, ROW_LIMITS.gate_up) for num_rows in ways} == ways
    assert projection(6144, 1024).way(2, ROW_LIMITS.gate_up) is Way.FEW_ROWS


def test_weights_that_a_kernel_holds_leave_few_rows_one() -> None:
    weight = replace(projection(6144, 1024), fits_held=True)
    ways = {1: Way.FEW_ROWS, 2: Way.TILED, 32: Way.TILED, 256: Way.TILED, 257: Way.CUBLAS}
    assert {num_rows: weight.way(num_rows, ROW_LIMITS.down) for num_rows in ways} == ways
    assert weight.way(2, replace(ROW_LIMITS.down, few_rows_beside_held=32)) is Way.FEW_ROWS


def test_the_head_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_OI = torch.zeros(300, 64, dtype=torch.bfloat16)
    head = Projection(weight_OI=weight_OI, weight_IO=weight_OI.t(), bias_O=None, has_norm=False)
    ways = {3: Way.STREAMED, 64: Way.STREAMED, 65: Way.CUBLAS}
    assert {num_rows: head.way(num_rows, ROW_LIMITS.head) for num_rows in ways} == ways
    biased = Projection(weight_OI=weight_OI, weight_IO=weight_OI.t(), bias_O=weight_OI[:, 0], has_norm=False)
    assert biased.way(3, ROW_LIMITS.head) is Way.CUBLAS
    monkeypatch.setattr(large_head, "runs_gluon", lambda _: True)
    ways = {64: Way.STREAMED, 192: Way.STREAMED, 193: Way.STREAMED, 256: Way.STREAMED, 257: Way.CUBLAS}
    head = projection(151936, 1024)
    assert {num_rows: head.way(num_rows, ROW_LIMITS.head) for num_rows in ways} == ways


@pytest.mark.parametrize(("dtype", "way"), [(torch.bfloat16, Way.FEW_ROWS), (torch.float32, Way.TILED)])
def test_one_row_of_a_large_weight_goes_where_its_tile_fits(dtype: torch.dtype, way: Way) -> None:
    """Of Qwen3-1.7B's QKV projection, whose float32 shared memory does not hold."""
    weight_OI = torch.empty(4096, 2048, dtype=dtype, device="meta")
    qkv = Projection(weight_OI=weight_OI, weight_IO=weight_OI.t(), bias_O=None, has_norm=True)
    assert qkv.way(1, ROW_LIMITS.qkv) is way
