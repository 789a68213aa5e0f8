"""Loading a worker from a folder: what it tells, and how it refuses what it cannot load."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
import torch

from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError, MemoryBudgetError, StartupError
from worker_svc.runner import load_plan
from worker_svc.runner.load import load_worker
from worker_svc.tp.group import TpGroup


@pytest.fixture
def folder(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder of this test's own, to be broken."""
    return shutil.copytree(checkpoint_folder("qwen3_tiny"), tmp_path / "model")


def test_a_worker_tells_what_it_is(checkpoint_folder: Callable[[str], Path]) -> None:
    lines: list[str] = []
    told: list[tuple[int, int]] = []

    @contextmanager
    def progress() -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: told.append((done, total))

    config = WorkerConfig(
        model=str(checkpoint_folder("qwen3_tiny")), num_blocks=8, max_num_seqs=2, torch_threads=1
    )
    worker = load_worker(config, tell=lines.append, weights_progress=progress)
    assert (worker.info.device, worker.info.dtype, worker.info.attention_backend) == (
        "cpu",
        "float32",
        "torch",
    )
    limits = worker.info.limits
    assert (limits.num_blocks, limits.max_model_len, limits.vocab_size) == (8, 128, 320)
    assert len(worker.info.config_hash) == len(worker.info.tokenizer_hash) == 64
    assert told[-1][0] == told[-1][1] > 0
    assert "KV cache   8 blocks of 16 = 128 tokens, 0.00 GiB" in lines
    assert "limits     2 requests, 2048 tokens a step, 128 tokens a request" in lines


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"model folder '.*/nowhere' does not exist"):
        load_worker(WorkerConfig(model=str(tmp_path / "nowhere")))


def test_more_ranks_than_can_share_the_model_are_refused(folder: Path) -> None:
    with pytest.raises(StartupError, match=r"3 ranks cannot share .* Numbers of ranks that fit it: 1, 2, 4$"):
        load_worker(WorkerConfig(model=str(folder), num_blocks=4), TpGroup(rank=1, size=3))


def test_a_gpu_of_too_little_shared_memory_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(load_plan, "shared_bytes", lambda _: 63 << 10)
    with pytest.raises(ConfigError, match="Tesla T4 has 63 KiB of shared memory, and kernels take 99 KiB"):
        load_worker(WorkerConfig(model=str(folder), device="cuda"), TpGroup(device="cuda:0"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("name", "breakage"),
    [
        ("model.safetensors", _truncate),
        ("model.safetensors", Path.unlink),
        ("config.json", Path.unlink),
        ("config.json", lambda path: path.write_text("{")),
    ],
)
def test_a_missing_or_broken_file_is_named(
    folder: Path, name: str, breakage: Callable[[Path], object]
) -> None:
    breakage(folder / name)
    with pytest.raises(StartupError, match=name.replace(".", r"\.")):
        load_worker(WorkerConfig(model=str(folder), num_blocks=4))


def test_a_parameter_of_another_shape_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(StartupError, match=r"gate_proj|up_proj|down_proj"):
        load_worker(WorkerConfig(model=str(folder), num_blocks=4))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"attention_backend": "triton"},
            ConfigError,
            "--attention-backend is 'triton', but --device cpu has 'torch' only",
        ),
        ({"kv_cache_gib": 1e-6}, MemoryBudgetError, "--kv-cache-gib is 1e-06"),
        ({"max_model_len": 513}, ConfigError, "--max-model-len is 513"),
        # 256 TiB: more than any address space.
        (
            {"num_blocks": 2**31 - 1, "block_size": 1024},
            MemoryBudgetError,
            "lower --kv-cache-gib or --num-blocks",
        ),
    ],
)
def test_an_option_that_does_not_fit_is_named(
    folder: Path, options: dict[str, int], error: type[StartupError], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_worker(WorkerConfig(model=str(folder), **options))  # type: ignore[arg-type]


def test_a_model_that_the_hub_did_not_give_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(StartupError, match="fetching it from the hub failed: no network") as caught:
        load_worker(WorkerConfig(model="owner/model", device="cpu"))
    assert not isinstance(caught.value, ConfigError)
