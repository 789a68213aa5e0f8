"""Reads docs/grpcurl.md: each command with the answer that the page shows below it.

Runs a command against any server and compares answers. Knows nothing about what the recipes ask for.
In an answer of the page, … stands for anything; numbers with a fraction are rounded.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rules.source_tree import REPOSITORY, read_file

PAGE = "docs/grpcurl.md"
ADDRESS_ON_PAGE = "127.0.0.1:50051"
ANYTHING = "…"
ROUNDING = 0.006
RECIPE = re.compile(r"^```sh\n(.*?)^```\n\n```(json|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODES = {"InvalidArgument": 3, "DeadlineExceeded": 4, "invalid_argument": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One command and what the page shows as its answer."""

    command: str
    answer: str
    is_json: bool

    @property
    def words(self) -> list[str]:
        """The command as the shell splits it."""
        return shlex.split(self.command.replace("\\\n", ""))

    @property
    def method(self) -> str | None:
        """The full method, package.Service/Method, where it calls one."""
        found = re.search(r"([\w.]+/[A-Z]\w+)$", self.words[-1])
        return found[1] if found else None

    @property
    def requests(self) -> list[Any]:
        """The JSON values that it sends."""
        return json_values(self.words[self.words.index("-d") + 1]) if "-d" in self.words else []

    @property
    def code(self) -> int:
        """The status code that it ends with."""
        found = re.search(r'Code: (\w+)|"code": "(\w+)"', self.answer)
        return CODES[found[1] or found[2]] if found else 0

    @property
    def exit_status(self) -> int:
        """The exit status of the command that tells the code."""
        if not self.code:
            return 0
        return 64 + self.code if self.words[0] == "grpcurl" else 8 * self.code

    def run(self, address: str) -> "subprocess.CompletedProcess[str]":
        """Run it as it stands there, against the server at ``address``."""
        tools = str(Path(sys.executable).parent)
        return subprocess.run(
            self.command.replace(ADDRESS_ON_PAGE, address),
            shell=True,
            cwd=REPOSITORY,
            env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def read_recipes() -> tuple[Recipe, ...]:
    """Return all recipes of the page, in its order."""
    return tuple(
        Recipe(command=command, answer=answer, is_json=kind == "json")
        for command, kind, answer in RECIPE.findall(read_file(PAGE))
    )


def json_values(text: str) -> list[Any]:
    """Return the JSON values that stand one after another in ``text``."""
    decoder, values, position = json.JSONDecoder(), [], 0
    while rest := text[position:].lstrip():
        value, length = decoder.raw_decode(rest)
        values.append(value)
        position = len(text) - len(rest) + length
    return values


def merged(values: list[Any]) -> list[Any]:
    """Join the messages of each request: how many deltas its output comes in, is left to the server."""
    others, requests = [], dict[str, Any]()
    for value in values:
        request_id = value.get("request_id", value.get("requestId"))
        if request_id is None:
            others.append(value)
        else:
            _add(requests.setdefault(request_id, {}), value)
    return [*others, *(requests[request_id] for request_id in sorted(requests))]


def _add(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            _add(whole.setdefault(key, {}), value)
        elif isinstance(value, list) or key == "text":
            whole[key] = whole.get(key, type(value)()) + value
        else:
            whole[key] = value


def masked(actual: Any, shown: Any) -> Any:
    """Return ``actual`` with what is right in another way than to the letter put as it is ``shown``."""
    if isinstance(shown, str) and shown.endswith(ANYTHING):
        return shown if str(actual).startswith(shown.removesuffix(ANYTHING)) else actual
    if isinstance(shown, float) and isinstance(actual, float):
        return shown if abs(actual - shown) < ROUNDING else actual
    if isinstance(shown, list) and isinstance(actual, list) and len(shown) == len(actual):
        return [masked(*pair) for pair in zip(actual, shown, strict=True)]
    if isinstance(shown, dict) and isinstance(actual, dict):
        return _masked_object(actual, shown)
    return actual


def _masked_object(actual: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    """Mask each member; a member named … stands for any others."""
    known = {key: masked(value, shown[key]) for key, value in actual.items() if key in shown}
    if ANYTHING in shown:
        return {**known, ANYTHING: shown[ANYTHING]}
    return {**actual, **known}


def text_pattern(shown: str) -> str:
    """Return the regular expression of a text answer."""
    return re.escape(shown.strip()).replace(ANYTHING, "(?s:.*)")
