"""Which commit the contract is compared with, and what counts as a difference or a break.

Each test makes a small git repository of its own; nothing here reads the one it runs in.
"""

import subprocess
from pathlib import Path

import pytest

from tools.check_protos import breaks_contract, different_files, earlier_commit

PROTO = 'syntax = "proto3";\npackage a.v1;\nmessage Note {\n  string text = 1;\n  int32 count = 2;\n}\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "protos/a/v1").mkdir(parents=True)
    (folder / "buf.yaml").write_text(
        "version: v2\nmodules:\n  - path: protos\nbreaking:\n  use:\n    - FILE\n"
    )
    _git(folder, "init", "--quiet", "--initial-branch", "main")
    _commit(folder, PROTO)
    return folder


def test_a_first_commit_has_nothing_before_it(repository: Path) -> None:
    assert earlier_commit(repository) is None


def test_on_main_the_commit_before_counts(repository: Path) -> None:
    first = _git(repository, "rev-parse", "HEAD")
    _commit(repository, PROTO + "message Other {}\n")
    assert earlier_commit(repository) == first


def test_on_a_branch_the_place_where_it_left_main_counts(repository: Path) -> None:
    _commit(repository, PROTO + "message Other {}\n")
    fork = _git(repository, "rev-parse", "HEAD")
    _git(repository, "switch", "--quiet", "--create", "work")
    _commit(repository, PROTO + "message Third {}\n")
    _commit(repository, PROTO + "message Fourth {}\n")
    assert earlier_commit(repository) == fork


def test_a_shallow_clone_has_nothing_before_it(repository: Path, tmp_path: Path) -> None:
    _commit(repository, PROTO + "message Other {}\n")
    clone = tmp_path / "clone"
    _git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(clone))
    assert earlier_commit(clone) is None


def test_local_commits_on_main_are_compared_with_what_was_pushed(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    _git(tmp_path, "clone", "--quiet", f"file://{repository}", str(clone))
    pushed = _git(clone, "rev-parse", "HEAD")
    _commit(clone, PROTO + "message Other {}\n")
    _commit(clone, PROTO + "message Third {}\n")
    assert earlier_commit(clone) == pushed


def test_an_added_message_breaks_nothing_and_a_removed_field_does(repository: Path) -> None:
    first = _git(repository, "rev-parse", "HEAD")
    proto = repository / "protos/a/v1/note.proto"
    proto.write_text(PROTO + "message Other {}\n")
    assert not breaks_contract(repository, first)
    proto.write_text(PROTO.replace("  int32 count = 2;\n", ""))
    assert breaks_contract(repository, first)


def test_files_differ_by_content_or_by_being_on_one_side_only(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for folder in (left, right):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner/same.py").write_text("same")
        (folder / "inner/other.py").write_text(folder.name)
    (left / "old.py").write_text("")
    (right / "new.py").write_text("")
    assert different_files(left, right) == ["inner/other.py", "new.py", "old.py"]


def _commit(repository: Path, proto: str) -> None:
    (repository / "protos/a/v1/note.proto").write_text(proto)
    _git(repository, "add", "--all")
    _git(
        repository,
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "commit",
        "--quiet",
        "--message",
        "A step",
    )


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()
