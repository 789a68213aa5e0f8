"""Kernels in Gluon are there where Triton has Gluon, and only they are missing where it has none."""

import importlib
import pkgutil
import sys

import pytest
import torch

import kernels
from kernels import gluon_kernels

WRITTEN_IN_GLUON = {
    "cluster_sum",
    "drawn_work",
    "hopper_decode_fetch",
    "hopper_decode_kernel",
    "hopper_heads_kernel",
    "hopper_prefill_fetch",
    "hopper_prefill_kernel",
    "hopper_projection_kernel",
    "large_gate_kernel",
    "large_head_kernel",
    "large_product",
    "large_qkv_kernel",
    "ring_stage",
    "tile_summary",
    "told_number",
}


def test_this_triton_has_gluon() -> None:
    """What is guarded against is a Triton without it, not a mistake in these kernels."""
    for name in WRITTEN_IN_GLUON & set(gluon_kernels.__all__):
        assert getattr(gluon_kernels, name) is not None


def test_without_gluon_all_else_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {module.name for module in pkgutil.iter_modules(kernels.__path__)} - {"flash_attention"}
    for name in [name for name in sys.modules if name.split(".")[0] == "kernels"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton.experimental.gluon", None)
    missing = set()
    for name in names:
        try:
            importlib.import_module(f"kernels.{name}")
        except ImportError:
            missing.add(name)
    assert missing == WRITTEN_IN_GLUON
    without = importlib.import_module("kernels.gluon_kernels")
    assert without.hopper_prefill_kernel is None
    assert not without.runs_gluon(torch.device("cuda"))
