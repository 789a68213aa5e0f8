"""Packed weights give what F.linear gives."""

import pytest
import torch
from torch.nn.functional import linear

from kernels.cpu_linear import can_pack, linear_packed, pack_weight


@pytest.mark.parametrize("num_rows", [1, 2, 8, 33])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(96, 48), (320, 72), (7, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("may_hold_twice", [False, True])
def test_equals_linear(
    num_rows: int, num_outputs: int, num_inputs: int, *, has_bias: bool, may_hold_twice: bool
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x_RI = torch.randn(num_rows, num_inputs, generator=generator)
    weight_OI = torch.randn(num_outputs, num_inputs, generator=generator)
    bias_O = torch.randn(num_outputs, generator=generator) if has_bias else None
    assert can_pack(weight_OI)
    packed = pack_weight(weight_OI, may_hold_twice=may_hold_twice)
    assert (packed.transposed_IO is not None) == may_hold_twice
    # 1e-5: the same sums in another order.
    torch.testing.assert_close(
        linear_packed(x_RI, packed, bias_O), linear(x_RI, weight_OI, bias_O), rtol=1e-5, atol=1e-5
    )


def test_strided_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    x_RI = torch.randn(4, 20, generator=generator)[:, 3:13]
    weight_OI = torch.randn(6, 10, generator=generator)
    torch.testing.assert_close(
        linear_packed(x_RI, pack_weight(weight_OI, may_hold_twice=True), None),
        linear(x_RI, weight_OI),
        rtol=1e-5,
        atol=1e-5,
    )


def test_other_dtypes_and_devices_are_not_packed() -> None:
    assert not can_pack(torch.empty(4, 4, dtype=torch.float64))
    assert not can_pack(torch.empty(4, 4, device="meta"))


def test_packing_leaves_the_plain_weight_as_it_is() -> None:
    weight_OI = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    before = weight_OI.clone()
    pack_weight(weight_OI, may_hold_twice=True)
    assert torch.equal(weight_OI, before)


def test_bfloat16_is_held_once() -> None:
    weight_OI = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    packed = pack_weight(weight_OI, may_hold_twice=True)
    assert packed.transposed_IO is None
    x_RI = torch.ones(1, 8, dtype=torch.bfloat16)
    # 1e-2: bfloat16 has 8 bits of mantissa.
    torch.testing.assert_close(
        linear_packed(x_RI, packed, None), linear(x_RI, weight_OI), rtol=1e-2, atol=1e-2
    )
