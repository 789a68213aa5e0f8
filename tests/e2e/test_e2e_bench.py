"""``stepwire bench`` as a process, against both services: prompts as text, and shared prefixes.

Knows nothing about how figures are computed.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stepwire_client import StepwireClient

from tools.services import Services

LIMIT_SECONDS = 60


def bench(services: Services, json_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run it; return the summary of its only run and what it printed."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "stepwire_cli", "bench", *arguments),
            *("--warm-up", "0", "--processes", "1", "--json", str(json_path), "--address", services.address),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    (run,) = json.loads(json_path.read_text())["runs"]
    summary: dict[str, Any] = run["summary"]
    return summary, result.stdout


def test_prompts_as_text_have_about_as_many_tokens(
    services: Services, client: StepwireClient, tmp_path: Path
) -> None:
    before = client.server_state()
    summary, printed = bench(
        services,
        tmp_path / "bench.json",
        *("--text", "--num-requests", "6", "--input-tokens", "20:40", "--output-tokens", "3:5"),
    )
    state = client.server_state()
    assert printed.startswith("6x20:40->3:5, all at once: 6 requests in ")
    assert (summary["num_failed"], summary["num_cached_tokens"]) == (0, 0)
    assert 6 * 20 * 0.9 <= summary["num_prompt_tokens"] <= 6 * 40
    assert state.num_prompt_tokens_total - before.num_prompt_tokens_total == summary["num_prompt_tokens"]
    assert state.num_output_tokens_total - before.num_output_tokens_total == summary["num_output_tokens"]


def test_rounds_share_a_prefix_only_when_asked_to(
    services: Services, client: StepwireClient, tmp_path: Path
) -> None:
    shape = ("--num-requests", "3", "--input-tokens", "40", "--output-tokens", "2", "--concurrency", "1")
    shared, _ = bench(services, tmp_path / "shared.json", *shape, "--shared-prefix", "32", "--rounds", "2")
    assert shared["num_cached_tokens"] == 2 * 32  # of each round: its first request finds nothing
    alone, _ = bench(services, tmp_path / "alone.json", *shape, "--rounds", "2")
    assert alone["num_cached_tokens"] == 0
    del client  # afterwards nothing may be held
