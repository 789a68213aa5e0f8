"""Builds a worker from its configuration: weights, KV cache, token pool, runner, executor.

Tells people what it finds as it goes. Knows nothing about flags, streams or requests.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import metadata

import torch

from kernels.attention_backend import make_attention_backend
from model.decoder import CausalLM
from model.errors import ModelFetchError, ModelFolderError, ShareError
from model.folder import config_hash, tokenizer_hash
from model.load import load_model
from worker_svc.batch.checks import TableLimits
from worker_svc.config import DEFAULT_KV_CACHE_GIB, WorkerConfig
from worker_svc.errors import ConfigError, MemoryBudgetError, StartupError
from worker_svc.runner.device_check import check_device
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.load_plan import LoadPlan, make_load_plan
from worker_svc.runner.memory import GIB, choose_num_blocks
from worker_svc.runner.model_runner import EagerModelRunner
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.token_pool import TokenPool
from worker_svc.runner.worker_info import LoadedWorker, WorkerInfo
from worker_svc.tp.group import TpGroup

Tell = Callable[[str], None]
OnProgress = Callable[[int, int], None]
Progress = Callable[[], AbstractContextManager[OnProgress | None]]


@contextmanager
def no_progress() -> Iterator[None]:
    """Show nothing."""
    yield None


def load_worker(
    config: WorkerConfig,
    group: TpGroup | None = None,
    *,
    tell: Tell = lambda _: None,
    weights_progress: Progress = no_progress,
    graphs_progress: Progress = no_progress,
    captures_at_start: bool = True,
) -> LoadedWorker:
    """Load the model and make all that steps need.

    Args:
        config: The worker's options.
        group: This rank's place; a group of its own where None. Where it has more ranks, this one has joined
            the default process group of torch.distributed, and all load at once.
        tell: Told readable lines.
        weights_progress: Opened around the loading of weights; told (tensors loaded, all tensors).
        graphs_progress: Likewise around the capture of graphs, where there are any.
        captures_at_start: Whether to capture common graphs now; each is captured when it first comes.

    Raises:
        StartupError: naming the flag, file or parameter that is wrong.
    """
    group = group or TpGroup(device=config.device)
    if config.torch_threads:
        torch.set_num_threads(config.torch_threads)
    try:
        plan = make_load_plan(config, group)
        _tell_plan(plan, tell)
        if plan.attention_backend == "torch":
            executor = _load_eager(plan, tell, weights_progress)
        else:
            captures = graphs_progress if captures_at_start and config.cuda_graphs else None
            executor = _load_fused(plan, tell, weights_progress, graphs_progress=captures)
    except ModelFetchError as error:
        raise StartupError(str(error)) from error
    except (ModelFolderError, ShareError) as error:
        raise ConfigError(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise MemoryBudgetError(
            "no GPU memory for weights and steps: lower --max-num-batched-tokens or --max-num-seqs, stop "
            f"what else uses this GPU, or take a smaller model ({error})"
        ) from error
    info = _info(plan, executor.limits, group)
    return LoadedWorker(info=info, executor=executor, check_device=partial(check_device, plan.device))


def _load_eager(plan: LoadPlan, tell: Tell, weights_progress: Progress) -> StepExecutor:
    config, device = plan.config, plan.device
    num_blocks = choose_num_blocks(
        num_blocks=config.num_blocks,
        kv_cache_gib=config.kv_cache_gib or DEFAULT_KV_CACHE_GIB,
        bytes_per_block=plan.bytes_per_block,
    )
    limits = plan.limits(num_blocks)
    _tell_limits(plan, limits, tell)
    # Before the weights: what does not fit is known at once.
    kv_caches = allocate_kv_caches(
        plan.share.config, limits.num_blocks, block_size=limits.block_size, dtype=plan.dtype, device=device
    )
    model = _load_model(plan, weights_progress)
    token_pool = TokenPool(limits.max_num_seqs, limits.max_model_len, device=device)
    backend = make_attention_backend(plan.attention_backend)
    runner = EagerModelRunner(model, token_pool, kv_caches=kv_caches, backend=backend, device=device)
    return StepExecutor(limits, runner)


def _load_fused(
    plan: LoadPlan, tell: Tell, weights_progress: Progress, *, graphs_progress: Progress | None
) -> StepExecutor:
    """Load for a GPU; without a progress no graph is captured before it is needed."""
    # Not on a CPU: it imports Triton.
    from worker_svc.runner.fused_load import CAPTURED_AT_START, build_fused_runner  # noqa: PLC0415

    runner, limits = build_fused_runner(plan, _load_model(plan, weights_progress))
    _tell_limits(plan, limits, tell)
    if graphs_progress is not None:
        with graphs_progress() as on_progress:
            runner.capture(CAPTURED_AT_START, on_progress)
    return StepExecutor(limits, runner)


def _load_model(plan: LoadPlan, weights_progress: Progress) -> CausalLM:
    with weights_progress() as on_progress:
        return load_model(
            plan.folder,
            plan.model,
            device=plan.device,
            dtype=plan.dtype,
            ranks=plan.ranks,
            on_progress=on_progress,
        )


def _info(plan: LoadPlan, limits: TableLimits, group: TpGroup) -> WorkerInfo:
    return WorkerInfo(
        config_hash=config_hash(plan.folder),
        tokenizer_hash=tokenizer_hash(plan.folder),
        limits=limits,
        max_steps_in_flight=plan.config.max_steps_in_flight,
        device=_device_name(plan),
        dtype=_dtype_name(plan),
        attention_backend=plan.attention_backend,
        tp_size=group.size,
        versions=_versions(plan),
    )


def _device_name(plan: LoadPlan) -> str:
    return "cpu" if plan.device.type == "cpu" else torch.cuda.get_device_name(plan.device)


def _dtype_name(plan: LoadPlan) -> str:
    return str(plan.dtype).removeprefix("torch.")


def _versions(plan: LoadPlan) -> dict[str, str]:
    """Tell the versions of all that computes."""
    versions = {
        "stepwire": _version("stepwire"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if plan.device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
    if plan.attention_backend != "torch":
        versions["triton"] = _version("triton")
    if plan.attention_backend == "flash-attn":
        versions["flash-attn"] = _version("flash-attn")
    return versions


def _version(distribution: str) -> str:
    """Tell an installed distribution's version; a plain checkout has none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def _tell_plan(plan: LoadPlan, tell: Tell) -> None:
    tell(f"versions   {', '.join(f'{name} {version}' for name, version in _versions(plan).items())}")
    tell(f"model      {plan.model.architecture}, {plan.model.num_layers} layers, from {plan.folder}")
    tell(
        f"device     {_device_name(plan)}, {_dtype_name(plan)}, attention {plan.attention_backend}, "
        f"{torch.get_num_threads()} CPU threads"
    )


def _tell_limits(plan: LoadPlan, limits: TableLimits, tell: Tell) -> None:
    size_gib = (limits.num_blocks + 1) * plan.bytes_per_block / GIB
    tell(
        f"KV cache   {limits.num_blocks} blocks of {limits.block_size} = "
        f"{limits.num_blocks * limits.block_size} tokens, {size_gib:.2f} GiB"
    )
    tell(
        f"limits     {limits.max_num_seqs} requests, {limits.max_num_batched_tokens} tokens a step, "
        f"{limits.max_model_len} tokens a request"
    )
