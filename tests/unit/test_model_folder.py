"""Finding a model folder, and what identifies it."""

import hashlib
from pathlib import Path

import huggingface_hub
import pytest

from model.errors import ModelFolderError
from model.folder import config_hash, find_model_folder, tokenizer_hash


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_bytes(b'{"a": 1}')
    return path


@pytest.fixture(autouse=True)
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No test reaches a hub: asking for one fails as it does without a network, and is listed here."""
    asked: list[str] = []

    def snapshot_download(hub_id: str, *, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        asked.append(hub_id)
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_folder_is_taken_as_it_is(tmp_path: Path, fetched: list[str]) -> None:
    assert find_model_folder(str(_folder(tmp_path / "some" / "model"))) == tmp_path / "some" / "model"
    assert fetched == []


def test_a_relative_folder_wins_over_a_hub_id(
    tmp_path: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert find_model_folder("owner/model") == Path("owner/model")
    assert fetched == []


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _folder(tmp_path / "model")
    assert find_model_folder("~/model") == tmp_path / "model"


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"is no model folder: it holds no config\.json"):
        find_model_folder(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("m" * 300, r"\[Errno \d+\] File name too long: "), ("~no-such-user/m", "Could not determine home")],
)
def test_a_path_that_cannot_be_looked_at_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ModelFolderError, match=f"^cannot read model folder '{name}': {reason}"):
        find_model_folder(name)


@pytest.mark.parametrize("name", ["/no/such/folder", "./model", "../a", "~/none", "model", "a/b/c", "", "a/"])
def test_a_missing_path_is_not_looked_for_on_a_hub(
    name: str, fetched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFolderError):
        find_model_folder(name)
    assert fetched == []


def test_a_hub_that_cannot_be_reached(
    fetched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFolderError, match=r"'Qwen/Qwen3-0\.6B' is no folder here.*no network"):
        find_model_folder("Qwen/Qwen3-0.6B")
    assert fetched == ["Qwen/Qwen3-0.6B"]


def test_a_hub_model_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path / "snapshot")

    def snapshot_download(hub_id: str, *, allow_patterns: list[str]) -> str:
        assert (hub_id, allow_patterns[0]) == ("owner/model", "*.json")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    assert find_model_folder("owner/model") == folder
    (folder / "config.json").unlink()
    with pytest.raises(ModelFolderError, match=r"hub model 'owner/model' holds no config\.json"):
        find_model_folder("owner/model")


def test_hashes_are_sha256_of_the_bytes(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    assert config_hash(folder) == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert tokenizer_hash(folder) == ""
    (folder / "tokenizer.json").write_bytes(b"\xff\x00")
    assert tokenizer_hash(folder) == hashlib.sha256(b"\xff\x00").hexdigest()


def test_hashes_of_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"cannot read .*config\.json"):
        config_hash(tmp_path)
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelFolderError, match=r"cannot read .*tokenizer\.json"):
        tokenizer_hash(tmp_path)
