"""How long a GPU waits for the host when prompts arrive: before a step's first kernel and after its last one.

    python -m benchmarks.prompt_host [--cases prefill_1x4000,prefill_64x1024] [--rounds 20]

From the requests' arrival at the scheduler core to where the device may begin with the model, and from the
device's end to the tokens on the host; in process, no gRPC. Marks in the device's queue tell the times, which
are then asked of the profiler, too. Knows nothing about what is computed.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.in_process import InProcess
from benchmarks.step_loop import DEFAULT_MODEL, MAX_MODEL_LEN, TEMPERATURE, _choose_cases, _requests
from benchmarks.workload import Case
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker
from worker_svc.runner.mixed_step import MixedStep
from worker_svc.runner.results import DownloadingStep
from worker_svc.runner.worker_info import LoadedWorker

MODEL_KERNEL = "prepare"
"""In the name of the first kernel of a step."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="prefill_1x4000,prefill_64x1024")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--num-blocks", type=int, default=0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--timeline", action="store_true", help="print the profiler's first and last events")
    arguments = parser.parse_args()
    config = WorkerConfig(
        model=str(arguments.model),
        device="cuda",
        num_blocks=arguments.num_blocks,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=16384,
        max_model_len=MAX_MODEL_LEN,
    )
    worker = load_worker(config, tell=print, captures_at_start=False)
    for name, case in _choose_cases(arguments.cases).items():
        _measure(name, case, worker=worker, arguments=arguments)


class _Marks:
    """Marks in the device's queue, and when they were set by the host's clock."""

    def __init__(self, worker: LoadedWorker, case: Case) -> None:
        self._case = case
        self._runner: Any = worker.executor._runner  # type: ignore[attr-defined]
        self._process = InProcess(worker.executor, worker.info.limits, max_num_waiting=len(case[0]))
        self._spare = torch.zeros(1, device="cuda")
        self.events = {name: torch.cuda.Event(enable_timing=True) for name in ("arrival", "result")}  # type: ignore[no-untyped-call]
        self.model: Any = None
        self.times_ns: dict[str, int] = {}
        self.last_end: Any = None

    def run(self, number: int) -> dict[str, float]:
        """Run the requests once; return microseconds."""
        self.model = None
        requests = _requests(self._case, number, TEMPERATURE)
        self._process.core.flush_prefix_cache()
        with ExitStack() as stack:
            self._wrap(stack, MixedStep, "_forward", before=self._mark_model)
            mixed = self._runner._mixed
            if mixed._graphs is not None:
                self._wrap(stack, mixed._graphs, "replay", before=self._mark_model)
            self._wrap(stack, self._runner, "launch", before=self._mark_applied)
            self._wrap(stack, self._runner, "_download", before=self._mark_end)
            self._wrap(stack, DownloadingStep, "wait", after=self._mark_result)
            self._mark_arrival()
            timing = self._process.run(requests, depth=2, before_step=self._mark_planned)
        torch.cuda.synchronize()
        events, times = self.events, self.times_ns
        return {
            "to model": 1e3 * events["arrival"].elapsed_time(self.model),
            "planned": (times["planned"] - times["arrival"]) / 1e3,
            "applied": (times["applied"] - times["planned"]) / 1e3,
            "launched": (times["model"] - times["applied"]) / 1e3,
            "to result": 1e3 * self.last_end.elapsed_time(events["result"]),
            "arrival to result": (times["result"] - times["arrival"]) / 1e3,
            "device": 1e3 * self.model.elapsed_time(self.last_end),
            "timed": 1e6 * timing.total_seconds,
        }

    @staticmethod
    def _wrap(stack: ExitStack, owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args)
            result = original(*args, **kwargs)
            if after is not None:
                after(*args)
            return result

        stack.enter_context(patch.object(owner, name, wrapped))

    def _mark_arrival(self) -> None:
        torch.cuda.synchronize()
        self._spare.fill_(1)
        self.events["arrival"].record()
        self.times_ns["arrival"] = time.perf_counter_ns()

    def _mark_planned(self, step: int) -> None:
        if step == 0:
            self.times_ns["planned"] = time.perf_counter_ns()

    def _mark_applied(self, *_: Any) -> None:
        if self.model is None:
            self.times_ns["applied"] = time.perf_counter_ns()

    def _mark_model(self, *_: Any) -> None:
        if self.model is None:
            self.times_ns["model"] = time.perf_counter_ns()
            self.model = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self.model.record()

    def _mark_end(self, *_: Any) -> None:
        self.last_end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.last_end.record()

    def _mark_result(self, *_: Any) -> None:
        self.times_ns["result"] = time.perf_counter_ns()
        self.events["result"].record()


def _measure(name: str, case: Case, *, worker: LoadedWorker, arguments: argparse.Namespace) -> None:
    marks = _Marks(worker, case)
    rounds = [marks.run(number) for number in range(3 + arguments.rounds)][3:]
    medians = {key: float(np.median([each[key] for each in rounds])) for key in rounds[0]}
    print(f"{name}, us: " + ", ".join(f"{key} {value:.0f}" for key, value in medians.items()), flush=True)
    profiler: Any = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with profiler:
        marks.run(-1)
    _tell_profile(profiler, has_timeline=arguments.timeline)


def _tell_profile(profiler: Any, *, has_timeline: bool) -> None:
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    kernels = [event for event in events if str(event.device_type()).endswith("CUDA")]
    start_ns = kernels[0].start_ns()
    first = next((event for event in kernels if MODEL_KERNEL in event.name()), kernels[0])
    replay = next((event for event in events if "raphLaunch" in event.name()), None)
    print(f"  profiled: arrival to first kernel {(first.start_ns() - start_ns) / 1e3:.0f} us", end="")
    if replay is not None:
        begin_us, end_us = ((at - start_ns) / 1e3 for at in (replay.start_ns(), replay.end_ns()))
        print(f"; first replay from {begin_us:.0f} to {end_us:.0f}", end="")
    print(flush=True)
    if has_timeline:
        num_before = sum(event.start_ns() <= first.start_ns() for event in events)
        for event in [*events[: num_before + 6], *events[-30:]]:
            side = "device" if event in kernels else "host"
            begin_us, took_us = (event.start_ns() - start_ns) / 1e3, event.duration_ns() / 1e3
            print(f"    {begin_us:9.1f} {took_us:7.1f} {side:6s} {event.name()[:70]}", flush=True)


if __name__ == "__main__":
    main()
