"""The parts of `make test-compose` that need no container engine."""

import sys

import pytest

from tools.compose_run.engine import ComposeRunError, expect_success, run
from tools.compose_run.podman import settings_text


def test_settings_without_systemd() -> None:
    assert settings_text(has_systemd=False, limits={"nofile": 4096, "nproc": 100}).splitlines() == [
        "[engine]",
        'runtime = "runc"',
        'cgroup_manager = "cgroupfs"',
        'events_logger = "file"',
        "[containers]",
        'default_ulimits = ["nofile=4096:4096", "nproc=100:100"]',
    ]


def test_settings_with_systemd() -> None:
    assert settings_text(has_systemd=True, limits={"nofile": 1}).splitlines() == [
        "[engine]",
        'runtime = "runc"',
        "[containers]",
        'default_ulimits = ["nofile=1:1"]',
    ]


def test_a_command_that_fails_is_told_with_what_it_printed() -> None:
    program = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    result = run([sys.executable, "-uc", program], 60, environment={})
    with pytest.raises(ComposeRunError, match=r"ended with exit status 3:\none\ntwo\n"):
        expect_success(result)


def test_a_command_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(ComposeRunError, match="took longer than 0 s"):
        run([sys.executable, "-c", "import time; time.sleep(600)"], 0.1, environment={})
