"""The commands of docs/grpcurl.md, as they stand there, against running services.

With a tiny model each must answer with messages of the right type; with the demo's model (`make
test-recipes`), to the letter.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import json_format

from tests.e2e.recipes.recipe_page import Recipe, json_values, masked, merged, read_recipes, text_pattern
from tests.rules.recipe_messages import response_type
from tests.rules.source_tree import REPOSITORY
from tools.fetch_smollm2 import DEFAULT_FOLDER, FetchError, fetch
from tools.services import Services, running_services


def _answer(recipe: Recipe, address: str) -> str:
    """Run a recipe; return what it prints, errors last."""
    result = recipe.run(address)
    printed = f"{result.stdout.strip()}\n{result.stderr.strip()}".strip()
    assert result.returncode == recipe.exit_status, f"{recipe.command}\n{printed}"
    return printed


def test_every_recipe_is_answered(services: Services) -> None:
    for recipe in read_recipes():
        if "-max-time" in recipe.words:
            continue  # a tiny model ends before
        printed = _answer(recipe, services.address)
        message = response_type(recipe.method)
        if recipe.code or message is None:
            _expect_shown(recipe, printed)
        else:
            for value in json_values(printed):
                json_format.ParseDict(value, message())


@pytest.fixture(scope="module")
def demo_address() -> Iterator[str]:
    """Run both services with the demo's model, as `make serve` does."""
    folder = REPOSITORY / DEFAULT_FOLDER
    try:
        fetch(folder)
    except FetchError as error:
        pytest.skip(f"the demo's model cannot be fetched: {error}")
    with running_services(Path(folder), worker_flags=("--torch-threads", "1")) as services:
        yield services.address


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_recipe_answers_as_the_page_shows(demo_address: str) -> None:
    for recipe in read_recipes():
        _expect_shown(recipe, _answer(recipe, demo_address))


def _expect_shown(recipe: Recipe, printed: str) -> None:
    if recipe.is_json:
        shown = merged(json_values(recipe.answer))
        assert masked(merged(json_values(printed)), shown) == shown, recipe.command
    else:
        assert re.fullmatch(text_pattern(recipe.answer), printed), f"{recipe.command}\n{printed}"
