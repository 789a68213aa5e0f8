"""What every module must say of itself, how things are named, and what tests must not do at import."""

import ast
import re

from tests.rules.source_tree import FOLDERS, PRODUCT, Module, expect_none, read_modules

MIN_DOCSTRING_CHARACTERS = 60
"""A line and a half: what it does, and what it knows nothing about."""
TELLS_ITS_LIMITS = re.compile(
    r"\b(knows?|no|not|nothing|nobody|none|never|neither|only|pure|without)\b", re.I
)
VAGUE_WORDS = {"util", "utils", "helper", "helpers", "manager", "common", "misc", "stuff"}
SHORT_COUNT = re.compile(r"^(n|cnt|nb)_|_(cnt|nb)$")

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A test file may build constants at import, but not with these: they act, or take long.
ACTING_ROOTS = {
    *("open", "os", "sys", "subprocess", "socket", "shutil", "tempfile", "time", "signal", "logging"),
    *("threading", "multiprocessing", "asyncio", "grpc", "torch", "triton", "transformers", "print"),
}


def test_every_module_says_what_it_does() -> None:
    silent = [module.path for module in read_modules(*FOLDERS) if not ast.get_docstring(module.tree)]
    expect_none(silent)


def test_product_modules_say_what_they_know_nothing_about() -> None:
    vague = [
        module.path
        for module in read_modules(*PRODUCT)
        if not module.path.endswith(("__init__.py", "__main__.py"))
        and not _is_telling(ast.get_docstring(module.tree) or "")
    ]
    expect_none(vague)


def test_names_say_something() -> None:
    vague = [
        f"{module.path}: {name}"
        for module in read_modules(*FOLDERS)
        for name in (module.path.rsplit("/", 1)[-1].removesuffix(".py"), *_defined_names(module))
        if VAGUE_WORDS & set(_words(name))
    ]
    expect_none(vague)


def test_counts_are_called_num() -> None:
    short = [
        f"{module.path}: {argument.arg}"
        for module in read_modules(*PRODUCT)
        for function in module.functions()
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if SHORT_COUNT.search(argument.arg)
    ]
    expect_none(short)


def test_public_functions_and_classes_have_docstrings_outside_tests() -> None:
    silent = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in read_modules(*PRODUCT, "tools", "deploy")
        for node in module.tree.body
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    expect_none(silent)


def test_test_files_do_nothing_at_import() -> None:
    busy = [
        f"{module.path}:{statement.lineno}"
        for module in read_modules("tests")
        for statement in module.tree.body
        if not _only_declares(statement)
    ]
    expect_none(busy)


def test_test_file_names_are_unique() -> None:
    names = [module.path.rsplit("/", 1)[-1] for module in read_modules("tests")]
    tests = [name for name in names if name.startswith("test_")]
    assert sorted(set(tests)) == sorted(tests)


def _is_telling(docstring: str) -> bool:
    return len(docstring) >= MIN_DOCSTRING_CHARACTERS and TELLS_ITS_LIMITS.search(docstring) is not None


def _defined_names(module: Module) -> list[str]:
    return [node.name for node in ast.walk(module.tree) if isinstance(node, DEFINITIONS)]


def _words(name: str) -> list[str]:
    """Split snake_case and CamelCase: "BlockManager" -> ["block", "manager"]."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def _only_declares(statement: ast.stmt) -> bool:
    """Tell whether a top-level statement of a test file declares something and runs nothing."""
    if isinstance(
        statement, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    ):
        return True
    if isinstance(statement, ast.If):  # if TYPE_CHECKING:
        is_main_guard = ast.unparse(statement.test) == "__name__ == '__main__'"  # false at import
        return is_main_guard or all(_only_declares(inner) for inner in (*statement.body, *statement.orelse))
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        sets_names_only = all(isinstance(target, (ast.Name, ast.Tuple)) for target in targets)
        return sets_names_only and not any(_acts(call) for call in calls)
    return False


def _acts(call: ast.Call) -> bool:
    return ast.unparse(call.func).split(".")[0] in ACTING_ROOTS
