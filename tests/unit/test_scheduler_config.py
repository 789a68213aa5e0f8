"""The scheduler's options: defaults, limits, flags and environment, unknown ones of either."""

import math
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from scheduler_svc.command_line import check_environment
from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.supervisor import reserve_port


def test_defaults_are_as_documented() -> None:
    config = SchedulerConfig(model="m")
    assert (config.host, config.port, config.worker) == ("127.0.0.1", 50051, ("127.0.0.1:50061",))
    assert (config.frontends, config.max_steps_in_flight, config.max_num_waiting) == (1, 2, 4096)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len) == (0, 0, 0)
    assert config.max_message_bytes == 64 * 1024 * 1024
    assert config.logging_level == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "--model is '', but must name"),
        ({"host": ""}, "--host is '', but must name"),
        ({"port": -1}, "--port is -1, but must be in [0, 65535]"),
        ({"port": 65536}, "--port is 65536, but must be in [0, 65535]"),
        ({"worker": ()}, "--worker is (), but must be given at least once"),
        ({"worker": ("a:1", "b:1", "a:1")}, "--worker is 'a:1', but must be given once for each group"),
        ({"worker": ("a:1", "b")}, "--worker is 'b', but must be HOST:PORT"),
        ({"worker": ("a",)}, "--worker is 'a', but must be HOST:PORT"),
        ({"worker": (":1",)}, "--worker is ':1', but must be HOST:PORT"),
        ({"worker": ("a:0",)}, "--worker is 'a:0', but must be HOST:PORT"),
        ({"worker": ("a:65536",)}, "--worker is 'a:65536', but must be HOST:PORT"),
        ({"worker": ("a:1,b:2",)}, "--worker is 'a:1,b:2', but must be HOST:PORT"),
        ({"worker": ("a:1 b:2",)}, "--worker is 'a:1 b:2', but must be HOST:PORT"),
        ({"frontends": 0}, "--frontends is 0, but must be in [1, 256]"),
        ({"max_num_seqs": -1}, "--max-num-seqs is -1, but must be in [0, 2147483647]"),
        ({"max_num_batched_tokens": -1}, "--max-num-batched-tokens is -1"),
        ({"max_model_len": -1}, "--max-model-len is -1"),
        ({"max_steps_in_flight": 0}, "--max-steps-in-flight is 0, but must be in [1, 4]"),
        ({"max_steps_in_flight": 5}, "--max-steps-in-flight is 5, but must be in [1, 4]"),
        ({"max_num_waiting": 0}, "--max-num-waiting is 0"),
        ({"max_message_mib": 2048}, "--max-message-mib is 2048, but must be in [1, 2047]"),
        ({"drain_seconds": -1.0}, "--drain-seconds is -1.0, but must be finite and at least 0"),
        ({"drain_seconds": math.nan}, "--drain-seconds is nan"),
        ({"step_limit_seconds": 0.0}, "--step-limit-seconds is 0.0, but must be finite and over 0"),
        ({"first_step_limit_seconds": math.inf}, "--first-step-limit-seconds is inf"),
        ({"silence_limit_seconds": 1.9}, "--silence-limit-seconds is 1.9, but must be at least 2"),
        ({"metrics_port": 9, "port": 9}, "--metrics-port is 9, but must be another port than --port"),
        ({"metrics_port": -2}, "--metrics-port is -2, but must be in [-1, 65535]"),
        ({"otlp_endpoint": "a:1"}, "--otlp-endpoint is 'a:1', but must begin with http:// or https://"),
        ({"log_format": "xml"}, "--log-format is 'xml', but must be text or json"),
        ({"log_level": "loud"}, "--log-level is 'loud', but must be debug, info, warning or error"),
    ],
)
def test_a_bad_value_is_refused_with_option_value_and_limit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SchedulerConfig(**{"model": "m", **options})
    assert message in str(caught.value)


def test_an_unknown_environment_option_is_refused_by_name() -> None:
    check_environment({"STEPWIRE_SCHEDULER_PORT": "1", "STEPWIRE_WORKER_X": "1", "PATH": "/bin"})
    told = "STEPWIRE_SCHEDULER_PROT is unknown, but must be one of .*, such as STEPWIRE_SCHEDULER_PORT"
    with pytest.raises(ConfigError, match=told):
        check_environment({"STEPWIRE_SCHEDULER_PROT": "1"})


def _run(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run the command line; give its exit code and all it printed, with its line breaks joined."""
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_svc", *arguments],
        env={**os.environ, "COLUMNS": "400", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_help_explains_every_flag_by_its_docstring() -> None:
    code, text = _run("--help")
    assert code == 0
    for field in fields(SchedulerConfig):
        assert f"--{field.name.replace('_', '-')} " in text
        assert f"STEPWIRE_SCHEDULER_{field.name.upper()}" in text
    assert "How long a stop waits for running requests." in text


def test_options_and_files_are_checked_and_nothing_is_started(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("")
    arguments = ("--model", "a/hub", "--check-only", "--tenants-file", str(tenants))
    assert _run(*arguments) == (0, "")
    code, text = _run("--model", "none", *arguments[2:])
    assert (code, text) == (2, "scheduler error: model folder 'none' does not exist\n")
    tenants.write_text("[")
    code, text = _run(*arguments)
    assert code == 2
    assert "--tenants-file is" in text
    code, text = _run(*arguments[:3], "--tls-cert", str(tenants), "--tls-key", str(tenants))
    assert code == 2
    assert "--tls-" in text


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("--model", "x", "--prot", "1"), {}, "No such option: --prot"),
        (("--model", "x"), {"STEPWIRE_SCHEDULER_PROT": "1"}, "STEPWIRE_SCHEDULER_PROT is unknown"),
        (("--model", "x", "--port", "many"), {}, "Invalid value for '--port'"),
        (("--model", "x"), {"STEPWIRE_SCHEDULER_PORT": "-1"}, "--port is -1, but must be in [0, 65535]"),
        (
            ("--model", "x", "--worker", "a:1", "--worker", "a:1"),
            {},
            "--worker is 'a:1', but must be given once for each group",
        ),
        (
            (),
            {"STEPWIRE_SCHEDULER_MODEL": "/nowhere/at/all"},
            "model folder '/nowhere/at/all' does not exist",
        ),
    ],
)
def test_a_bad_start_ends_with_one_clear_line(
    arguments: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    code, text = _run(*arguments, **environment)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_a_model_that_the_hub_did_not_give_is_no_refusal(tmp_path: Path) -> None:
    code, text = _run("--model", "owner/model", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert code == 1
    assert (
        "scheduler error: model 'owner/model' is no folder here, and fetching it from the hub failed" in text
    )
    assert "Traceback" not in text


def test_a_host_that_is_not_ours_is_not_blamed_on_the_port() -> None:
    # An address of those kept for documentation: no machine has it.
    with pytest.raises(ConfigError, match=r"--host is '192\.0\.2\.1', but must be an address that can be li"):
        reserve_port("192.0.2.1", 50051)
