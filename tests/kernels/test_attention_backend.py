"""Which backends there are, and what asking for another one says."""

import pytest

from kernels.attention_backend import make_attention_backend


def test_torch_is_there() -> None:
    assert make_attention_backend("torch").name == "torch"


@pytest.mark.parametrize("name", ["triton", "flash-attn"])
def test_planned_ones_are_refused_as_such(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' does not exist yet; choose from: torch"):
        make_attention_backend(name)


def test_unknown_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown attention backend 'tourch'; choose from: torch"):
        make_attention_backend("tourch")
