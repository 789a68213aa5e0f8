"""What a decode step costs the worker's host, part by part, and how many steps its server process takes.

    python -m benchmarks.worker_host [--rows 1 32 256] [--device cuda] [--step-us 0 650]

The runner is the GPU's, with kernels that do nothing, so that it needs no GPU; on one, copies and events
are the real ones. Parts are told as their tenth percentile: what they take where nothing else runs, too.
Knows nothing about models.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
from stepwire.worker.v1 import worker_service_pb2 as pb

from benchmarks.decode_script import decode_steps, make_limits
from benchmarks.no_kernels import make_executor
from benchmarks.worker_round_trip import measure_round_trips
from worker_svc.batch.step import Step, StepResult
from worker_svc.rpc.convert import result_to_proto, step_from_proto
from worker_svc.runner.step_executor import PendingStep, StepExecutor

NUM_WARM_UP_STEPS = 100
LEASE_STEPS = 16
PARTS = ("parse", "launch", "runner", "stage", "download", "finish", "result")
"""The runner is a part of launch; stage and download are the runner's."""


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    print(f"{'us a step, in one thread':28s}" + "".join(f"{part:>10s}" for part in PARTS) + f"{'all':>10s}")
    for num_rows in arguments.rows:
        for lease_steps in (1, LEASE_STEPS):
            times = _Times()
            _run(num_rows, arguments.steps, times, device=arguments.device, lease_steps=lease_steps)
            parts_us = [float(np.percentile(times[part] or [0], 10)) / 1e3 for part in PARTS]
            total = sum(parts_us[PARTS.index(part)] for part in ("parse", "launch", "finish", "result"))
            name = f"{num_rows} rows{f', leases of {lease_steps}' if lease_steps > 1 else ''}"
            print(f"{name:28s}" + "".join(f"{value:10.1f}" for value in (*parts_us, total)), flush=True)
    for step_us in arguments.step_us:
        measure_round_trips(
            arguments.rows,
            step_seconds=step_us / 1e6,
            lease_steps=LEASE_STEPS,
            num_steps=arguments.steps,
            device=arguments.device,
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=2000, help="at most 4000")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-us", type=float, nargs="*", default=[0, 650], help="of the round trips")
    return parser.parse_args()


class _Times(defaultdict[str, list[int]]):
    """Nanoseconds by part."""

    def __init__(self) -> None:
        super().__init__(list)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls and notes the time."""

        def timed_call(*args: Any, **kwargs: Any) -> Any:
            start_ns = perf_counter_ns()
            result = call(*args, **kwargs)
            self[part].append(perf_counter_ns() - start_ns)
            return result

        return timed_call


def _run(num_rows: int, num_steps: int, times: _Times, *, device: str, lease_steps: int) -> None:
    """Run steps, each launched before the one before it is finished."""
    executor = make_executor(make_limits(num_rows), device=device)
    _time_runner(executor, times)
    parse, finish = times.timed("parse", _parse), times.timed("finish", PendingStep.finish)
    tell = times.timed("result", _tell)
    pending: PendingStep | None = None
    num_launched = 0
    for request in decode_steps(num_rows, lease_steps=lease_steps):
        step = parse(request.SerializeToString())
        for launched in _launch(executor, step, times):
            if pending is not None:
                tell(finish(pending))
            pending = launched
            num_launched += 1
            if num_launched == NUM_WARM_UP_STEPS:
                times.clear()
        if num_launched >= num_steps:
            return


def _launch(executor: StepExecutor, step: Step, times: _Times) -> Any:
    """Yield what is launched of a step, one at a time."""
    if step.num_steps == 1:
        yield times.timed("launch", executor.launch)(step)
        return
    lease = executor.begin_lease(step)
    while not lease.is_complete:
        yield times.timed("launch", executor.launch_iteration)(lease)


def _time_runner(executor: StepExecutor, times: _Times) -> None:
    runner: Any = executor._runner
    runner.launch = times.timed("runner", runner.launch)
    runner._decode.stage = times.timed("stage", runner._decode.stage)
    runner._download = times.timed("download", runner._download)


def _parse(data: bytes) -> Step:
    return step_from_proto(pb.RunStepsRequest.FromString(data).step)


def _tell(result: StepResult) -> bytes:
    return pb.RunStepsResponse(result=result_to_proto(result)).SerializeToString()


if __name__ == "__main__":
    main()
