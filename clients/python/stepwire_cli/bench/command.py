"""``stepwire bench``: cases and loads through client processes, figures out.

Knows nothing about how a server works, and nothing about single messages.
"""

import asyncio
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from stepwire_client.security import token_metadata

from stepwire_cli.bench import chart
from stepwire_cli.bench.driver import ClientProcesses
from stepwire_cli.bench.flags import BenchFlags
from stepwire_cli.bench.jobs import JobOptions, make_jobs
from stepwire_cli.bench.load import Load, poisson_arrivals, split_concurrency, split_items
from stepwire_cli.bench.messages import ClientSettings, RoundShare
from stepwire_cli.bench.metrics import summarize
from stepwire_cli.bench.prompts import prompts_as_text
from stepwire_cli.bench.records import RoundRecord
from stepwire_cli.bench.report import Run, as_json, print_lines
from stepwire_cli.bench.workload import Case
from stepwire_cli.exits import EXIT_FAILED, fail, one_line_errors

MODEL_INFO_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """One case, ready for rounds."""

    name: str
    prompts: list[str] | list[list[int]]
    num_outs: list[int]
    num_prompt_tokens: int


def run_bench(flags: BenchFlags) -> None:
    """Run the command."""
    if flags.png_path is not None and not chart.is_available():
        fail(chart.MISSING, exit_code=2)
    for path in (flags.json_path, flags.png_path):
        if path is not None and not path.parent.is_dir():
            fail(f"{path.parent} is no folder to write {path.name} into", exit_code=2)
    with one_line_errors(flags.address):
        runs = _measure(flags)
    if flags.json_path is not None:
        flags.json_path.write_text(json.dumps(as_json(runs, _settings(flags)), indent=1) + "\n")
    if flags.png_path is not None:
        chart.draw(runs, flags.png_path)
    if any(run.summary.num_failed for run in runs):
        raise typer.Exit(EXIT_FAILED)


def _measure(flags: BenchFlags) -> list[Run]:
    """Run all cases under all loads, printing each as it is done."""
    loads, console = flags.loads(), Console(soft_wrap=True)
    with flags.client() as client:
        info = client.model_info(timeout_seconds=MODEL_INFO_SECONDS)
    cases = [_prepare(name, case, flags) for name, case in flags.cases(info.vocab_size).items()]
    settings = ClientSettings(
        address=flags.address,
        num_channels=flags.channels,
        is_many=flags.many,
        timeout_seconds=flags.timeout_seconds,
        tls=flags.make_tls(),
        metadata=token_metadata(flags.token),
    )
    runs = []
    with ClientProcesses(flags.processes, settings) as clients:
        rounds = _Rounds(clients, flags)
        for case in cases:
            rounds.warm_up(case)
            for load in loads:
                runs.append(rounds.run(case, load))
                console.print(*print_lines(runs[-1]), sep="\n")
    return runs


def _prepare(name: str, case: Case, flags: BenchFlags) -> _Prepared:
    prompts, num_outs = case
    return _Prepared(
        name=name,
        prompts=asyncio.run(prompts_as_text(flags.aio_client, prompts)) if flags.text else prompts,
        num_outs=num_outs,
        num_prompt_tokens=sum(map(len, prompts)),
    )


class _Rounds:
    """Rounds of any case; no two have an id in common, in this run or another."""

    def __init__(self, clients: ClientProcesses, flags: BenchFlags) -> None:
        self._clients = clients
        self._flags = flags
        self._run_id = secrets.token_hex(4)
        self._num_rounds = 0

    def warm_up(self, case: _Prepared) -> None:
        """Run the first requests of the case, all at once."""
        num_requests = self._flags.num_warm_up_requests(len(case.prompts))
        if num_requests:
            first = dataclasses.replace(
                case, prompts=case.prompts[:num_requests], num_outs=case.num_outs[:num_requests]
            )
            self._round(first, Load(), f"{case.name}: warm-up")

    def run(self, case: _Prepared, load: Load) -> Run:
        """Time the case under the load."""
        num_rounds = self._flags.rounds
        records = [
            self._round(case, load, f"{case.name}, {load.label}: {number} of {num_rounds}")
            for number in range(1, num_rounds + 1)
        ]
        return Run(
            case=case.name,
            load=load,
            num_expected_prompt_tokens=case.num_prompt_tokens,
            summary=summarize(records),
        )

    def _round(self, case: _Prepared, load: Load, title: str) -> RoundRecord:
        flags, num_requests = self._flags, len(case.prompts)
        self._num_rounds += 1
        arrivals = None
        if load.rate_per_second is not None:
            arrivals = poisson_arrivals(num_requests, load.rate_per_second, seed=flags.seed)
        elif load.concurrency is None:
            arrivals = [0.0] * num_requests
        options = JobOptions(
            temperature=flags.temperature, is_many=flags.many, has_shared_prefixes=flags.shared_prefix > 0
        )
        round_id = f"bench-{self._run_id}-{self._num_rounds}"
        jobs = make_jobs(case.prompts, case.num_outs, options=options, round_id=round_id, arrivals=arrivals)
        concurrency = load.concurrency or num_requests
        shares = [
            RoundShare(jobs=tuple(share), concurrency=share_concurrency)
            for share, share_concurrency in zip(
                split_items(jobs, flags.processes, concurrency=concurrency),
                split_concurrency(concurrency, flags.processes),
                strict=True,
            )
        ]
        with _progress_bar(title, sum(case.num_outs)) as on_progress:
            return self._clients.run_round(shares, on_progress)


@contextmanager
def _progress_bar(title: str, num_tokens: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of tokens on a terminal, and take it away at the end."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=num_tokens)
        yield lambda num_done: progress.update(task, completed=num_done)


def _settings(flags: BenchFlags) -> dict[str, object]:
    """Return the flags as JSON takes them, but the token."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(flags).items()
        if value is not None and name != "token"
    }
