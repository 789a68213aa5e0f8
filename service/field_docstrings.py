"""Reads the docstrings of a configuration's fields, which are the help of its flags.

Knows nothing about what the options mean, nor how flags are made of them.
"""

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any


def field_docstrings(config_class: type[Any]) -> dict[str, str]:
    """Read the string under each field of a class, its white space joined."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(config_class))).body[0]
    assert isinstance(definition, ast.ClassDef), "a configuration is a class"
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
