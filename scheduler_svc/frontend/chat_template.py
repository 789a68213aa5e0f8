"""The model folder's chat template: a conversation in, the prompt's text out.

Jinja2 in the same sandbox and with the same extras as transformers' apply_chat_template, so that
the same template gives the same prompt. Knows nothing about tokens or protobuf.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scheduler_svc.errors import InvalidRequestError, ModelFolderError
from scheduler_svc.frontend.tokenizer import read_json_object
from scheduler_svc.frontend.values import ChatInput

_RESERVED_ARGUMENTS = ("messages", "add_generation_prompt")
"""Template variables that have a field of their own."""


class ChatTemplate:
    """The compiled templates of one model folder."""

    def __init__(self, sources: Mapping[str, str], named_tokens: Mapping[str, str], *, origin: str) -> None:
        """Compile templates by name; "default" is the one used, "tool_use" where tools are given.

        Args:
            sources: Template texts by name.
            named_tokens: "bos_token", "eos_token", ...: variables of every template.
            origin: The file they came from, for messages.

        Raises:
            ModelFolderError: if a template is no valid Jinja.
        """
        environment = _make_environment()
        try:
            self._templates = {name: environment.from_string(text) for name, text in sources.items()}
        except jinja2.TemplateSyntaxError as error:
            raise ModelFolderError(f"{origin}: the chat template is no valid Jinja: {error}") from error
        self._named_tokens = dict(named_tokens)

    @classmethod
    def load(cls, folder: Path, named_tokens: Mapping[str, str]) -> "ChatTemplate | None":
        """Read the chat template of a model folder; None where it has none.

        Raises:
            ModelFolderError: naming the file that is broken.
        """
        path, sources = _find_sources(folder)
        return cls(sources, named_tokens, origin=str(path)) if sources else None

    def render(self, chat: ChatInput) -> str:
        """Return the prompt of a conversation.

        Raises:
            InvalidRequestError: naming the field, if the conversation does not fit the template.
        """
        arguments = _read_arguments(chat.template_arguments_json)
        variables = {
            "tools": None,
            "documents": None,
            **self._named_tokens,
            **arguments,
            "messages": [{"role": role, "content": content} for role, content in chat.messages],
            "add_generation_prompt": chat.adds_generation_prompt,
        }
        template = self._choose(has_tools=variables["tools"] is not None)
        try:
            text = template.render(variables)
            text.encode()
        except Exception as error:  # whatever the model's template raises, the chat did not fit it
            raise InvalidRequestError(f"chat does not fit the model's chat template: {error}") from error
        return text

    def _choose(self, *, has_tools: bool) -> jinja2.Template:
        if has_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            names = ", ".join(sorted(self._templates))
            raise InvalidRequestError(
                f"chat needs a template named 'default', but the model has only: {names}"
            )
        return self._templates["default"]


def _find_sources(folder: Path) -> tuple[Path, dict[str, str]]:
    """Look where transformers looks: chat_template.jinja, chat_template.json, tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        extras = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        sources = {extra.stem: extra.read_text(encoding="utf-8") for extra in extras}
        return path, {**sources, "default": path.read_text(encoding="utf-8")}
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        value = read_json_object(path).get("chat_template")
        if value is not None:
            return path, _named_sources(value, path)
    return path, {}


def _named_sources(value: object, path: Path) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    sources: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [None]:
        if not (isinstance(entry, dict) and {"name", "template"} <= entry.keys()):
            raise ModelFolderError(f"{path}: chat_template must be a text or a list of named templates")
        sources[str(entry["name"])] = str(entry["template"])
    return sources


def _read_arguments(arguments_json: str) -> dict[str, Any]:
    field = "chat.template_arguments_json"
    if not arguments_json:
        return {}
    try:
        arguments = json.loads(arguments_json)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.of(field, arguments_json, f"be JSON ({error})") from error
    if not isinstance(arguments, dict):
        raise InvalidRequestError.of(field, arguments_json, "be a JSON object")
    for name in _RESERVED_ARGUMENTS:
        if name in arguments:
            raise InvalidRequestError.of(
                field, arguments_json, f"not name {name!r}: it has a field of its own"
            )
    return arguments


class _GenerationBlocks(Extension):
    """Accepts {% generation %} blocks, which mark assistant text for training, and renders what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does; Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
