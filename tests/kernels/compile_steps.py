"""Compile the kernels of a layer's steps for a GPU that is not there; print each one's shared memory.

    python -m tests.kernels.compile_steps 12.0 99

The compute capability, and the KiB of shared memory that a program can have there. Run as a process of its
own: Triton's interpreter, which other kernel tests use, must be off. Nothing is computed but by PyTorch.
"""

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels import dependent_launch, gpu
from model.config import ModelConfig
from model.load import MODEL_CLASSES
from model.rope_config import RopeConfig
from worker_svc.batch.checks import TableLimits
from worker_svc.runner import fused_load
from worker_svc.runner.fused_runner import FusedModelRunner
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.step_parts import make_step_parts
from worker_svc.runner.warm_up import warm_up_steps

NUM_ROWS = (2, 16, 32, 64, 128, 256)
NUM_TOKENS = 260
"""More than tiles are for."""
# A layer of Qwen3-0.6B, of fewer token ids.
CONFIG = ModelConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=4096,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=1,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope=RopeConfig(theta=1e6),
    max_position_embeddings=512,
    is_tied=False,
    has_qk_norm=True,
    has_attention_bias=False,
    eos_token_ids=(2,),
    dtype="bfloat16",
)


class NoGpu:
    """Takes the place of Triton's driver, as far as compiling needs one."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0


def compile_only(kernel: Any, grid: Any) -> Any:
    """Take the place of a launch."""

    def compile_it(*arguments: Any, **options: Any) -> None:
        compiled = kernel.warmup(*arguments, grid=grid, **options)
        sys.stdout.write(f"{kernel.fn.__name__} {compiled.metadata.shared}\n")

    return compile_it


def pretend(capability: tuple[int, int], shared_bytes: int) -> None:
    """Have all kernels be told of such a GPU."""
    driver.set_active(NoGpu(10 * capability[0] + capability[1]))
    setattr(JITFunction, "__getitem__", compile_only)  # noqa: B010
    setattr(dependent_launch, "compute_capability", lambda _: capability)  # noqa: B010
    asked = gpu.shared_bytes
    for module in list(sys.modules.values()):
        if getattr(module, "shared_bytes", None) is asked:
            setattr(module, "shared_bytes", lambda _: shared_bytes)  # noqa: B010


def run_steps(num_rows: int, dtype: torch.dtype) -> None:
    """Run a step of prompts, one of short prompts, and one of decode rows."""
    limits = TableLimits(
        block_size=16,
        num_blocks=4,
        max_num_seqs=num_rows,
        max_num_batched_tokens=NUM_TOKENS,
        max_model_len=256,
        vocab_size=CONFIG.vocab_size,
    )
    cpu = torch.device("cpu")
    caches = allocate_kv_caches(CONFIG, 4, block_size=16, dtype=dtype, device=cpu)
    model = MODEL_CLASSES[CONFIG.architecture](CONFIG, dtype=dtype)
    parts = make_step_parts(model, limits, kv_caches=caches, device=cpu)
    executor = StepExecutor(limits, FusedModelRunner(parts, batch_sizes=(num_rows,), has_graphs=False))
    for step in warm_up_steps(limits):
        executor.launch(step).finish()


def main() -> None:
    """Compile for what the command line names."""
    major, minor = map(int, sys.argv[1].split("."))
    assert fused_load, "all kernels are imported"
    pretend((major, minor), int(sys.argv[2]) << 10)
    for dtype in (torch.bfloat16, torch.float32):
        for num_rows in NUM_ROWS:
            run_steps(num_rows, dtype)


if __name__ == "__main__":
    main()
