"""The worker's options: limits, flags, environment, sizes."""

import errno
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.config import ModelConfig
from model.rope_config import RopeConfig
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError, MemoryBudgetError
from worker_svc.flags import check_environment
from worker_svc.runner.memory import (
    DeviceMemory,
    choose_max_model_len,
    choose_num_blocks,
    choose_num_blocks_of_device,
    kv_bytes_per_block,
)
from worker_svc.tp.group import TpGroup, make_tp_group

PREFIX = "STEPWIRE_WORKER_"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("model", "", "--model is '', but must name a model folder or a hub id"),
        ("host", "", "--host is '', but must name an address to listen on"),
        ("port", 65536, "--port is 65536, but must be in [0, 65535]"),
        ("port", -1, "--port is -1, but must be in [0, 65535]"),
        ("device", "tpu", "--device is 'tpu', but must be one of cpu, cuda"),
        ("dtype", "int8", "--dtype is 'int8', but must be one of auto, float32, bfloat16, float16"),
        ("block_size", 0, "--block-size is 0, but must be in [1, 1024]"),
        ("num_blocks", -1, "--num-blocks is -1, but must be in [0, 2147483647]"),
        (
            "attention_backend",
            "magic",
            "--attention-backend is 'magic', but must be one of auto, torch, triton, flash-attn",
        ),
        ("stuck_step_seconds", 0.0, "--stuck-step-seconds is 0.0, but must be above 0 and finite"),
        ("stuck_step_seconds", float("nan"), "--stuck-step-seconds is nan, but must be above 0 and finite"),
        ("kv_cache_gib", -0.5, "--kv-cache-gib is -0.5, but must be at least 0 and finite"),
        ("kv_cache_gib", float("nan"), "--kv-cache-gib is nan, but must be at least 0 and finite"),
        ("kv_cache_gib", float("inf"), "--kv-cache-gib is inf, but must be at least 0 and finite"),
        (
            "gpu_memory_utilization",
            0.0,
            "--gpu-memory-utilization is 0.0, but must be above 0 and at most 1",
        ),
        (
            "gpu_memory_utilization",
            1.5,
            "--gpu-memory-utilization is 1.5, but must be above 0 and at most 1",
        ),
        ("max_num_seqs", 0, "--max-num-seqs is 0, but must be in [1, 65536]"),
        ("max_num_batched_tokens", 63, "--max-num-batched-tokens is 63, but must be in [64, 16777216]"),
        ("max_model_len", -1, "--max-model-len is -1, but must be in [0, 2147483647]"),
        ("torch_threads", -1, "--torch-threads is -1, but must be in [0, 1024]"),
        ("max_steps_in_flight", 5, "--max-steps-in-flight is 5, but must be in [1, 4]"),
        ("log_level", "loud", "--log-level is 'loud', but must be one of debug, info, warning, error"),
    ],
)
def test_a_wrong_option_is_named_with_value_and_limit(option: str, value: Any, message: str) -> None:
    options: dict[str, Any] = {"model": "m", option: value}
    with pytest.raises(ConfigError) as caught:
        WorkerConfig(**options)
    assert str(caught.value) == message


def test_an_unknown_variable_with_our_prefix_is_refused() -> None:
    check_environment(WorkerConfig, PREFIX, names=["STEPWIRE_WORKER_PORT", "STEPWIRE_SCHEDULER_X", "PATH"])
    with pytest.raises(ConfigError) as caught:
        check_environment(WorkerConfig, PREFIX, names=["STEPWIRE_WORKER_PORT", "STEPWIRE_WORKER_PROT"])
    told = "environment option STEPWIRE_WORKER_PROT is unknown, but must be one of those that --help lists"
    assert str(caught.value) == f"{told}, such as STEPWIRE_WORKER_PORT"
    with pytest.raises(ConfigError, match=r"STEPWIRE_WORKER_X is unknown, but must be one of .* lists$"):
        check_environment(WorkerConfig, PREFIX, names=["STEPWIRE_WORKER_X"])


def run_worker(*flags: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line with nothing else in the environment."""
    return subprocess.run(
        [sys.executable, "-m", "worker_svc", *flags],
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_explains_every_flag() -> None:
    result = run_worker("--help")
    assert result.returncode == 0
    for name in WorkerConfig.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in result.stdout
        assert f"{PREFIX}{name.upper()}" in result.stdout


@pytest.mark.parametrize(
    ("flags", "environment", "line"),
    [
        (
            ["--model", "m"],
            {"WORLD_SIZE": "2", "RANK": "2"},
            "error: RANK is 2, but must be below 2, with 2 ranks in the group\n",
        ),
        (
            ["--model", "m"],
            {"LOCAL_RANK": "one"},
            "error: LOCAL_RANK is 'one', but must be a number, as torchrun sets it\n",
        ),
        (
            [],
            {"STEPWIRE_WORKER_MODEL": "m", "STEPWIRE_WORKER_BLOCK_SIZE": "2000"},
            "error: --block-size is 2000, but must be in [1, 1024]\n",
        ),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    flags: list[str], environment: dict[str, str], line: str
) -> None:
    result = run_worker(*flags, **environment)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", line)


def test_what_cannot_be_loaded_or_listened_on_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise AssertionError('torch is imported')")
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    result = run_worker("--model", "/none", **environment)
    assert (result.returncode, result.stderr) == (2, "error: model folder '/none' does not exist\n")
    (tmp_path / "config.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_worker("--model", str(tmp_path), "--port", str(port), **environment)
    reason = os.strerror(errno.EADDRINUSE)
    line = f"error: cannot listen on --host 127.0.0.1 --port {port}: {reason}\n"
    assert (result.returncode, result.stderr) == (2, line)


def test_a_rank_computes_on_its_own_gpu() -> None:
    assert make_tp_group("cpu", {}) == TpGroup(rank=0, size=1, device="cpu")
    assert make_tp_group("cuda", {"LOCAL_RANK": "3"}).device == "cuda:3"


def test_a_rank_of_two_hosts_knows_its_place() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    group = make_tp_group("cuda", environment | {"GROUP_RANK": "1", "MASTER_ADDR": "node-a"})
    assert group == TpGroup(
        rank=5, size=8, device="cuda:1", local_rank=1, local_size=4, host_index=1, leader_host="node-a"
    )
    assert (group.is_leader, group.is_leader_host) == (False, False)
    assert (group.process_name, make_tp_group("cpu", {}).process_name) == (f"rank {group.rank}", "worker")


def model_of(num_layers: int, num_kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=8,
        intermediate_size=8,
        num_layers=num_layers,
        num_heads=num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope=RopeConfig(),
        max_position_embeddings=100,
        is_tied=True,
        has_qk_norm=False,
        has_attention_bias=False,
        eos_token_ids=(),
        dtype="float32",
    )


def test_a_block_holds_k_and_v_of_all_layers() -> None:
    # SmolLM2-135M in fp32: 2 * 30 layers * 16 tokens * 3 heads * 64 * 4 bytes.
    assert kv_bytes_per_block(model_of(30, 3, 64), block_size=16, itemsize_bytes=4) == 737_280


@pytest.mark.parametrize(
    ("num_blocks", "kv_cache_gib", "expected"),
    [(5, 1.0, 5), (0, 1.0, 1023), (0, 2 / 1024, 1), (0, 2.9 / 1024, 1), (0, 2000.0, 2**20)],
)
def test_one_block_of_the_budget_is_for_padding(num_blocks: int, kv_cache_gib: float, expected: int) -> None:
    chosen = choose_num_blocks(num_blocks=num_blocks, kv_cache_gib=kv_cache_gib, bytes_per_block=2**20)
    assert chosen == expected


def test_a_budget_of_less_than_two_blocks_says_what_to_change() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        choose_num_blocks(num_blocks=0, kv_cache_gib=0.0009765625, bytes_per_block=2**20)
    assert str(caught.value) == (
        "--kv-cache-gib is 0.0009765625, but must hold two blocks of 1048576 bytes: "
        "give at least 0.001953, or lower --block-size"
    )


def test_blocks_fill_what_a_device_has_left() -> None:
    memory = DeviceMemory(total_bytes=1000, used_bytes=300, transient_bytes=100)
    # 900 may be used, 450 are taken: 45 blocks of 10, one of them for padding.
    chosen = choose_num_blocks_of_device(
        memory, gpu_memory_utilization=0.9, reserved_bytes=50, bytes_per_block=10
    )
    assert chosen == 44
    memory = replace(memory, total_bytes=10**9)
    chosen = choose_num_blocks_of_device(
        memory, gpu_memory_utilization=0.9, reserved_bytes=50, bytes_per_block=10
    )
    assert chosen == 2**20, "no engine takes more"


def test_a_full_device_says_what_to_change() -> None:
    memory = DeviceMemory(total_bytes=2**30, used_bytes=2**29, transient_bytes=2**28)
    with pytest.raises(MemoryBudgetError) as caught:
        choose_num_blocks_of_device(
            memory, gpu_memory_utilization=0.5, reserved_bytes=0, bytes_per_block=2**20
        )
    assert str(caught.value) == (
        "--gpu-memory-utilization 0.5 of 1.00 GiB leaves -0.25 GiB for the KV cache after 0.75 GiB for "
        "weights and steps, but must leave 0.001953: raise it, or lower --max-num-batched-tokens or "
        "--max-num-seqs"
    )


@pytest.mark.parametrize(
    ("flag", "num_blocks", "expected"), [(0, 3, 48), (0, 7, 100), (48, 3, 48), (1, 3, 1)]
)
def test_a_request_is_as_long_as_model_and_cache_allow(flag: int, num_blocks: int, expected: int) -> None:
    chosen = choose_max_model_len(flag, max_position_embeddings=100, num_blocks=num_blocks, block_size=16)
    assert chosen == expected


def test_a_length_that_the_cache_does_not_hold_says_what_to_change() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        choose_max_model_len(49, max_position_embeddings=100, num_blocks=3, block_size=16)
    assert str(caught.value) == (
        "--max-model-len is 49, but the KV cache holds 48 tokens (3 blocks of 16): raise --kv-cache-gib, "
        "--num-blocks or --gpu-memory-utilization, or lower --max-model-len"
    )


def test_a_length_past_the_models_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_max_model_len(101, max_position_embeddings=100, num_blocks=30, block_size=16)
    assert str(caught.value) == (
        "--max-model-len is 101, but must be at most 100, the model's max_position_embeddings"
    )
