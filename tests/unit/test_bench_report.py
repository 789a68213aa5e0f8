"""How `stepwire bench` tells figures: lines, warnings, and where a run stands in the chart."""

import io
import json
from array import array
from typing import Any

from rich.console import Console
from stepwire_cli.bench.chart import points
from stepwire_cli.bench.load import Load
from stepwire_cli.bench.metrics import summarize
from stepwire_cli.bench.records import ClientUsage, RequestRecord, RoundRecord
from stepwire_cli.bench.report import Run, as_json, headline, print_lines, warnings


def run(load: Load | None = None, *, loop: float = 0.25, **fields: Any) -> Run:
    """One round of one request: 1,000 tokens, first after 0.5 s, last after 2.5 s."""
    record = RequestRecord(
        **{
            "index": 0,
            "num_expected_tokens": 1000,
            "due_seconds": 0.0,
            "sent_seconds": 0.0,
            "ended_seconds": 2.5,
            "message_seconds": array("d", [0.5, 2.498]),
            "message_num_tokens": array("L", [1, 999]),
            "num_prompt_tokens": 100,
            **fields,
        }
    )
    usage = ClientUsage(wall_seconds=1.0, cpu_seconds=2 * loop, loop_cpu_seconds=loop)
    summary = summarize([RoundRecord(requests=(record,), clients=(usage,))])
    return Run(case="c", load=load or Load(), num_expected_prompt_tokens=100, summary=summary)


def lines_of(shown: Run) -> list[str]:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(*print_lines(shown), sep="\n")
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_a_run_in_lines() -> None:
    assert lines_of(run()) == [
        "c, all at once: 1 requests in 2.500 s, 400 output tokens/s, 0.40 requests/s, 2.500 ms/step",
        "ms mean p50 p90 p95 p99",
        "TTFT 500.00 500.00 500.00 500.00 500.00",
        "ITL 1,998.00 1,998.00 1,998.00 1,998.00 1,998.00",
        "TPOT 2.00 2.00 2.00 2.00 2.00",
        "E2EL 2,500.00 2,500.00 2,500.00 2,500.00 2,500.00",
        "sent late 0.00 0.00 0.00 0.00 0.00",
        "100 prompt tokens (0 from the prefix cache), 1,000 output tokens; "
        "client processes: 0.50 cores, their event loops 25% busy",
    ]


def test_a_step_is_told_only_where_all_requests_start_at_once() -> None:
    assert headline(run(Load(concurrency=2))) == (
        "c, 2 at a time: 1 requests in 2.500 s, 400 output tokens/s, 0.40 requests/s"
    )


def test_what_makes_figures_doubtful_is_said() -> None:
    assert warnings(run()) == []
    assert warnings(run(loop=0.9)) == [
        "a client process was near 100 % of a core and may be the bottleneck: more --processes"
    ]
    assert warnings(run(num_prompt_tokens=89)) == ["as text the prompts have 89 tokens, not 100"]
    assert warnings(run(error="INTERNAL", error_message="[x]")) == [
        "1 requests failed with INTERNAL, for example: [x]"
    ]


def test_json_holds_all_figures() -> None:
    told = json.loads(json.dumps(as_json([run(Load(rate_per_second=2.5))], {"seed": 1})))
    assert told["settings"] == {"seed": 1}
    (only,) = told["runs"]
    assert only["load"] == {"concurrency": None, "rate_per_second": 2.5}
    assert only["summary"]["ttft_seconds"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 0.5)
    assert only["summary"]["output_tokens_per_second"] == 400.0


def test_a_line_of_the_chart_goes_by_ascending_load() -> None:
    runs = [run(Load(rate_per_second=4.0), due_seconds=0.25), run(Load(rate_per_second=2.0))]
    assert points(runs, "TTFT", percentile="p50") == [(2.0, 500.0), (4.0, 250.0)]
    assert points([run(Load(concurrency=3)), run()], "E2EL", percentile="p99") == [(1, 2500.0), (3, 2500.0)]


def test_a_run_without_a_value_has_no_point() -> None:
    assert points([run(error="INTERNAL")], "TTFT", percentile="p50") == []
