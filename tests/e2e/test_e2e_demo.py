"""`make demo` with a tiny model: both services start, one answer streams, everything stops."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 100


def test_the_demo_asks_and_stops(checkpoint_folder: Callable[[str], Path]) -> None:
    result = _run_demo("--model", str(checkpoint_folder("qwen3_tiny")), "--question", "What is a block?")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\nquestion: What is a block?\nanswer:   " in result.stdout
    counts = re.search(r"\((\d+) prompt tokens, (\d+) generated; first after ", result.stdout)
    assert counts is not None
    assert (int(counts[1]) > 10, 1 <= int(counts[2]) <= 256) == (True, True)


def test_a_missing_model_ends_the_demo_with_a_reason(tmp_path: Path) -> None:
    result = _run_demo("--model", str(tmp_path / "nowhere"))
    assert result.returncode == 1
    assert f"{tmp_path / 'nowhere'}" in result.stderr
    assert result.stderr.endswith("demo: the services ended before they listened\n")


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """Have what a test starts heed Ctrl-C: jobs in a script's background ignore it and hand that down."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_while_the_model_loads_ends_all_without_a_traceback(
    checkpoint_folder: Callable[[str], Path],
) -> None:
    command = [sys.executable, "-m", "tools.demo", "--model", str(checkpoint_folder("qwen3_tiny"))]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert any(line.startswith("worker    | ") for line in demo.stdout)
        demo.send_signal(signal.SIGINT)
        # Both end only when nobody is left who could write to them: the services have ended too.
        stdout, stderr = demo.communicate(timeout=LIMIT_SECONDS)
    assert demo.returncode == 130, stdout + stderr
    assert "question: " not in stdout
    assert "Traceback" not in stdout + stderr


def _run_demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tools.demo", *arguments],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
