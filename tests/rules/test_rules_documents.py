"""Rules on README and docs: short, links that lead somewhere, and commands that something runs.

A command that nobody runs is a promise that nobody keeps: each is listed here with what runs it.
"""

import ast
import re
from pathlib import Path

from tests.rules.source_tree import REPOSITORY, expect_none, read_file

MAX_README_LINES = 150
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md", "clients/*/README.md")
FOLDERS = (
    "protos|scheduler_svc|worker_svc|service|telemetry|model|kernels|clients|tests|"
    "benchmarks|tools|deploy|docs"
)
SHELL_BLOCK = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECK_PREREQUISITES = re.compile(r"^check:([^#\n]*)", re.MULTILINE)

_METRICS_TEST = "tests/e2e/test_e2e_metrics.py::test_a_request_is_told_by_all_that_had_a_part_in_it"
# It takes them out of docs/backend.md.
_OPENAI_TEST = "tests/e2e/openai/test_openai_commands.py::test_the_document_s_commands_answer"
_BENCH_TEST = "tests/rpc/test_cli_bench.py::test_loads_rounds_json_and_chart"
# `make test-compose`: with podman-compose where there is no Docker.
_COMPOSE_RUN = "tools/compose_run/__main__.py::check_stack"
# These two take the commands out of the documents themselves, the second all of its page.
_GRPCURL_TEST = "tests/e2e/test_e2e_grpcurl.py::test_the_readmes_commands_answer"
_RECIPES_TEST = "tests/e2e/recipes/test_e2e_recipes.py::test_every_recipe_is_answered"
PAGE_OF_RECIPES = "docs/grpcurl.md"
_RANKS_TESTS = "tests/e2e/test_e2e_torchrun.py"
_CLIENTS_TEST = "tests/e2e/clients/test_e2e_clients.py::test_it_collects_streams_cancels_and_keeps_a_deadline"
_CERTIFICATE_TEST = (
    "tests/e2e/test_e2e_security.py::test_the_document_s_own_certificate_and_token_let_a_client_in"
)

# Every command of a document -> what runs it: "file::function" of a test, or a file that holds the command.
# Targets that `make check` runs need no entry.
TESTED_COMMANDS = {
    "make setup": ".ci/run",
    "make check": ".ci/run",
    "make demo": "tests/e2e/test_e2e_demo.py::test_the_demo_asks_and_stops",
    "stepwire serve --model .cache/models/SmolLM2-135M-Instruct": (
        "tests/rpc/test_cli_serve.py::test_start_up_lines_and_an_ordered_stop"
    ),
    (
        "stepwire serve --model .cache/models/SmolLM2-135M-Instruct --metrics-port 9464 "
        "--worker-metrics-port 9465"
    ): "tests/unit/test_cli_flags.py::test_every_serve_flag_reaches_a_service",
    "curl --silent http://127.0.0.1:9464/metrics": _METRICS_TEST,
    "curl --silent http://127.0.0.1:9465/metrics": _METRICS_TEST,
    'stepwire generate --temperature 0 "What is the capital of France?"': (
        "tests/rpc/test_cli_generate.py::test_the_text_goes_to_stdout"
    ),
    "python -m worker_svc --model .cache/models/SmolLM2-135M-Instruct --port 50061": (
        "tests/e2e/test_e2e_generation.py::test_text_in_text_out"
    ),
    "python -m scheduler_svc --model .cache/models/SmolLM2-135M-Instruct --worker 127.0.0.1:50061": (
        "tests/e2e/test_e2e_generation.py::test_text_in_text_out"
    ),
    "grpcurl -plaintext 127.0.0.1:50051 list": _GRPCURL_TEST,
    (
        """grpcurl -plaintext -d '{"service": "ready"}' 127.0.0.1:50051 grpc.health.v1.Health/Check"""
    ): _GRPCURL_TEST,
    (
        """grpcurl -plaintext -d '{"text": "The capital of France is", "sampling": {"temperature": 0}, """
        """"stop": {"max_tokens": 1}}' 127.0.0.1:50051 stepwire.v1.GenerationService/Generate"""
    ): _GRPCURL_TEST,
    "make demo-openai": "tests/e2e/openai/test_openai_commands.py::test_the_demo_asks_and_stops",
    "make test-openai": "tests/e2e/openai/test_openai_api.py::test_a_completion",
    "smg launch --worker-urls grpc://127.0.0.1:50051 --host 127.0.0.1 --port 30000": _OPENAI_TEST,
    (
        """curl -N http://127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json' """
        """-d '{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hi"}], """
        """"max_tokens": 8, "stream": true}'"""
    ): _OPENAI_TEST,
    "stepwire chat": "tests/rpc/test_cli_chat.py::test_each_turn_carries_the_conversation_so_far",
    "stepwire state": "tests/rpc/test_cli_generate.py::test_state_once",
    "stepwire bench --case nano256 --rounds 3 --json nano256.json": _BENCH_TEST,
    (
        "stepwire bench --num-requests 100 --input-tokens 128:512 --output-tokens 64 --rate 2 --rate 4 "
        "--png latency.png"
    ): _BENCH_TEST,
    "npm ci && node example.mjs 127.0.0.1:50051": _CLIENTS_TEST,
    "cmake -B build && cmake --build build --parallel && build/example 127.0.0.1:50051": _CLIENTS_TEST,
    # Without Go's modules: they are on no registry that CI reaches.
    "go generate && go mod tidy && go run . 127.0.0.1:50051": _CLIENTS_TEST,
    (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=stepwire "
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout server.key -out server.pem"
    ): _CERTIFICATE_TEST,
    (
        "python -m scheduler_svc --model .cache/models/SmolLM2-135M-Instruct --tls-cert server.pem "
        "--tls-key server.key"
    ): _CERTIFICATE_TEST,
    "stepwire token alice >> tenants.toml": _CERTIFICATE_TEST,
    (
        """grpcurl -cacert server.pem -H "authorization: Bearer $STEPWIRE_TOKEN" 127.0.0.1:50051 list"""
    ): _CERTIFICATE_TEST,
    "stepwire state --tls-ca server.pem": (
        "tests/e2e/test_e2e_security.py::test_all_links_are_closed_to_strangers"
    ),
    "make up": _COMPOSE_RUN,
    "make down": _COMPOSE_RUN,
    "make test-compose": "tools/compose_run/__main__.py::main",
    "docker compose up --build --detach": _COMPOSE_RUN,
    "docker compose --profile gateway up --build --detach": _COMPOSE_RUN,
    # On CPUs, with a tiny model; two torchruns on one host.
    "stepwire serve --model .cache/models/SmolLM2-135M-Instruct --device cpu --tensor-parallel-size 3": (
        f"{_RANKS_TESTS}::test_stepwire_serve_starts_a_group_again_that_lost_a_rank"
    ),
    "stepwire serve --model models/Qwen3-8B --device cuda --tensor-parallel-size 2": (
        f"{_RANKS_TESTS}::test_stepwire_serve_starts_a_group_again_that_lost_a_rank"
    ),
    (
        "torchrun --nproc-per-node 2 --max-restarts 100 -m worker_svc --model models/Qwen3-8B --device cuda "
        "--port 50061"
    ): f"{_RANKS_TESTS}::test_four_ranks_through_deaths",
    (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d "
        "--rdzv-endpoint node-a:29400 --max-restarts 100 -m worker_svc --model models/Qwen3-32B --device "
        "cuda --host 0.0.0.0 --port 50061"
    ): f"{_RANKS_TESTS}::test_two_hosts",
    "python -m worker_svc --help": "tests/rules/test_rules_operations.py::test_help_explains_every_flag",
    "python -m scheduler_svc --help": "tests/rules/test_rules_operations.py::test_help_explains_every_flag",
}


def test_every_command_in_the_documents_is_run_by_something() -> None:
    checked = _targets_of_check()
    untested = [
        f"{document.name}: {command}"
        for document in _documents()
        if document != REPOSITORY / PAGE_OF_RECIPES
        for command in _commands(document)
        if command not in TESTED_COMMANDS and command.removeprefix("make ") not in checked
    ]
    expect_none(untested)


def test_every_listed_command_is_in_a_document() -> None:
    in_documents = {command for document in _documents() for command in _commands(document)}
    expect_none([command for command in TESTED_COMMANDS if command not in in_documents])


def test_what_runs_a_command_exists() -> None:
    gone = [
        f"{command}: {runner}"
        for command, runner in (*TESTED_COMMANDS.items(), (PAGE_OF_RECIPES, _RECIPES_TEST))
        if not _runs(runner, command)
    ]
    expect_none(gone)


def test_the_readme_is_short() -> None:
    assert len(read_file("README.md").splitlines()) <= MAX_README_LINES


def test_links_between_documents_lead_somewhere() -> None:
    dead = [
        f"{document.name}: {link}"
        for document in _documents()
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        if not (document.parent / link).exists()
    ]
    expect_none(dead)


def test_files_that_the_map_of_kernels_names_exist() -> None:
    docstring = ast.get_docstring(ast.parse(read_file("kernels/__init__.py"))) or ""
    names = re.findall(r"\w+\.py\b", docstring)
    assert names
    expect_none([name for name in names if not (REPOSITORY / "kernels" / name).is_file()])


def test_files_that_the_documents_name_exist() -> None:
    missing = [
        f"{document.name}: {path}"
        for document in _documents()
        for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", document.read_text(encoding="utf-8"))
        if not (REPOSITORY / path).exists()
    ]
    expect_none(missing)


def _documents() -> list[Path]:
    return [path for pattern in DOCUMENTS for path in sorted(REPOSITORY.glob(pattern))]


def _commands(document: Path) -> list[str]:
    """Return the commands of all shell blocks: continued lines joined, comments and prompts cut off."""
    blocks = SHELL_BLOCK.findall(document.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    cut = [re.sub(r"\s+#.*$", "", line.strip().removeprefix("$ ")) for line in lines]
    return [" ".join(line.split()) for line in cut if line and not line.startswith("#")]


def _targets_of_check() -> set[str]:
    match = CHECK_PREREQUISITES.search(read_file("Makefile"))
    assert match is not None
    return set(match[1].split())


def _runs(runner: str, command: str) -> bool:
    file_name, _, function = runner.partition("::")
    if not (REPOSITORY / file_name).is_file():
        return False
    return f"def {function}(" in read_file(file_name) if function else command in read_file(file_name)
