"""The examples in other languages: built as their READMEs say, run against both services.

Knows nothing about how they work. `make test-node`, `make test-cpp` and `make test-go` install what
each needs; where something is missing, its tests are skipped.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from stepwire_client import StepwireClient

from tests.rules.source_tree import REPOSITORY, read_file
from tools.services import Services

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PROMPT = "The capital of France is"
ADDRESS_IN_README = "127.0.0.1:50051"
BUILD_LIMIT_SECONDS = 600
DEBIAN_GO_PATH = Path("/usr/share/gocode")
SHELL_BLOCK = re.compile(r"^```sh\n(.*)\n```$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An example that can be run, once for each test."""

    folder: Path
    command: str
    """Run in the folder, followed by the address and the prompt."""
    code_text: str = "DEADLINE_EXCEEDED"
    """How the language writes the status code."""

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        """Run it to its end."""
        return subprocess.run(
            [*shlex.split(self.command), *arguments],
            cwd=self.folder,
            capture_output=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="session", params=["node", "cpp", "go"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the example of one language, or skip its tests."""
    build: Callable[[Path], Built] = {"node": _build_node, "cpp": _build_cpp, "go": _build_go}[request.param]
    return build(tmp_path_factory.mktemp(request.param))


def test_it_collects_streams_cancels_and_keeps_a_deadline(
    built: Built, services: Services, client: StepwireClient
) -> None:
    result = built.run(services.address)
    assert result.returncode == 0, result.stderr.decode()
    collected = client.complete(PROMPT, temperature=0, max_tokens=16)
    streamed = client.complete([{"role": "user", "content": PROMPT}], seed=7, max_tokens=16)
    assert result.stdout.decode() == (
        f"generate: {collected.text}\n"
        f"          FINISH_REASON_{collected.finish_reason.name}, {len(collected.token_ids)} tokens\n"
        f"stream:   {streamed.text}\n"
        "cancel:   left after the first delta\n"
        f"deadline: {built.code_text}\n"
    )


def test_it_tells_why_a_request_was_refused(built: Built, services: Services, client: StepwireClient) -> None:
    result = built.run(services.address, "")
    assert result.returncode == 1
    assert "text is '', but must not be empty" in result.stderr.decode()
    assert client.server_state().num_running == 0


def _build_node(folder: Path) -> Built:
    _need("npm", "make test-node")
    return _build_as_the_readme_says(folder, "node")


def _build_cpp(folder: Path) -> Built:
    for tool in ("cmake", "grpc_cpp_plugin"):
        _need(tool, "make test-cpp")
    return _build_as_the_readme_says(folder, "cpp")


def _build_go(folder: Path) -> Built:
    for tool in ("go", "protoc-gen-go", "protoc-gen-go-grpc"):
        _need(tool, "make test-go")
    if not (DEBIAN_GO_PATH / "src/google.golang.org/grpc").is_dir():
        pytest.skip("Debian's golang-google-grpc-dev is missing: make test-go installs it")
    sources = _copy(folder, "go")
    _run("sh generate.sh", sources)
    shutil.copy(REPOSITORY / "tests/e2e/clients/connect_debian.go", sources / "connect.go")
    package = folder / "src/example.com/stepwire"
    package.parent.mkdir(parents=True)
    package.symlink_to(sources)
    go_path = {"GO111MODULE": "off", "GOPATH": f"{folder}:{DEBIAN_GO_PATH}"}
    _run("test -z $(gofmt -l *.go) && go vet . && go build -o example .", package, **go_path)
    return Built(folder=package, command="./example", code_text="DeadlineExceeded")


def _build_as_the_readme_says(folder: Path, language: str) -> Built:
    sources = _copy(folder, language)
    (block,) = SHELL_BLOCK.findall(read_file(f"clients/{language}/README.md"))
    build, _, run = str(block).rpartition(" && ")
    _run(build, sources)
    return Built(folder=sources, command=run.removesuffix(f" {ADDRESS_IN_README}"))


def _need(tool: str, target: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is missing: {target} installs it, or says how")


def _copy(folder: Path, language: str) -> Path:
    """Copy the example with its protos, so that no build leaves anything in the checkout."""
    shutil.copytree(REPOSITORY / "protos/stepwire", folder / "protos/stepwire")
    built = shutil.ignore_patterns("node_modules", "build", "stepwirepb")
    return Path(
        shutil.copytree(REPOSITORY / "clients" / language, folder / "clients" / language, ignore=built)
    )


def _run(command: str, folder: Path, **environment: str) -> None:
    result = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PWD": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
