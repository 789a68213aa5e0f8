"""The Python of the client's README, as it stands there, against the running services.

Knows nothing about what it asks for.
"""

import re

import pytest
from stepwire_client import StepwireClient

from tests.rules.source_tree import read_file
from tools.services import Services

ADDRESS_IN_README = "127.0.0.1:50051"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _run(number: int, services: Services) -> None:
    block = PYTHON_BLOCK.findall(read_file("clients/python/README.md"))[number]
    exec(block.replace(ADDRESS_IN_README, services.address), {})


def test_it_streams_completes_and_is_refused(
    services: Services, client: StepwireClient, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(0, services)
    printed = capsys.readouterr().out
    completion = client.complete("The capital of France is", temperature=0, max_tokens=16)
    assert printed.startswith(f"{completion.text}\n{completion.finish_reason} Usage(num_prompt_tokens=")
    assert printed.endswith("\nsampling.temperature is -1.0, but must be in [0, 100]\n")


@pytest.mark.usefixtures("client")
def test_many_requests_share_a_stream(services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    _run(1, services)
    lines = capsys.readouterr().out.splitlines()
    ends = {line.split()[0] for line in lines if re.fullmatch(r"\w+ FinishReason\.(LENGTH|STOP)", line)}
    assert ends == {"one", "ten"}
