"""``stepwire generate``: one answer, streamed to stdout.

Knows nothing about how a server works.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer
from stepwire_client import (
    ChatMessage,
    Completion,
    FinishReason,
    GenerationStream,
    InvalidRequest,
    Prompt,
    StepwireClient,
    StepwireClientError,
)

from stepwire_cli.exits import ShownText, fail, one_line_errors
from stepwire_cli.request_flags import RequestFlags
from stepwire_cli.server_flags import ServerFlags


@dataclass(frozen=True, kw_only=True)
class GenerateFlags(RequestFlags, ServerFlags):
    """Ask once and stream the answer to stdout."""

    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.", show_default=False)]
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt into the model's chat template, or send it as it is. "
            "Default: --chat where the model has a template.",
            show_default=False,
        ),
    ] = None
    system: Annotated[str, typer.Option(help="System message before the prompt (with --chat).")] = ""
    logprobs: Annotated[
        int | None, typer.Option(help="Likeliest tokens to tell for each position (with --json); up to 20.")
    ] = None
    request_id: Annotated[str, typer.Option(help="Names the request in logs. Default: drawn.")] = ""
    is_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON record at the end instead of the text.")
    ] = False

    def check(self) -> None:
        """Refuse flags that would go unused.

        Raises:
            InvalidRequest: naming the flag.
        """
        if self.logprobs is not None and not self.is_json:
            raise InvalidRequest(f"--logprobs is {self.logprobs}, but only --json shows them")


def run_generate(flags: GenerateFlags) -> None:
    """Run the command."""
    with (
        one_line_errors(flags.address, timeout_seconds=flags.timeout_seconds),
        flags.client() as client,
    ):
        flags.check()
        options = flags.request_options()
        options["logprobs"] = flags.logprobs
        options["request_id"] = flags.request_id
        prompt = _make_prompt(client, flags)
        with client.generate(prompt, timeout_seconds=flags.timeout_seconds, **options) as stream:
            if flags.is_json:
                typer.echo(_to_json(stream.completion()))
            else:
                _show(stream)
            reason = stream.final.finish_reason
    if reason in (FinishReason.ABORT, FinishReason.ERROR):
        fail(f"the generation ended early: {reason.value}")


def _show(stream: GenerationStream) -> None:
    shown = ShownText()
    try:
        for delta in stream:
            shown.show(delta.text)
    except StepwireClientError:
        shown.end_line()
        raise
    typer.echo()


def _make_prompt(client: StepwireClient, flags: GenerateFlags) -> Prompt:
    text = sys.stdin.read() if flags.prompt == "-" else flags.prompt
    is_chat = flags.chat
    if is_chat is None:
        is_chat = client.model_info(timeout_seconds=flags.timeout_seconds).has_chat_template
    system = [ChatMessage(role="system", content=flags.system)] if flags.system else []
    if is_chat:
        return [*system, ChatMessage(role="user", content=text)]
    if system:
        raise InvalidRequest(f"--system is {flags.system!r}, but needs the chat template: --chat")
    return text


def _to_json(completion: Completion) -> str:
    return json.dumps(dataclasses.asdict(completion), ensure_ascii=False, default=_value_of)


def _value_of(item: object) -> object:
    assert isinstance(item, Enum), f"a completion holds {item!r}"
    return item.value
