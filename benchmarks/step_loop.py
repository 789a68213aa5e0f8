"""The worker's runner over the workload, driven in process by the scheduler core: no gRPC, no text.

    python -m benchmarks.step_loop [--cases nano256,bs1_128_512] [--device cuda] [--profile]

    torchrun --nproc-per-node 2 -m benchmarks.step_loop      (ranks that share the model: each plans the same)

Random Qwen3 in bf16, temperature 0.6, no end before the last token, no shared prefixes; next to the
workload's cases, bsN_IN_OUT is N requests of one shape. The floor is the model's, on as many cards as there
are ranks (benchmarks/floor.py). Each case runs once untimed, which also captures the graphs it needs, then
--rounds times. Knows nothing about how a step is computed.
"""

import argparse
import faulthandler
import io
import re
import statistics
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.floor import Card, Shape, floor_seconds
from benchmarks.gpu_energy import read_millijoules
from benchmarks.in_process import Timing, run_requests
from benchmarks.join_torchrun import join_torchrun
from benchmarks.make_qwen3 import SHAPES, make_qwen3
from benchmarks.workload import CASES, Case, cases, fixed
from model.config import read_model_config
from scheduler_svc.core.types import Request, SamplingParams
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker
from worker_svc.runner.worker_info import LoadedWorker
from worker_svc.tp.group import TpGroup

DEFAULT_MODEL = Path(".cache/models/random-qwen3-0.6B")
MAX_MODEL_LEN = 4096
TEMPERATURE = 0.6
SHAPED_CASE = re.compile(r"bs(\d+)_(\d+)_(\d+)")
FIRST_PROFILED_STEP = 16


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    if arguments.traces:
        faulthandler.dump_traceback_later(arguments.traces, repeat=True)
    group = join_torchrun(arguments.device)
    # One rank tells of all.
    with redirect_stdout(sys.stdout if group.is_leader else io.StringIO()):
        _run(arguments, group)


def _run(arguments: argparse.Namespace, group: TpGroup) -> None:
    if not (arguments.model / "config.json").exists():
        make_qwen3(arguments.model, arguments.shape)
    chosen = _choose_cases(arguments.cases)
    worker = _load(arguments, group, max_num_seqs=max(len(prompts) for prompts, _ in chosen.values()))
    floor = partial(
        floor_seconds, shape=Shape.of(read_model_config(arguments.model)), card=Card().times(group.size)
    )
    print(f"{'case':18s} {'steps':>6s} {'seconds':>9s} {'tokens/s':>9s} {'ms/step':>8s} {'floor':>7s} "
          f"{'launch us':>10s} {'core us':>8s}", flush=True)  # fmt: skip
    for name, case in chosen.items():
        timings, millijoules = _run_case(case, worker=worker, arguments=arguments)
        _print_timing(name, timings, floor=floor(case))
        if arguments.energy:
            watts = millijoules / 1e3 / sum(timing.total_seconds for timing in timings)
            print(f"{'':18s} {millijoules / 1e3 / len(timings):.0f} J a round, {watts:.0f} W", flush=True)
        if arguments.profile:
            _profile(case, worker=worker, arguments=arguments)


def _choose_cases(names: str) -> dict[str, Case]:
    """Return the cases of these names; all of the workload where there is none."""
    chosen = cases()
    if names:
        chosen = {name: chosen.get(name) or _shaped_case(name) for name in names.split(",")}
    return chosen


def _shaped_case(name: str) -> Case:
    match = SHAPED_CASE.fullmatch(name)
    if match is None:
        raise SystemExit(f"{name} is no case: bsN_IN_OUT, or one of {', '.join(CASES)}")
    num_requests, num_in, num_out = map(int, match.groups())
    return fixed(num_requests, num_in, num_out=num_out, seed=num_requests)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="", help="names, joined by commas; default: all")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="folder; made where missing")
    parser.add_argument("--shape", choices=SHAPES, default="0.6B", help="of a folder that is made")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--no-cuda-graphs", action="store_true")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--num-blocks", type=int, default=0)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16384)
    parser.add_argument("--depth", type=int, default=2, choices=range(1, 5), help="steps in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    parser.add_argument("--energy", action="store_true",
                        help="tell what the first card takes, of cases of a second and more")  # fmt: skip
    parser.add_argument("--profile", type=int, default=0, metavar="STEPS",
                        help="profile so many decode steps of each case and print the kernels")  # fmt: skip
    parser.add_argument("--traces", type=float, default=0.0, metavar="SECONDS",
                        help="write every rank's stacks to standard error so often")  # fmt: skip
    return parser.parse_args()


def _load(arguments: argparse.Namespace, group: TpGroup, *, max_num_seqs: int) -> LoadedWorker:
    """Load the worker with as many lanes as the largest case has requests."""
    config = WorkerConfig(
        model=str(arguments.model),
        device=arguments.device,
        attention_backend=arguments.attention_backend,
        cuda_graphs=not arguments.no_cuda_graphs,
        block_size=arguments.block_size,
        num_blocks=arguments.num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(arguments.max_num_batched_tokens, max_num_seqs),
        max_model_len=MAX_MODEL_LEN,
    )
    return load_worker(config, group, tell=partial(print, flush=True), captures_at_start=False)


def _run_case(case: Case, *, worker: LoadedWorker, arguments: argparse.Namespace) -> tuple[list[Timing], int]:
    """Return the rounds' timings, and what the card took for all of them where that is asked for."""
    timings, taken_before = [], 0
    for number in range(arguments.rounds + 1):
        timing = run_requests(
            worker.executor,
            worker.info.limits,
            requests=_requests(case, number, arguments.temperature),
            depth=arguments.depth,
        )
        if number:
            timings.append(timing)
        elif arguments.energy:
            taken_before = read_millijoules()
    return timings, read_millijoules() - taken_before if arguments.energy else 0


def _requests(case: Case, round_number: int, temperature: float) -> list[Request]:
    prompts, num_outs = case
    return [
        Request(
            request_id=str(index),
            prompt_token_ids=np.array(prompt, np.int32),
            sampling=SamplingParams(temperature=temperature, seed=index + 1),
            max_tokens=num_out,
            # No round finds the blocks of the one before it, no request another's.
            cache_salt=f"{round_number}/{index}",
            handle=index,
        )
        for index, (prompt, num_out) in enumerate(zip(prompts, num_outs, strict=True))
    ]


def _print_timing(name: str, timings: list[Timing], *, floor: float) -> None:
    seconds = statistics.median(timing.total_seconds for timing in timings)
    last = timings[-1]
    launch_us = float(np.median(last.launch_ns)) / 1e3 if last.launch_ns else 0.0
    print(
        f"{name:18s} {last.num_steps:6d} {seconds:9.4f} {last.num_tokens / seconds:9.0f} "
        f"{1e3 * seconds / last.num_steps:8.3f} {floor / seconds:6.1%} "
        f"{launch_us:10.1f} {sum(last.core_ns) / 1e3 / last.num_steps:8.1f}",
        flush=True,
    )


def _profile(case: Case, *, worker: LoadedWorker, arguments: argparse.Namespace) -> None:
    """Run the case once more under torch's profiler, for some steps in its middle."""
    profiler: Any = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    )
    first, is_on = (FIRST_PROFILED_STEP if max(case[1]) > 1 else 0), False

    def before_step(step: int) -> None:
        nonlocal is_on
        if step == first:
            profiler.start()
            is_on = True
        if step == first + arguments.profile:
            profiler.stop()
            is_on = False

    run_requests(
        worker.executor,
        worker.info.limits,
        requests=_requests(case, -1, arguments.temperature),
        depth=arguments.depth,
        before_step=before_step,
    )
    if is_on:
        profiler.stop()
    print(
        profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60)
    )


if __name__ == "__main__":
    main()
