"""Limits on the size of files and functions and on the number of parameters.

Triton kernels and their launchers may take many parameters: that is how a kernel gets its strides.
"""

import ast

from tests.rules.source_tree import FOLDERS, FunctionNode, Module, expect_none, read_modules

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 6
MAX_POSITIONAL_PARAMETERS = 2
MAX_POSITIONAL_PARAMETERS_PRIVATE = 3
# InvalidRequestError.of("top_p", 2.0, "be in (0, 1]") reads as the sentence that it becomes.
READS_AS_A_SENTENCE = {"of"}


def test_files_are_short() -> None:
    too_long = [
        f"{module.path}: {num_lines} lines"
        for module in read_modules(*FOLDERS)
        if (num_lines := len(module.text.splitlines())) > MAX_FILE_LINES
    ]
    expect_none(too_long)


def test_functions_are_short() -> None:
    too_long = [
        f"{_place(module, function)}: {num_lines} lines"
        for module in read_modules(*FOLDERS)
        for function in module.functions()
        if not _declares_flags(function) and (num_lines := _num_lines(function)) > MAX_FUNCTION_LINES
    ]
    expect_none(too_long)


def test_functions_take_few_parameters() -> None:
    too_many = [
        f"{_place(module, function)}: {num_parameters} parameters"
        for module in read_modules(*FOLDERS)
        if not module.path.startswith("kernels/")
        for function in module.functions()
        if not _declares_flags(function)
        and (num_parameters := len(_positional(function)) + len(function.args.kwonlyargs)) > MAX_PARAMETERS
    ]
    expect_none(too_many)


def test_parameters_after_the_second_are_named_by_the_caller() -> None:
    too_many = [
        f"{_place(module, function)}: {len(_positional(function))} by position"
        for module in read_modules(*FOLDERS)
        if not module.path.startswith(("kernels/", "tests/"))
        for function in module.functions()
        if not _has_given_signature(function) and len(_positional(function)) > _max_positional(function)
    ]
    expect_none(too_many)


def _place(module: Module, function: FunctionNode) -> str:
    return f"{module.path}:{function.lineno} {function.name}"


def _num_lines(function: FunctionNode) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def _positional(function: FunctionNode) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _max_positional(function: FunctionNode) -> int:
    """Allow one more where definition and calls stand in the same file."""
    if function.name.startswith("_") or function.name in READS_AS_A_SENTENCE:
        return MAX_POSITIONAL_PARAMETERS_PRIVATE
    return MAX_POSITIONAL_PARAMETERS


def _declares_flags(function: FunctionNode) -> bool:
    """Tell whether this is a command of a command line: each parameter is a flag with its help."""
    return any(
        isinstance(name, ast.Attribute) and name.attr in ("command", "callback")
        for decorator in function.decorator_list
        for name in ast.walk(decorator)
    )


def _has_given_signature(function: FunctionNode) -> bool:
    """Tell whether somebody else calls it by position: Python, torch, gRPC or the command line."""
    is_magic = function.name.startswith("__") and function.name.endswith("__") and function.name != "__init__"
    is_called_back = function.name == "forward" or function.name.startswith("intercept")
    return is_magic or is_called_back or _declares_flags(function)
