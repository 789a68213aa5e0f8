"""Which backends there are, and what asking for one that cannot be had says."""

import importlib.util
import sys

import pytest

from kernels.attention_backend import make_attention_backend, make_lane_backend


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_is_there(name: str) -> None:
    assert make_attention_backend(name, block_size=16).name == name


def test_unknown_ones_are_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown attention backend 'tourch'; choose from: torch, triton, flash-attn"
    ):
        make_attention_backend("tourch")
    with pytest.raises(
        ValueError, match="unknown attention backend 'torch'; choose from: triton, flash-attn"
    ):
        make_lane_backend("torch")


@pytest.mark.parametrize("block_size", [16, 128, 257, 384])
def test_flash_attn_needs_multiples_of_256(block_size: int) -> None:
    with pytest.raises(ValueError, match=f"'flash-attn' .* multiple of 256, but it is {block_size}"):
        make_attention_backend("flash-attn", block_size=block_size)


@pytest.mark.parametrize("block_size", [1, 15])
def test_triton_needs_blocks_of_16(block_size: int) -> None:
    with pytest.raises(ValueError, match=f"'triton' .* at least 16 .*, but it is {block_size}"):
        make_attention_backend("triton", block_size=block_size)


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_flash_attn_missing_says_how_to_install_it() -> None:
    with pytest.raises(ValueError, match=r"'flash-attn' needs a package .*: pip install flash-attn \("):
        make_attention_backend("flash-attn", block_size=256)


def test_triton_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels.triton_attention", None)
    with pytest.raises(ValueError, match=r"'triton' needs a package .*: pip install triton \("):
        make_attention_backend("triton", block_size=16)
