"""The README's grpcurl commands, as they stand there, against the running services."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.recipes.recipe_page import json_values
from tests.rules.source_tree import read_file
from tools.services import Services

ADDRESS_IN_README = "127.0.0.1:50051"


def _commands() -> list[list[str]]:
    text = read_file("README.md").replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in re.findall(r"^grpcurl .*$", text, re.MULTILINE)]


@pytest.fixture
def answers(services: Services) -> list[str]:
    """Run all commands and return what each printed."""
    grpcurl = str(Path(sys.executable).parent / "grpcurl")
    return [
        subprocess.run(
            [grpcurl, *(services.address if word == ADDRESS_IN_README else word for word in words)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        for words in _commands()
    ]


def test_the_readmes_commands_answer(answers: list[str]) -> None:
    services, health, generation = answers
    assert services.split() == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "stepwire.v1.GenerationService",
        "vllm.grpc.engine.VllmEngine",
    ]
    assert json.loads(health) == {"status": "SERVING"}
    delta, final = json_values(generation)
    assert len(delta["delta"]["token_ids"]) == 1
    assert final["final"]["finish_reason"] == "FINISH_REASON_LENGTH"
    assert final["final"]["usage"]["num_output_tokens"] == 1
