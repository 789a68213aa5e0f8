"""Chat templates: read from every place transformers reads, rendered the same, refused clearly."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_svc.errors import InvalidRequestError, ModelFolderError
from scheduler_svc.frontend.chat_template import ChatTemplate
from scheduler_svc.frontend.tokenizer import ModelTokenizer
from scheduler_svc.frontend.values import ChatInput

HELLO = ChatInput(messages=(("user", "Hello"),))


def make(text: str, **named_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": text}, named_tokens, origin="test")


def write_settings(folder: Path, chat_template: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))


def render(folder: Path, chat: ChatInput = HELLO) -> str:
    template = ChatTemplate.load(folder, {})
    assert template is not None
    return template.render(chat)


# ---- where it is read from ----


def test_a_text_in_tokenizer_config(tmp_path: Path) -> None:
    write_settings(tmp_path, "{{ messages[0].content }}")
    assert render(tmp_path) == "Hello"


def test_a_list_of_named_templates(tmp_path: Path) -> None:
    write_settings(
        tmp_path, [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    )
    assert render(tmp_path) == "plain"
    tools = ChatInput(messages=HELLO.messages, template_arguments_json='{"tools": [{"name": "f"}]}')
    assert render(tmp_path, tools) == "with tools"


def test_a_jinja_file_comes_first(tmp_path: Path) -> None:
    write_settings(tmp_path, "from config")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert render(tmp_path) == "from json"
    (tmp_path / "chat_template.jinja").write_text("from jinja")
    assert render(tmp_path) == "from jinja"


def test_a_folder_without_template(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path, {}) is None


@pytest.mark.parametrize("value", [7, [{"name": "default"}], ["default"]])
def test_a_malformed_template_entry_names_the_file(tmp_path: Path, value: Any) -> None:
    write_settings(tmp_path, value)
    with pytest.raises(ModelFolderError, match=r"tokenizer_config\.json: chat_template must be a text or"):
        ChatTemplate.load(tmp_path, {})


def test_a_template_that_is_no_jinja_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelFolderError, match=r"chat_template\.jinja: the chat template is no valid Jinja"):
        ChatTemplate.load(tmp_path, {})


def test_only_named_templates_and_none_is_default() -> None:
    template = ChatTemplate({"rag": "x"}, {}, origin="test")
    with pytest.raises(InvalidRequestError, match="named 'default', but the model has only: rag"):
        template.render(HELLO)


# ---- what a template can use ----


def test_messages_tokens_arguments_and_generation_prompt() -> None:
    template = make(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] }};{% endfor %}"
        "{{ mood }}{% if add_generation_prompt %}>{% endif %}",
        bos_token="<s>",
    )
    chat = ChatInput(messages=(("system", "Be"), ("user", "Hi")), template_arguments_json='{"mood": "x"}')
    assert template.render(chat) == "<s>system:Be;user:Hi;x>"
    silent = ChatInput(messages=chat.messages, adds_generation_prompt=False)
    assert template.render(silent) == "<s>system:Be;user:Hi;"


def test_blocks_are_trimmed_as_transformers_does() -> None:
    assert make("  {% if true %}\nx\n  {% endif %}\n").render(HELLO) == "x\n"


def test_break_and_continue_work() -> None:
    template = make("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                    "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}")  # fmt: skip
    assert template.render(HELLO) == "02"


def test_json_is_written_unescaped() -> None:
    assert make("{{ {'é': '<b>'} | tojson }}").render(HELLO) == '{"é": "<b>"}'
    assert make("{{ [1] | tojson(indent=2) }}").render(HELLO) == "[\n  1\n]"


def test_the_date_can_be_asked() -> None:
    assert make("{{ strftime_now('%Y') }}").render(HELLO).isdecimal()


def test_generation_blocks_are_rendered() -> None:
    assert make("{% generation %}{{ messages[0].content }}{% endgeneration %}!").render(HELLO) == "Hello!"


# ---- what is refused ----


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ ().__class__.__bases__ }}",
        "{{ messages.append(1) }}",
        "{{ undefined.field }}",
    ],
)
def test_whatever_the_template_raises_names_the_chat(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^chat does not fit the model's chat template: "):
        make(text).render(HELLO)


def test_the_template_s_own_message_is_told() -> None:
    with pytest.raises(InvalidRequestError, match=r"chat template: roles must alternate$"):
        make("{{ raise_exception('roles must alternate') }}").render(HELLO)


def test_a_lone_surrogate_from_the_arguments_is_refused() -> None:
    chat = ChatInput(messages=HELLO.messages, template_arguments_json='{"x": "\\ud800"}')
    with pytest.raises(InvalidRequestError, match=r"^chat does not fit"):
        make("{{ x }}").render(chat)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{", r"^chat\.template_arguments_json is '{', but must be JSON \("),
        ("[]", r"^chat\.template_arguments_json is '\[\]', but must be a JSON object$"),
        ('{"messages": []}', r"must not name 'messages': it has a field"),
        (
            '{"add_generation_prompt": 1}',
            r"must not name 'add_generation_prompt': it has a field",
        ),
        ("[" * 100_000, r"^chat\.template_arguments_json is .* must be JSON"),
    ],
)
def test_arguments_that_are_no_object_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        make("x").render(ChatInput(messages=HELLO.messages, template_arguments_json=arguments))


# ---- the real Qwen3 template and tokenizer, against transformers ----

CONVERSATIONS = {
    "one turn": (("user", "What is the capital of France?"),),
    "system": (("system", "You are terse."), ("user", "Hi")),
    "several turns": (
        ("system", "You are terse."),
        ("user", "1 + 1?"),
        ("assistant", "<think>\neasy\n</think>\n\n2"),
        ("user", "und 2 + 2? 👩‍👩‍👧 <|im_end|>"),
    ),
}


@pytest.fixture(scope="module")
def qwen3_ours(qwen3_folder: Path) -> Iterator[tuple[ModelTokenizer, ChatTemplate]]:
    tokenizer = ModelTokenizer.load(qwen3_folder)
    template = ChatTemplate.load(qwen3_folder, tokenizer.named_tokens)
    assert template is not None
    yield tokenizer, template
    tokenizer.close()


@pytest.fixture(scope="module")
def qwen3_theirs(qwen3_folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415

    return AutoTokenizer.from_pretrained(qwen3_folder)


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("adds_prompt", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_qwen3_equals_transformers(
    qwen3_ours: tuple[ModelTokenizer, ChatTemplate],
    qwen3_theirs: Any,
    name: str,
    adds_prompt: bool,
    arguments: dict[str, Any],
) -> None:
    tokenizer, template = qwen3_ours
    messages = [{"role": role, "content": content} for role, content in CONVERSATIONS[name]]
    text = template.render(
        ChatInput(
            messages=CONVERSATIONS[name],
            adds_generation_prompt=adds_prompt,
            template_arguments_json=json.dumps(arguments),
        )
    )
    options = {"add_generation_prompt": adds_prompt, **arguments}
    assert text == qwen3_theirs.apply_chat_template(messages, tokenize=False, **options)
    their_ids = qwen3_theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    assert tokenizer.encode(text, adds_special_tokens=False) == their_ids


def test_qwen3_without_thinking_has_an_empty_thought(
    qwen3_ours: tuple[ModelTokenizer, ChatTemplate],
) -> None:
    chat = ChatInput(messages=(("user", "Hi"),), template_arguments_json='{"enable_thinking": false}')
    assert qwen3_ours[1].render(chat) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
