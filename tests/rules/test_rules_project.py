"""Rules on the files around the code: Makefile, versions, images, and words that have no place here.

Knows nothing about what the code does.
"""

import re
import subprocess
import tomllib

from tests.rules.source_tree import REPOSITORY, expect_none, read_file

MAX_FILE_BYTES = 1_000_000
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):(.*)$", re.MULTILINE)
PHONY = re.compile(r"^\.PHONY:((?:[^\n\\]|\\\n)*)$", re.MULTILINE)
EXPECTED_TARGETS = (
    *("help", "setup", "demo", "serve", "proto", "fmt", "lint", "type", "test", "test-gpu", "test-long"),
    *("bench", "bench-kernels", "test-compose", "up", "down", "check", "clean"),
)
REQUIREMENT = re.compile(r"^[A-Za-z0-9._-]+")


def test_make_targets_all_say_what_they_do() -> None:
    targets = dict(MAKE_TARGET.findall(read_file("Makefile")))
    expect_none([target for target, rest in targets.items() if "## " not in rest])
    expect_none([target for target in EXPECTED_TARGETS if target not in targets])


def test_make_targets_are_all_phony_and_in_the_help() -> None:
    targets = sorted(target for target, _ in MAKE_TARGET.findall(read_file("Makefile")))
    phony = PHONY.search(read_file("Makefile"))
    assert phony is not None
    assert sorted(phony[1].replace("\\", " ").split()) == targets
    result = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert sorted(line.split()[0] for line in result.stdout.splitlines()) == targets


def test_ci_runs_setup_and_check_and_nothing_else() -> None:
    assert re.findall(r"^make .*$", read_file(".ci/run"), re.MULTILINE) == ["make setup", "make check"]


def test_no_file_names_a_place_outside_the_repository() -> None:
    # Written in two parts, so that this file does not hold them.
    words = ["/wo" + "rk/", "../sha" + "red", "../.lib" + "rary"]
    expect_none([f"{name}: {word}" for name in _tracked_files() for word in words if word in read_file(name)])


def test_no_file_is_large() -> None:
    large = [name for name in _tracked_files() if (REPOSITORY / name).stat().st_size > MAX_FILE_BYTES]
    expect_none(large)


def test_all_that_the_extras_ask_for_is_pinned() -> None:
    pinned = {_package(line) for line in read_file("constraints.txt").splitlines() if "==" in line}
    asked = {
        _package(requirement)
        for extra, requirements in _extras().items()
        if extra != "flash-attn"  # no registry has a wheel of it, and no CPU machine needs it
        for requirement in requirements
    }
    assert sorted(asked - pinned) == ["stepwire"]


def test_the_scheduler_installs_no_torch() -> None:
    names = {_package(requirement) for requirement in _extras()["scheduler"]}
    assert names & {"torch", "triton", "transformers", "stepwire"} == set()


def test_the_license_is_apache_2() -> None:
    text = read_file("LICENSE")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def _extras() -> dict[str, list[str]]:
    extras: dict[str, list[str]] = tomllib.loads(read_file("pyproject.toml"))["project"][
        "optional-dependencies"
    ]
    return extras


def _package(requirement: str) -> str:
    match = REQUIREMENT.match(requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-").replace(".", "-")


def _tracked_files() -> list[str]:
    """Name the text files that git tracks, links and generated code left out."""
    result = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=60
    )
    names = [name for name in result.stdout.splitlines() if not name.startswith("protos/gen/")]
    return [name for name in names if (REPOSITORY / name).is_file() and not (REPOSITORY / name).is_symlink()]
