"""``stepwire chat``: a conversation in the terminal.

Knows nothing about how a server works. What is said so far lives here only: each turn sends it whole.
"""

import importlib.util
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from stepwire_client import ChatMessage, ConnectionFailed, RequestOptions, StepwireClient, StepwireClientError

from stepwire_cli.exits import ShownText, describe, fail, one_line_errors
from stepwire_cli.request_flags import RequestFlags
from stepwire_cli.server_flags import ServerFlags

HELP_LINE = "/reset forgets the conversation, /quit leaves, Ctrl-C stops an answer."


@dataclass(frozen=True, kw_only=True)
class ChatFlags(RequestFlags, ServerFlags):
    """Talk with the model: /reset forgets the conversation, /quit leaves, Ctrl-C stops an answer."""

    system: Annotated[str, typer.Option(help="System message that starts the conversation.")] = ""


def run_chat(flags: ChatFlags) -> None:
    """Run the command."""
    with (
        one_line_errors(flags.address, timeout_seconds=flags.timeout_seconds),
        flags.client() as client,
    ):
        options = flags.request_options()
        info = client.model_info(timeout_seconds=flags.timeout_seconds)
        if not info.has_chat_template:
            fail(f"{info.model_name} has no chat template; try: stepwire generate --raw")
        if importlib.util.find_spec("readline"):  # an option of CPython's build
            importlib.import_module("readline")  # gives input() line editing and a history
        typer.echo(f"{info.model_name} at {flags.address}. {HELP_LINE}", err=True)
        Chat(client, flags, options).run()


class Chat:
    """A conversation, and the loop that reads and answers."""

    def __init__(self, client: StepwireClient, flags: ChatFlags, options: RequestOptions) -> None:
        self._client = client
        self._flags = flags
        self._options = options
        self._messages = self._first_messages()

    def _first_messages(self) -> list[ChatMessage]:
        system = self._flags.system
        return [ChatMessage(role="system", content=system)] if system else []

    def run(self) -> None:
        """Read lines and answer them until /quit or the end of the input."""
        while (line := _read_line()) is not None and line != "/quit":
            if line == "/reset":
                self._messages = self._first_messages()
                typer.echo("The conversation starts anew.", err=True)
            elif line.startswith("/"):
                typer.echo(f"unknown command {line}. {HELP_LINE}", err=True)
            elif line:
                self._take_turn(line)

    def _take_turn(self, line: str) -> None:
        """Answer ``line``; after an error the conversation is as before it."""
        question = ChatMessage(role="user", content=line)
        try:
            text = self._stream_answer([*self._messages, question])
        except ConnectionFailed:
            raise
        except StepwireClientError as error:
            line = describe(error, self._flags.address, timeout_seconds=self._flags.timeout_seconds)
            typer.echo(f"error: {line}", err=True)
            return
        self._messages += [question, ChatMessage(role="assistant", content=text)]

    def _stream_answer(self, messages: list[ChatMessage]) -> str:
        """Show the answer as it comes and return it; Ctrl-C ends it, and what was shown counts."""
        parts: list[str] = []
        shown = ShownText()
        stream = self._client.generate(messages, timeout_seconds=self._flags.timeout_seconds, **self._options)
        with stream:
            try:
                for delta in stream:
                    parts.append(delta.text)
                    shown.show(delta.text)
            except StepwireClientError:
                shown.end_line()
                raise
            except KeyboardInterrupt:
                typer.echo(" [stopped]", nl=False)
        typer.echo()
        return "".join(parts)


def _read_line() -> str | None:
    """Return the next line without white space around it; None at the end of the input."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            typer.echo(err=True)  # Ctrl-D leaves the cursor in the line of the prompt
            return None
        except KeyboardInterrupt:
            typer.echo("\n/quit leaves.", err=True)
