"""``stepwire state``: what the server does now, as a table.

Knows nothing about how a server works.
"""

import time
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from stepwire_client import ServerState, StepwireClient

from stepwire_cli.exits import one_line_errors
from stepwire_cli.server_flags import ServerFlags

POLL_TIMEOUT_SECONDS = 10.0
FILE_WIDTH = 160


@dataclass(frozen=True, kw_only=True)
class StateFlags(ServerFlags):
    """Show queues, KV cache and workers, live until Ctrl-C."""

    once: Annotated[bool, typer.Option("--once", help="Print once and leave, as without a terminal.")] = False
    interval_seconds: Annotated[float, typer.Option(min=0.1, help="Time between two looks.")] = 1.0


def run_state(flags: StateFlags) -> None:
    """Run the command."""
    console = Console()
    with one_line_errors(flags.address), flags.client() as client:
        state = client.server_state(timeout_seconds=POLL_TIMEOUT_SECONDS)
        if flags.once or not console.is_terminal:
            if not console.is_terminal:
                # Rich would fold the tables to 80 columns.
                console.width = FILE_WIDTH
            console.print(render(state, tokens_per_second=None))
            return
        _show_live(client, console, flags.interval_seconds)


def _show_live(client: StepwireClient, console: Console, interval_seconds: float) -> None:
    before: ServerState | None = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            state = client.server_state(timeout_seconds=POLL_TIMEOUT_SECONDS)
            live.update(render(state, tokens_per_second=_rate(before, state)), refresh=True)
            before = state
            time.sleep(interval_seconds)


def _rate(before: ServerState | None, now: ServerState) -> float | None:
    """Return output tokens per second between two looks, by the server's own clock."""
    if before is None or now.uptime_seconds <= before.uptime_seconds:
        return None  # the first look, or the server was started anew
    num_tokens = now.num_output_tokens_total - before.num_output_tokens_total
    return num_tokens / (now.uptime_seconds - before.uptime_seconds)


def render(state: ServerState, *, tokens_per_second: float | None) -> Group:
    """Draw the state as two tables."""
    rate = "" if tokens_per_second is None else f" ({tokens_per_second:,.0f}/s)"
    cached_share = state.num_cached_tokens_total / max(state.num_prompt_tokens_total, 1)
    counts = Table(show_header=False, box=None)
    counts.add_column(justify="left", style="bold")
    counts.add_column(justify="left")
    counts.add_row("up", _format_seconds(state.uptime_seconds))
    counts.add_row(
        "requests",
        f"{state.num_running:,} running, {state.num_waiting:,} waiting, {state.num_preempted:,} preempted, "
        f"{state.num_finished_total:,} finished",
    )
    counts.add_row(
        "KV cache",
        f"{state.kv_cache_usage_ratio:.1%} of {state.num_blocks:,} blocks; "
        f"{state.num_cached_blocks:,} cached, {state.num_free_blocks:,} free",
    )
    counts.add_row(
        "prompt tokens", f"{state.num_prompt_tokens_total:,}, {cached_share:.1%} from the prefix cache"
    )
    counts.add_row("output tokens", f"{state.num_output_tokens_total:,}{rate}")
    counts.add_row("preemptions", f"{state.num_preemptions_total:,}")
    idle = ", ".join(f"{worker.device_idle_ratio:.0%}" for worker in state.workers if worker.is_serving)
    counts.add_row("devices idle", idle or "none serves")
    return Group(counts, _worker_table(state))


def _worker_table(state: ServerState) -> Table:
    table = Table("worker", "state", "device", "attention")
    for column in ("steps", "in flight", "running", "queued", "KV cache", "lost"):
        table.add_column(column, justify="right")
    for worker in state.workers:
        status = "[green]serving[/green]" if worker.is_serving else "[red]down[/red]"
        reason = escape(f": {worker.reason}") if worker.reason else ""
        table.add_row(
            worker.address,
            status + reason,
            worker.device,
            worker.attention_backend,
            f"{worker.num_steps:,}",
            str(worker.num_steps_in_flight),
            f"{worker.num_running:,}",
            f"{worker.num_waiting + worker.num_preempted:,}",
            f"{worker.kv_cache_usage_ratio:.0%}",
            str(worker.num_epochs_lost),
        )
    return table


def _format_seconds(seconds: float) -> str:
    """Format as 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
