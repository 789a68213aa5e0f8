"""Rules on docs/grpcurl.md: each command has its answer below it, and both fit the protos.

Knows nothing about running them: tests/e2e/recipes does that.
"""

from typing import Any

from google.protobuf import json_format

from tests.e2e.recipes.recipe_page import ANYTHING, PAGE, json_values, masked, merged, read_recipes
from tests.rules.recipe_messages import request_type, response_type
from tests.rules.source_tree import read_file


def test_each_command_is_followed_by_its_answer() -> None:
    assert len(read_recipes()) == read_file(PAGE).count("```sh\n") > 20


def test_requests_fit_the_protos() -> None:
    for recipe in read_recipes():
        message = request_type(recipe.method)
        for request in recipe.requests:
            assert message is not None, recipe.command
            json_format.ParseDict(request, message())


def test_answers_fit_the_protos() -> None:
    for recipe in read_recipes():
        message = response_type(recipe.method)
        if recipe.is_json and not recipe.code:
            assert message is not None, recipe.command
            for value in json_values(recipe.answer):
                json_format.ParseDict(_without_masks(value), message())


def test_every_method_has_a_recipe() -> None:
    methods = {str(recipe.method).rpartition("/")[2] for recipe in read_recipes()}
    service = {
        "Generate",
        "GenerateMany",
        "Abort",
        "GetModelInfo",
        "GetServerState",
        "Tokenize",
        "Detokenize",
    }
    assert service <= methods


def test_deltas_are_compared_joined() -> None:
    values = [
        {"request_id": "b", "delta": {"text": "x", "token_ids": [1]}, "seed": "7"},
        {"request_id": "a", "final": {"finish_reason": "R"}},
        {"request_id": "b", "delta": {"text": "y", "token_ids": [2, 3]}},
    ]
    assert merged(values) == [
        {"request_id": "a", "final": {"finish_reason": "R"}},
        {"request_id": "b", "delta": {"text": "xy", "token_ids": [1, 2, 3]}, "seed": "7"},
    ]


def test_masks_hide_what_they_stand_for_and_nothing_else() -> None:
    shown = {"id": "…", "at": "12…", "ratio": 0.25, "rest": {"kept": 1, "…": "…"}, "ids": [1, 2]}
    actual = {"id": "q", "at": "123", "ratio": 0.2512, "rest": {"kept": 1, "other": 2}, "ids": [1, 2]}
    assert masked(actual, shown) == shown
    wrong: list[dict[str, Any]] = [
        {"at": "32"},
        {"ratio": 0.26},
        {"rest": {"kept": 2}},
        {"rest": {"other": 2}},
        {"ids": [1]},
        {"more": 1},
    ]
    assert [each for each in wrong if masked({**actual, **each}, shown) == shown] == []


def _without_masks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_masks(each) for key, each in value.items() if not _is_mask(each)}
    return [_without_masks(each) for each in value] if isinstance(value, list) else value


def _is_mask(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(ANYTHING)
