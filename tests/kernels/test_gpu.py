"""What a launch takes of shared memory fits GPUs that have less of it than a Hopper GPU."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernels import gpu, streamed_projection
from kernels.decode_config import choose_decode_config
from kernels.decode_config import fit_stages as fit_decode_stages
from kernels.prefill_tiles import choose_prefill_config
from kernels.small_batch import can_fuse
from kernels.tiled_config import choose_projection_tile, fit_stages


@pytest.fixture
def _small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gpu, streamed_projection):
        monkeypatch.setattr(module, "shared_bytes", lambda _: gpu.LEAST_SHARED_BYTES)


def _num_stages() -> list[int]:
    """Of attention with many tokens, in two bytes a number; with one, in four; of two projections."""
    cpu, cache = torch.device("cpu"), torch.empty(1, 16, 8, 128, dtype=torch.bfloat16)
    decode = choose_decode_config(256, 1024, num_kv_heads=8, bytes_per_cell=512)
    tiles = [choose_projection_tile(4096, 1024, num_rows=num_rows) for num_rows in (32, 256)]
    return [
        choose_prefill_config(1024, cache_NSKD=cache, group=2).num_stages,
        fit_decode_stages(decode, cpu, bytes_per_cell=512).num_stages,
        *(fit_stages(tile, cpu, itemsize_bytes=2).num_stages for tile in tiles),
    ]


def test_a_gpu_is_asked_how_much_a_program_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(shared_memory_per_block_optin=101_376)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert gpu.shared_bytes.__wrapped__(torch.device("cuda")) == gpu.LEAST_SHARED_BYTES
    assert gpu.shared_bytes(torch.device("cpu")) == gpu.HOPPER_SHARED_BYTES


def test_a_hopper_gpu_has_room_for_what_measured_best_there() -> None:
    assert _num_stages() == [3, 3, 5, 5]


@pytest.mark.usefixtures("_small_gpu")
def test_others_get_as_many_stages_as_fit() -> None:
    """In KiB: 2 * 32 and 16 of queries, 2 * 32 and 8, 3 * 32, 5 * 16, of 99."""
    assert _num_stages() == [2, 2, 3, 5]


@pytest.mark.usefixtures("_small_gpu")
def test_what_has_no_room_goes_another_way() -> None:
    assert not streamed_projection.can_stream(torch.empty(4096, 1024, dtype=torch.bfloat16))
    sizes = {"num_rows": 32, "num_outputs": 4096, "num_inputs": 1024, "itemsize_bytes": 2}
    assert can_fuse(**sizes)
    assert not can_fuse(**sizes, most_bytes=gpu.LEAST_SHARED_BYTES)
    # Its 16 rows would fit, but 16 gates and as many ups go through the same memory.
    sizes |= {"num_rows": 16, "num_inputs": 2048}
    assert can_fuse(**sizes)
    assert not can_fuse(**sizes, most_bytes=gpu.LEAST_SHARED_BYTES)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", ["8.9", "12.0"])
def test_all_kernels_of_a_step_fit(capability: str) -> None:
    num_kib = str(gpu.LEAST_SHARED_BYTES >> 10)
    command = [sys.executable, "-m", "tests.kernels.compile_steps", capability, num_kib]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=800)
    assert told.returncode == 0, told.stderr
    taken = {(int(line.split()[1]), line.split()[0]) for line in told.stdout.splitlines()}
    assert len({name for _, name in taken}) > 15
    assert max(taken)[0] <= gpu.LEAST_SHARED_BYTES, max(taken)
