"""The flags of a request that generate and chat share, and what they ask the client for.

Knows nothing about prompts and answers.
"""

import json
from dataclasses import dataclass, field
from typing import Annotated

import typer
from stepwire_client import InvalidRequest, RequestOptions

_SAMPLING = "Sampling"
_STOPPING = "Stopping"
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class RequestFlags:
    """Flags of one request; those that are not given keep the server's default."""

    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; up to 100. Default: 1.", rich_help_panel=_SAMPLING)
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Keep the K likeliest tokens; 0 keeps all.", rich_help_panel=_SAMPLING)
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(help="Keep the likeliest tokens of this probability.", rich_help_panel=_SAMPLING),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(help="Drop tokens below this share of the likeliest one's.", rich_help_panel=_SAMPLING),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Makes sampling repeatable.", rich_help_panel=_SAMPLING)
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="Range: [-2, 2].", rich_help_panel=_SAMPLING)
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Range: [-2, 2].", rich_help_panel=_SAMPLING)
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 0; 1 changes nothing.", rich_help_panel=_SAMPLING)
    ] = None
    logit_bias: Annotated[
        list[str],
        typer.Option(metavar="ID=BIAS", help="Bias of a token; may be repeated.", rich_help_panel=_SAMPLING),
    ] = field(default_factory=list)
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of the answer. Default: no limit but the model's own end and the context's.",
            rich_help_panel=_STOPPING,
        ),
    ] = None
    min_tokens: Annotated[
        int, typer.Option(help="Nothing stops the output before this many.", rich_help_panel=_STOPPING)
    ] = 0
    stop: Annotated[
        list[str], typer.Option(help="Stop at this text; may be repeated.", rich_help_panel=_STOPPING)
    ] = field(default_factory=list)
    stop_token_id: Annotated[
        list[int], typer.Option(help="Stop at this token; may be repeated.", rich_help_panel=_STOPPING)
    ] = field(default_factory=list)
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's own end.", rich_help_panel=_STOPPING)
    ] = False
    include_stop_str_in_output: Annotated[
        bool,
        typer.Option(
            "--include-stop-str-in-output", help="Show the text that stopped it.", rich_help_panel=_STOPPING
        ),
    ] = False
    keep_special_tokens: Annotated[
        bool, typer.Option("--keep-special-tokens", help="Show special tokens in the text.")
    ] = False
    cache_salt: Annotated[str, typer.Option(help="Share cached prefixes with this salt only.")] = ""
    priority: Annotated[int | None, typer.Option(help="Refused until priority scheduling works.")] = None
    template_arguments: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='For the chat template, for example {"enable_thinking": false}.'),
    ] = None
    timeout_seconds: Annotated[float | None, typer.Option(help="Deadline of an answer.")] = None

    def request_options(self) -> RequestOptions:
        """Return what the client takes as keyword arguments.

        Raises:
            InvalidRequest: if a flag cannot be read.
        """
        if self.seed is not None and not 0 <= self.seed <= _MAX_SEED:
            raise InvalidRequest(f"--seed is {self.seed}, but must be 0 to {_MAX_SEED}")
        return RequestOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(_parse_bias(text) for text in self.logit_bias),
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_id,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=False if self.keep_special_tokens else None,
            cache_salt=self.cache_salt,
            priority=self.priority,
            template_arguments=_parse_template_arguments(self.template_arguments),
        )


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise InvalidRequest(f"--logit-bias is {text!r}, but must be ID=BIAS, for example 42=-1.5") from None


def _parse_template_arguments(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"--template-arguments is {text!r}, but must be JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"--template-arguments is {text!r}, but must be a JSON object")
    return arguments
