"""Import rules that import-linter cannot say: by file name, by package prefix and at run time.

The contracts between packages stand in pyproject.toml and run in `make imports`.
"""

import ast
import subprocess
import sys

import pytest

from tests.rules.source_tree import PRODUCT, REPOSITORY, SERVICES, Module, expect_none, read_modules

# The only files of the services that may see generated code: by folder, by a word of their names, by path.
EDGE_FOLDERS = ("worker_svc/rpc/",)
EDGE_WORDS = {"servicer", "link", "convert", "server"}
EDGE_FILES = {
    "scheduler_svc/frontend/generate_many.py",  # part of the servicer: one bidi stream
    "scheduler_svc/frontend/outbox.py",  # part of the engine link: what waits to be sent
}
PURE_FOLDERS = ("scheduler_svc/core", "worker_svc/batch")
PURE_BUILTINS = {"open", "print", "input", "exec", "eval"}


def test_generated_code_is_seen_at_the_edge_only() -> None:
    inside = [
        module.path
        for module in read_modules(*SERVICES)
        if any(_is_generated(name) for name in module.imported_names()) and not _is_edge(module)
    ]
    expect_none(inside)


def test_pure_folders_import_nothing_but_values() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "scheduler_svc", "worker_svc"}
    strange = [
        f"{module.path}: {name}"
        for module in read_modules(*PURE_FOLDERS)
        for name in module.imported_names()
        if name.split(".")[0] not in allowed or name.startswith("numpy.random")
    ]
    expect_none(strange)


def test_pure_folders_do_no_input_or_output() -> None:
    impure = [
        f"{module.path}:{node.lineno} {ast.unparse(node.func)}"
        for module in read_modules(*PURE_FOLDERS)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func) in PURE_BUILTINS or ast.unparse(node.func).startswith("np.random"))
    ]
    expect_none(impure)


def test_one_module_asks_what_a_gpu_is() -> None:
    asked = {
        module.path
        for module in read_modules(*PRODUCT)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("get_device_capability", "get_device_properties")
    }
    assert asked == {"kernels/gpu.py"}


def test_environment_and_flags_are_read_in_main_only() -> None:
    readers = [
        f"{module.path}:{node.lineno}"
        for module in read_modules(*PRODUCT)
        if not module.path.endswith("__main__.py")
        and not module.path.startswith("clients/python/stepwire_cli/")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv", "sys.argv")
    ]
    expect_none(readers)


def test_nothing_is_swallowed() -> None:
    swallowing = [
        f"{module.path}:{node.lineno}"
        for module in read_modules(*PRODUCT, "tools", "deploy")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and (node.type is None or _does_nothing(node.body))
    ]
    expect_none(swallowing)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "scheduler_svc.command_line",
            [
                "torch",
                "transformers",
                "triton",
                "kernels",
                "worker_svc",
                "stepwire_client",
                "prometheus_client",
            ],
        ),
        ("scheduler_svc.core.scheduler", ["grpc", "asyncio", "torch", "logging", "stepwire"]),
        ("worker_svc.batch.input_batch", ["grpc", "asyncio", "torch", "logging", "stepwire"]),
        ("worker_svc.__main__", ["transformers", "scheduler_svc", "stepwire_client", "jinja2"]),
        ("worker_svc.scraped", ["prometheus_client", "grpc", "torch"]),
        ("stepwire_client", ["numpy", "torch", "scheduler_svc", "worker_svc", "model", "kernels"]),
        ("stepwire_cli.main", ["numpy", "torch", "scheduler_svc", "worker_svc", "model", "kernels"]),
    ],
)
def test_importing_a_module_loads_no_foreign_package(module: str, absent: list[str]) -> None:
    program = f"import sys, {module}\nprint(','.join(name for name in {absent!r} if name in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""


def _is_generated(name: str) -> bool:
    return name.partition(".")[0] in ("stepwire", "smg_grpc_proto")


def _is_edge(module: Module) -> bool:
    words = set(module.path.rsplit("/", 1)[-1].removesuffix(".py").split("_"))
    return module.path.startswith(EDGE_FOLDERS) or bool(words & EDGE_WORDS) or module.path in EDGE_FILES


def _does_nothing(body: list[ast.stmt]) -> bool:
    """Tell whether a handler has no statement but `pass` or an ellipsis."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )
