"""The container engine: Docker where its daemon answers, else podman with podman-compose.

Runs compose commands for one project. Knows nothing about what the services are.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_LIMIT_SECONDS = 120.0
BUILD_LIMIT_SECONDS = 3000.0


class ComposeRunError(Exception):
    """The run cannot go on, or a check failed: the message says what and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How to run compose commands."""

    name: str
    compose: tuple[str, ...]
    """The command, the project's name included."""
    environment: Mapping[str, str]
    """All of it, not only what differs from ours."""

    def try_compose(
        self,
        arguments: Sequence[str],
        limit_seconds: float = COMMAND_LIMIT_SECONDS,
        *,
        changes: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run one compose command; standard output and error come back as one text.

        Args:
            arguments: What follows the project's name.
            limit_seconds: When to give up.
            changes: Environment variables of this command alone.

        Raises:
            ComposeRunError: if the command takes too long.
        """
        return run(
            [*self.compose, *arguments], limit_seconds, environment={**self.environment, **(changes or {})}
        )

    def run_compose(self, *arguments: str, limit_seconds: float = COMMAND_LIMIT_SECONDS) -> str:
        """Run one compose command and return what it printed.

        Raises:
            ComposeRunError: if the command fails: with what it printed.
        """
        return expect_success(self.try_compose(arguments, limit_seconds))

    def run_make(self, *arguments: str, limit_seconds: float = COMMAND_LIMIT_SECONDS) -> str:
        """Run make with this engine's compose command and return what it printed.

        Raises:
            ComposeRunError: if it fails: with what it printed.
        """
        command = ["make", *arguments, f"COMPOSE={shlex.join(self.compose)}"]
        return expect_success(run(command, limit_seconds, environment=self.environment))

    def try_python(self, service: str, program: str) -> "subprocess.CompletedProcess[str]":
        """Run a Python program inside a service's container, as the container's user."""
        return self.try_compose(["exec", "-T", service, "/opt/venv/bin/python", "-c", program])


def find_docker(project: str, environment: Mapping[str, str]) -> Engine | None:
    """Return Docker, where its daemon answers and it has compose; else None."""
    if shutil.which("docker") is None:
        return None
    for question in (["docker", "info"], ["docker", "compose", "version"]):
        if run(question, COMMAND_LIMIT_SECONDS, environment=environment).returncode != 0:
            return None
    compose = ("docker", "compose", "--project-name", project)
    return Engine(name="Docker", compose=compose, environment=environment)


def podman_engine(project: str, environment: Mapping[str, str]) -> Engine:
    """Return podman with the podman-compose of this interpreter's environment."""
    compose = (sys.executable, "-m", "podman_compose", "--project-name", project)
    return Engine(name="podman", compose=compose, environment=environment)


def run(
    command: Sequence[str], limit_seconds: float, *, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command at the top of the repository; standard output and error come back as one text.

    Raises:
        ComposeRunError: if it takes too long.
    """
    try:
        return subprocess.run(
            command,
            cwd=REPOSITORY,
            env=dict(environment),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ComposeRunError(f"{' '.join(command)} took longer than {limit_seconds:.0f} s") from error


def expect_success(result: "subprocess.CompletedProcess[str]") -> str:
    """Return what a command printed.

    Raises:
        ComposeRunError: if its exit status is not 0: with what it printed.
    """
    if result.returncode != 0:
        raise ComposeRunError(
            f"{' '.join(map(str, result.args))} ended with exit status {result.returncode}:\n{result.stdout}"
        )
    return result.stdout
