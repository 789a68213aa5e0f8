"""What the images install first: requirements of extras and of the client, each once."""

from pathlib import Path

import pytest

from deploy.list_requirements import list_requirements


@pytest.fixture
def top(tmp_path: Path) -> Path:
    client = tmp_path / "clients/python"
    client.mkdir(parents=True)
    (client / "pyproject.toml").write_text('[project]\ndependencies = ["rich>=13", "grpcio>=1.84,<2"]\n')
    (tmp_path / "pyproject.toml").write_text(
        '[project.optional-dependencies]\na = ["numpy>=2", "rich>=13"]\nb = ["torch>=2.11"]\n'
    )
    return tmp_path


def test_requirements_of_the_client_and_of_one_extra(top: Path) -> None:
    assert list_requirements(top, ["a"]) == ["grpcio>=1.84,<2", "numpy>=2", "rich>=13"]


def test_several_extras(top: Path) -> None:
    assert list_requirements(top, ["a", "b"])[-1] == "torch>=2.11"


def test_an_unknown_extra_is_an_error(top: Path) -> None:
    with pytest.raises(KeyError, match="gpu"):
        list_requirements(top, ["gpu"])
