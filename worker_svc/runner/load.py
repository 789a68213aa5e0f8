"""Builds a worker from its configuration: weights, KV cache, token pool, runner, executor.

Tells people what it finds as it goes. Knows nothing about flags, streams or requests.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata

import torch

from model.errors import ModelFolderError
from model.folder import config_hash, tokenizer_hash
from model.load import load_model
from worker_svc.config import WorkerConfig
from worker_svc.errors import StartupError
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.load_plan import LoadPlan, make_load_plan
from worker_svc.runner.memory import GIB
from worker_svc.runner.model_runner import EagerModelRunner
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.token_pool import TokenPool
from worker_svc.runner.worker_info import LoadedWorker, WorkerInfo
from worker_svc.tp.group import TpGroup

Tell = Callable[[str], None]
OnProgress = Callable[[int, int], None]
WeightsProgress = Callable[[], AbstractContextManager[OnProgress | None]]


@contextmanager
def no_progress() -> Iterator[None]:
    """Show nothing while weights load."""
    yield None


def load_worker(
    config: WorkerConfig,
    group: TpGroup | None = None,
    *,
    tell: Tell = lambda _: None,
    weights_progress: WeightsProgress = no_progress,
) -> LoadedWorker:
    """Load the model and make all that steps need.

    Args:
        config: The worker's options.
        group: This rank's place; a group of its own where None.
        tell: Told readable lines.
        weights_progress: Opened around the loading of weights; told (tensors loaded, all tensors).

    Raises:
        StartupError: naming the flag, file or parameter that is wrong.
    """
    group = group or TpGroup(device=config.device)
    if config.torch_threads:
        torch.set_num_threads(config.torch_threads)
    try:
        plan = make_load_plan(config, group)
        info = _info(plan, config, group)
        _tell_plan(plan, info, tell)
        runner = _make_runner(plan, weights_progress)
    except ModelFolderError as error:
        raise StartupError(str(error)) from error
    return LoadedWorker(info=info, executor=StepExecutor(plan.limits, runner))


def _make_runner(plan: LoadPlan, weights_progress: WeightsProgress) -> EagerModelRunner:
    limits, device = plan.limits, plan.device
    # Before the weights: what does not fit is known at once.
    kv_caches = allocate_kv_caches(
        plan.model, limits.num_blocks, block_size=limits.block_size, dtype=plan.dtype, device=device
    )
    with weights_progress() as on_progress:
        model = load_model(plan.folder, plan.model, device=device, dtype=plan.dtype, on_progress=on_progress)
    token_pool = TokenPool(limits.max_num_seqs, limits.max_model_len, device=device)
    return EagerModelRunner(model, token_pool, kv_caches=kv_caches, backend=plan.backend, device=device)


def _info(plan: LoadPlan, config: WorkerConfig, group: TpGroup) -> WorkerInfo:
    is_cpu = plan.device.type == "cpu"
    return WorkerInfo(
        config_hash=config_hash(plan.folder),
        tokenizer_hash=tokenizer_hash(plan.folder),
        limits=plan.limits,
        max_steps_in_flight=config.max_steps_in_flight,
        device="cpu" if is_cpu else torch.cuda.get_device_name(plan.device),
        dtype=str(plan.dtype).removeprefix("torch."),
        attention_backend=plan.backend.name,
        tp_size=group.size,
        versions={
            "stepwire": _version("stepwire"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


def _version(distribution: str) -> str:
    """Tell an installed distribution's version; a plain checkout has none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def _tell_plan(plan: LoadPlan, info: WorkerInfo, tell: Tell) -> None:
    limits = plan.limits
    size_gib = (limits.num_blocks + 1) * plan.bytes_per_block / GIB
    tell(f"versions   {', '.join(f'{name} {version}' for name, version in info.versions.items())}")
    tell(f"model      {plan.model.architecture}, {plan.model.num_layers} layers, from {plan.folder}")
    tell(
        f"device     {info.device}, {info.dtype}, attention {info.attention_backend}, "
        f"{torch.get_num_threads()} CPU threads"
    )
    tell(
        f"KV cache   {limits.num_blocks} blocks of {limits.block_size} = "
        f"{limits.num_blocks * limits.block_size} tokens, {size_gib:.2f} GiB"
    )
    tell(
        f"limits     {limits.max_num_seqs} requests, {limits.max_num_batched_tokens} tokens a step, "
        f"{limits.max_model_len} tokens a request"
    )
