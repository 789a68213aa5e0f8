"""The commands of docs/backend.md: the demo, smg as it is started by hand, and curl's call."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source_tree import REPOSITORY, read_file
from tools.gateway import free_ports, launched, wait_until_ready
from tools.services import Services

pytestmark = pytest.mark.long

LIMIT_SECONDS = 200


def test_the_demo_asks_and_stops(model_folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tools.demo_openai", "--model", str(model_folder), "--question", "What's it?"],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    call = re.search(
        r"^\$ (curl -N http://127\.0\.0\.1:\d+/v1/chat/completions .*\\\n.*)$", result.stdout, re.M
    )
    assert call is not None
    body = json.loads(shlex.split(call[1].replace("\\\n", ""))[-1])
    assert body["messages"] == [{"role": "user", "content": "What's it?"}]
    assert "\nquestion: What's it?\nanswer:   " in result.stdout
    counts = re.search(r"\((\d+) prompt tokens, (\d+) generated\)", result.stdout)
    assert counts is not None
    assert (int(counts[1]) > 10, 1 <= int(counts[2]) <= 256) == (True, True)


def test_the_document_s_commands_answer(services: Services, model_folder: Path) -> None:
    text = read_file("docs/backend.md").replace("\\\n", " ")
    (launch,) = re.findall(r"^smg launch (.*)$", text, re.M)
    (call,) = re.findall(r"^(curl .*)$", text, re.M)
    port, metrics_port = free_ports()
    here = {
        "127.0.0.1:50051": services.address,
        "30000": str(port),
        "SmolLM2-135M-Instruct": model_folder.name,
    }
    for there, replacement in here.items():
        launch, call = launch.replace(there, replacement), call.replace(there, replacement)
    with launched(*shlex.split(launch), "--prometheus-port", str(metrics_port)) as gateway:
        wait_until_ready(gateway, f"http://127.0.0.1:{port}", num_models=1)
        command = [*shlex.split(call), "--silent", "--show-error", "--fail", "--noproxy", "*"]
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS
        ).stdout
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line]
    assert events[-1] == "[DONE]"
    (*_, last) = [json.loads(event) for event in events[:-1]]
    assert last["choices"][0]["finish_reason"] in ("length", "stop")
