"""The project's own files, Python parsed, for the rules that read them.

Knows nothing about any rule. Generated code is not ours to judge and is left out.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SERVICES = ("scheduler_svc", "worker_svc")
CLIENTS = ("clients/python/stepwire_client", "clients/python/stepwire_cli")
PRODUCT = (*SERVICES, "service", "telemetry", "model", "kernels", *CLIENTS)
FOLDERS = (*PRODUCT, "tools", "deploy", "benchmarks", "tests")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file."""

    path: str
    """From the top of the repository, with forward slashes."""
    text: str
    tree: ast.Module

    @property
    def is_test(self) -> bool:
        """Whether it lies under tests/."""
        return self.path.startswith("tests/")

    def functions(self) -> list[FunctionNode]:
        """All functions and methods, nested ones too."""
        return [node for node in ast.walk(self.tree) if isinstance(node, FunctionNode)]

    def imported_names(self) -> set[str]:
        """Dotted names of all modules imported anywhere in the file."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: imports are absolute"
                names.add(node.module or "")
        return names


def read_modules(*folders: str) -> tuple[Module, ...]:
    """Parse every Python file under ``folders`` of the repository, in the order of their paths."""
    return tuple(module for folder in folders for module in _read_folder(folder))


@cache
def _read_folder(folder: str) -> tuple[Module, ...]:
    return tuple(
        Module(
            path=path.relative_to(REPOSITORY).as_posix(),
            text=path.read_text(encoding="utf-8"),
            tree=ast.parse(path.read_bytes()),
        )
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    )


@cache
def read_file(name: str) -> str:
    """Read a text file by its path from the top of the repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")


def expect_none(offenders: list[str]) -> None:
    """Fail with all of ``offenders``, a line each."""
    assert not offenders, "\n".join(["", *offenders])
