"""Reasoning and tool calls over smg, with Qwen3's own tokenizer and template and scripted Qwen3 tokens."""

import json
from typing import Any

import pytest

from tests.e2e.openai.conftest import OpenAiBench

pytestmark = pytest.mark.long

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": name, "description": "?", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("get_weather", "get_time")
]
WITHOUT_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def ask(bench: OpenAiBench, answer: str, **options: Any) -> Any:
    """Ask for one of the scripted answers."""
    return bench.client.chat.completions.create(
        model=bench.scripted_model, messages=MESSAGES, seed=bench.seed_of[answer], **options
    )


def stream(bench: OpenAiBench, answer: str, **options: Any) -> tuple[list[Any], Any, int]:
    """Stream one of the scripted answers; return all deltas, why it ended, and the tokens counted."""
    deltas, reasons, num_tokens = [], [], 0
    for chunk in ask(bench, answer, stream=True, stream_options={"include_usage": True}, **options):
        deltas += [choice.delta for choice in chunk.choices]
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        num_tokens = chunk.usage.completion_tokens if chunk.usage else num_tokens
    (reason,) = reasons
    return deltas, reason, num_tokens


def joined(deltas: list[Any], field: str) -> str:
    return "".join(getattr(delta, field, None) or "" for delta in deltas)


def calls_of(deltas: list[Any]) -> list[tuple[str, Any]]:
    """Join the pieces of each tool call."""
    pieces = [piece for delta in deltas for piece in delta.tool_calls or []]
    indices = dict.fromkeys(piece.index for piece in pieces)
    return [
        (
            "".join(piece.function.name or "" for piece in pieces if piece.index == index),
            json.loads("".join(piece.function.arguments or "" for piece in pieces if piece.index == index)),
        )
        for index in indices
    ]


def test_reasoning_is_told_apart(bench: OpenAiBench) -> None:
    answer = ask(bench, "thinking")
    message = answer.choices[0].message
    assert message.reasoning_content.strip() == "The capital is asked."
    assert message.content.strip() == "It is Paris."
    assert (answer.choices[0].finish_reason, message.tool_calls) == ("stop", None)
    assert answer.usage.completion_tokens == bench.num_tokens_of["thinking"]


def test_reasoning_is_streamed_apart(bench: OpenAiBench) -> None:
    deltas, reason, num_tokens = stream(bench, "thinking")
    # smg 1.13 leaves the opening tag in the stream, not in a whole answer.
    reasoning = joined(deltas, "reasoning_content").removeprefix("<think>")
    assert reasoning.strip() == "The capital is asked."
    assert joined(deltas, "content").strip() == "It is Paris."
    assert (reason, num_tokens) == ("stop", bench.num_tokens_of["thinking"])


def test_thinking_can_be_switched_off(bench: OpenAiBench) -> None:
    with_thinking = ask(bench, "plain")
    without = ask(bench, "plain", extra_body=WITHOUT_THINKING)
    assert without.choices[0].message.content == "It is Paris: é, 日本, 😀."
    assert without.choices[0].message.reasoning_content is None
    # The template then closes the thoughts itself: <think>, two line ends, </think>, two line ends.
    assert without.usage.prompt_tokens == with_thinking.usage.prompt_tokens + 4


def test_a_tool_call(bench: OpenAiBench) -> None:
    answer = ask(bench, "tool", tools=TOOLS)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris", "unit": "celsius"}
    assert answer.choices[0].message.reasoning_content.strip() == "I need the weather."
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_streamed_tool_call(bench: OpenAiBench) -> None:
    deltas, reason, num_tokens = stream(bench, "tool", tools=TOOLS)
    assert calls_of(deltas) == [("get_weather", {"city": "Paris", "unit": "celsius"})]
    assert (reason, num_tokens) == ("tool_calls", bench.num_tokens_of["tool"])


def test_two_tool_calls_without_thinking(bench: OpenAiBench) -> None:
    expected = [("get_weather", {"city": "Paris"}), ("get_time", {"zone": "CET"})]
    answer = ask(bench, "two tools", tools=TOOLS, extra_body=WITHOUT_THINKING)
    calls = answer.choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == expected
    deltas, reason, _ = stream(bench, "two tools", tools=TOOLS, extra_body=WITHOUT_THINKING)
    assert (calls_of(deltas), reason) == (expected, "tool_calls")
