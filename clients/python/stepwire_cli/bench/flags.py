"""The flags of ``stepwire bench``, and the checks of those that do not go together.

Knows nothing about how a benchmark runs.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from stepwire_client import InvalidRequest

from stepwire_cli.bench.load import Load
from stepwire_cli.bench.workload import CASES, Case, LengthRange, fit_vocabulary, shaped, share_prefix
from stepwire_cli.server_flags import ServerFlags

_WORKLOAD, _LOAD, _CLIENT, _OUTPUT = "Workload", "Load", "Clients", "Output"
_MAX_PROCESSES = 4
_CORES_A_PROCESS = 4
DEFAULT_NUM_REQUESTS, DEFAULT_LENGTH = 32, "128"


def _default_num_processes() -> int:
    """Leave most cores to the server where it runs on the same machine."""
    return max(1, min(_MAX_PROCESSES, (os.cpu_count() or 1) // _CORES_A_PROCESS))


@dataclass(frozen=True, kw_only=True)
class BenchFlags(ServerFlags):
    """Measure a running server: latencies, rates and errors, from client processes of its own.

    Without --rate or --concurrency all requests of a case are sent at once, and ms/step is told: the whole
    time over the tokens of the longest request.

    TTFT and E2EL count from when a request was due, ITL is the gap between messages with tokens, TPOT the
    time per token after the first.

    Exit code 1: a request failed or did not yield its exact number of tokens.
    """

    case: Annotated[
        list[str],
        typer.Option(metavar="NAME", help=f"{', '.join(CASES)}; may be repeated.", rich_help_panel=_WORKLOAD),
    ] = field(default_factory=list)
    num_requests: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Own shape: requests. Default: {DEFAULT_NUM_REQUESTS}.", rich_help_panel=_WORKLOAD
        ),
    ] = None
    input_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N|LOW:HIGH",
            help=f"Own shape: prompt tokens, fixed or uniform. Default: {DEFAULT_LENGTH}.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None
    output_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N|LOW:HIGH",
            help=f"Own shape: tokens to generate. Default: {DEFAULT_LENGTH}.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None
    shared_prefix: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tokens that all prompts of a round share; 0 keeps the prefix cache out of it.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = 0
    temperature: Annotated[
        float, typer.Option(help="Of sampling; end-of-sequence is ignored.", rich_help_panel=_WORKLOAD)
    ] = 0.6
    seed: Annotated[
        int, typer.Option(help="Of own shapes and of arrival times.", rich_help_panel=_WORKLOAD)
    ] = 0
    concurrency: Annotated[
        list[int],
        typer.Option(min=1, help="Requests at a time; repeat it for several loads.", rich_help_panel=_LOAD),
    ] = field(default_factory=list)
    rate: Annotated[
        list[float],
        typer.Option(
            help="Arrivals per second at random times (Poisson); repeat it for several loads.",
            rich_help_panel=_LOAD,
        ),
    ] = field(default_factory=list)
    rounds: Annotated[int, typer.Option(min=1, help="How often each is timed.", rich_help_panel=_LOAD)] = 1
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Requests of each case that run first, untimed, all at once. "
            "Default: all, or 16 with --rate.",
            show_default=False,
            rich_help_panel=_LOAD,
        ),
    ] = None
    text: Annotated[
        bool,
        typer.Option("--text", help="Send prompts as text instead of token ids.", rich_help_panel=_CLIENT),
    ] = False
    many: Annotated[
        bool,
        typer.Option("--many", help="Use GenerateMany, one stream a channel.", rich_help_panel=_CLIENT),
    ] = False
    processes: Annotated[
        int, typer.Option(min=1, help="Client processes. Default: 1 to 4 by cores.", rich_help_panel=_CLIENT)
    ] = field(default_factory=_default_num_processes)
    channels: Annotated[
        int,
        typer.Option(
            min=1,
            help="Connections of each process; front ends of one port share them.",
            rich_help_panel=_CLIENT,
        ),
    ] = 8
    timeout_seconds: Annotated[
        float | None,
        typer.Option(help="Deadline of each request; of each stream with --many.", rich_help_panel=_CLIENT),
    ] = None
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here.", rich_help_panel=_OUTPUT)
    ] = None
    png_path: Annotated[
        Path | None,
        typer.Option(
            "--png",
            help="Draw latency against load here, from several values of --rate or --concurrency.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None

    def loads(self) -> list[Load]:
        """Return the loads that are asked for.

        Raises:
            InvalidRequest: if the flags do not go together.
        """
        if self.rate and self.concurrency:
            raise InvalidRequest("--rate and --concurrency are both given, but are two kinds of load")
        for rate in self.rate:
            if not rate > 0:
                raise InvalidRequest(f"--rate is {rate:g}, but must be above 0")
        rates = [Load(rate_per_second=rate) for rate in self.rate]
        return [*rates, *(Load(concurrency=number) for number in self.concurrency)] or [Load()]

    def cases(self, vocab_size: int) -> dict[str, Case]:
        """Return the cases that are asked for, by name.

        Raises:
            InvalidRequest: if there is none of a name, or a flag of own shapes stands beside it.
        """
        own = (self.num_requests, self.input_tokens, self.output_tokens)
        if self.case and own != (None, None, None):
            raise InvalidRequest(
                "--case has its own numbers: leave out --num-requests, --input-tokens and so on"
            )
        for name in self.case:
            if name not in CASES:
                raise InvalidRequest(f"--case is {name!r}, but must be one of {', '.join(CASES)}")
        cases = {name: CASES[name]() for name in self.case} or self._own_case()
        return {
            name: share_prefix(fit_vocabulary(case, vocab_size), self.shared_prefix)
            for name, case in cases.items()
        }

    def num_warm_up_requests(self, num_requests: int) -> int:
        """Return how many requests of a case run first."""
        default = 16 if self.rate else num_requests
        return min(num_requests, default if self.warm_up is None else self.warm_up)

    def _own_case(self) -> dict[str, Case]:
        num_requests = self.num_requests or DEFAULT_NUM_REQUESTS
        num_in = parse_length("--input-tokens", self.input_tokens or DEFAULT_LENGTH)
        num_out = parse_length("--output-tokens", self.output_tokens or DEFAULT_LENGTH)
        name = f"{num_requests}x{num_in.label}->{num_out.label}"
        return {name: shaped(num_requests, num_in=num_in, num_out=num_out, seed=self.seed)}


def parse_length(flag: str, text: str) -> LengthRange:
    """Read 128 or 100:1024.

    Raises:
        InvalidRequest: if it is neither, or empty.
    """
    low, colon, high = text.partition(":")
    try:
        length = LengthRange(low=int(low), high=int(high if colon else low))
    except ValueError:
        raise InvalidRequest(f"{flag} is {text!r}, but must be a number or LOW:HIGH") from None
    if not 1 <= length.low <= length.high:
        raise InvalidRequest(f"{flag} is {text!r}, but must be at least 1, and LOW at most HIGH")
    return length
