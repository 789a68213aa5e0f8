"""The command line's own arithmetic: flags to options, to command lines, to exit codes, to tables."""

import io
from dataclasses import fields
from typing import Any

import pytest
import typer
from rich.console import Console
from stepwire_cli.exits import EXIT_CODE_OF_ERROR, describe, exit_code_of
from stepwire_cli.main import app
from stepwire_cli.request_flags import RequestFlags
from stepwire_cli.serve import check_port
from stepwire_cli.serve_flags import ServeFlags
from stepwire_cli.service_commands import scheduler_command, worker_command
from stepwire_cli.state import render
from stepwire_client import (
    AlreadyExists,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    GenerationRequest,
    Internal,
    InvalidRequest,
    NotFound,
    OutputParams,
    ResourceExhausted,
    SamplingParams,
    ServerState,
    StepwireClientError,
    StopParams,
    Unavailable,
    Unimplemented,
    WorkerState,
)
from typer.testing import CliRunner


def test_services_get_what_was_given_and_keep_their_own_defaults() -> None:
    flags = ServeFlags(model="m")
    assert worker_command(flags, python="py") == (
        *("py", "-u", "-m", "worker_svc", "--model", "m", "--host", "127.0.0.1", "--port", "0"),
        *("--device", "cpu"),
    )
    assert scheduler_command(flags, worker_address="127.0.0.1:7", python="py") == (
        *("py", "-u", "-m", "scheduler_svc", "--model", "m", "--worker", "127.0.0.1:7"),
        *("--host", "127.0.0.1", "--port", "50051", "--drain-seconds", "30.0"),
    )


EVERY_SERVE_FLAG: dict[str, Any] = {
    "model": "m",
    "host": "0.0.0.0",
    "port": 1,
    "device": "cuda",
    "tensor_parallel_size": 1,
    "worker_port": 2,
    "dtype": "float32",
    "attention_backend": "torch",
    "block_size": 3,
    "num_blocks": 4,
    "kv_cache_gib": 0.5,
    "max_num_seqs": 5,
    "max_num_batched_tokens": 6,
    "max_model_len": 7,
    "torch_threads": 8,
    "served_model_name": "n",
    "frontends": 9,
    "max_steps_in_flight": 1,
    "max_num_waiting": 10,
    "drain_seconds": 11.0,
    "tls_cert": "c.pem",
    "tls_key": "k.pem",
    "tenants_file": "t.toml",
    "max_message_mib": 12,
    "metrics_port": 13,
    "worker_metrics_port": 14,
    "otlp_endpoint": "http://h:1",
    "log_level": "debug",
    "log_format": "json",
}


def test_every_serve_flag_reaches_a_service() -> None:
    assert set(EVERY_SERVE_FLAG) == {item.name for item in fields(ServeFlags)}
    flags = ServeFlags(**EVERY_SERVE_FLAG)
    assert worker_command(flags, python="py")[4:] == (
        *("--model", "m", "--host", "127.0.0.1", "--port", "2", "--metrics-port", "14"),
        *("--device", "cuda", "--dtype", "float32"),
        *("--attention-backend", "torch", "--block-size", "3", "--num-blocks", "4", "--kv-cache-gib", "0.5"),
        *("--max-num-seqs", "5", "--max-num-batched-tokens", "6", "--max-model-len", "7"),
        *("--torch-threads", "8", "--log-level", "debug", "--log-format", "json"),
    )
    assert scheduler_command(flags, worker_address="h:7", python="py")[4:] == (
        *("--model", "m", "--worker", "h:7", "--served-model-name", "n", "--host", "0.0.0.0", "--port", "1"),
        *("--frontends", "9", "--max-steps-in-flight", "1", "--max-num-waiting", "10"),
        *("--drain-seconds", "11.0", "--tls-cert", "c.pem", "--tls-key", "k.pem"),
        *("--tenants-file", "t.toml", "--max-message-mib", "12", "--metrics-port", "13"),
        *("--otlp-endpoint", "http://h:1", "--log-level", "debug", "--log-format", "json"),
    )


def test_torchrun_starts_the_ranks_of_a_worker() -> None:
    flags = ServeFlags(model="m", tensor_parallel_size=4)
    assert worker_command(flags, 4242, python="py") == (
        *("py", "-u", "-m", "worker_svc.launch", "--standalone", "--nproc-per-node", "4"),
        *("-m", "worker_svc", "--model", "m", "--host", "127.0.0.1", "--port", "4242", "--device", "cpu"),
    )


@pytest.mark.parametrize("port", [-1, 65536, 80000])
def test_a_port_that_is_none_is_refused_before_anything_starts(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ending:
        check_port("127.0.0.1", port)
    assert ending.value.exit_code == 2
    assert capsys.readouterr().err == f"error: --port is {port}, but must be in [0, 65535]\n"


def test_request_flags_that_are_not_given_change_nothing() -> None:
    assert GenerationRequest.of("hi", **RequestFlags().request_options()) == GenerationRequest(
        prompt="hi", stop_params=StopParams(stop=[], stop_token_ids=[])
    )


def test_every_request_flag_becomes_its_option() -> None:
    flags = RequestFlags(
        temperature=0.5,
        top_k=1,
        top_p=0.25,
        min_p=0.125,
        seed=2,
        presence_penalty=-1.0,
        frequency_penalty=1.0,
        repetition_penalty=1.5,
        logit_bias=["3=-1.5", "4=100"],
        max_tokens=5,
        min_tokens=6,
        stop=["a", "b"],
        stop_token_id=[7],
        ignore_eos=True,
        include_stop_str_in_output=True,
        keep_special_tokens=True,
        cache_salt="s",
        priority=8,
        template_arguments='{"enable_thinking": false}',
    )
    assert GenerationRequest.of("hi", **flags.request_options()) == GenerationRequest(
        prompt="hi",
        sampling_params=SamplingParams(
            temperature=0.5,
            top_k=1,
            top_p=0.25,
            min_p=0.125,
            seed=2,
            presence_penalty=-1.0,
            frequency_penalty=1.0,
            repetition_penalty=1.5,
            logit_bias={3: -1.5, 4: 100.0},
        ),
        stop_params=StopParams(
            max_tokens=5,
            min_tokens=6,
            stop=["a", "b"],
            stop_token_ids=[7],
            ignore_eos=True,
            include_stop_str_in_output=True,
        ),
        output_params=OutputParams(skip_special_tokens=False),
        cache_salt="s",
        priority=8,
        template_arguments={"enable_thinking": False},
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (RequestFlags(logit_bias=["3"]), "--logit-bias is '3', but must be ID=BIAS"),
        (RequestFlags(template_arguments="{"), "--template-arguments is '{', but must be JSON: "),
        (
            RequestFlags(template_arguments="[1]"),
            r"--template-arguments is '\[1\]', but must be a",
        ),
    ],
)
def test_flags_that_cannot_be_read_are_named(flags: RequestFlags, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        flags.request_options()


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (StepwireClientError("x"), 1),
        (Internal("x"), 1),
        (NotFound("x"), 1),
        (InvalidRequest("x"), 2),
        (AlreadyExists("x"), 2),
        (Unavailable("x"), 3),
        (ConnectionFailed("x"), 3),
        (ResourceExhausted("x"), 4),
        (DeadlineExceeded("x"), 5),
        (Cancelled("x"), 130),
    ],
)
def test_exit_codes(error: StepwireClientError, exit_code: int) -> None:
    assert exit_code_of(error) == exit_code
    assert set(EXIT_CODE_OF_ERROR.values()) == {1, 2, 3, 4, 5, 130}


def test_an_error_is_one_line() -> None:
    assert describe(InvalidRequest("top_k is 1,\n but"), "h:1") == "top_k is 1, but"
    expected = "no server answers at h:1; start one: stepwire serve --model DIR"
    assert describe(ConnectionFailed("failed to connect"), "h:1") == expected
    expected = "h:1 does not know this call, as a scheduler of this version does (Method not found!)"
    assert describe(Unimplemented("Method not found!"), "h:1") == expected


def test_the_state_as_a_table() -> None:
    worker = WorkerState(
        address="h:1",
        is_serving=False,
        reason="[Errno 111] refused",
        worker_epoch=9,
        device="cpu",
        attention_backend="torch",
        num_steps_in_flight=2,
        num_steps=1234,
        num_running=2,
        num_waiting=1,
        num_preempted=3,
        kv_cache_usage_ratio=0.925,
        num_epochs_lost=6,
        device_idle_ratio=0.125,
    )
    state = ServerState(
        num_waiting=1,
        num_running=2,
        num_preempted=3,
        num_blocks=1000,
        num_free_blocks=40,
        num_cached_blocks=35,
        kv_cache_usage_ratio=0.925,
        num_prompt_tokens_total=1000,
        num_cached_tokens_total=600,
        num_output_tokens_total=2000,
        num_finished_total=7,
        num_preemptions_total=8,
        workers=(worker,),
        uptime_seconds=3723.9,
    )
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(render(state, tokens_per_second=1234.4))
    assert isinstance(console.file, io.StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines[:7] == [
        "up 1:02:03",
        "requests 2 running, 1 waiting, 3 preempted, 7 finished",
        "KV cache 92.5% of 1,000 blocks; 35 cached, 40 free",
        "prompt tokens 1,000, 60.0% from the prefix cache",
        "output tokens 2,000 (1,234/s)",
        "preemptions 8",
        "devices idle none serves",
    ]
    words = "│ h:1 │ down: [Errno 111] refused │ cpu │ torch │ 1,234 │ 2 │ 2 │ 4 │ 92% │ 6 │"
    assert words in lines[7:]


@pytest.mark.parametrize("command", ["serve", "generate", "chat", "state", "bench"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f" {command} [OPTIONS]" in result.stdout


def test_unknown_flags_are_refused_by_name() -> None:
    result = CliRunner().invoke(app, ["serve", "--model", "m", "--max-num-sequences", "3"])
    assert result.exit_code == 2
    assert "--max-num-sequences" in result.stderr


def test_a_host_that_is_not_ours_is_not_blamed_on_the_port() -> None:
    # An address of those kept for documentation: no machine has it.
    result = CliRunner().invoke(app, ["serve", "--model", "m", "--host", "192.0.2.1"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --host is '192.0.2.1', but must be an address that can be li")
