"""Rules on the examples in other languages: short READMEs, pinned packages, names that the protos have.

Knows nothing about how they run: tests/e2e/clients builds and runs them, where it is asked to.
"""

import json
import re
import shutil
import subprocess

import pytest
import typer
from google.protobuf.descriptor import FileDescriptor
from stepwire.v1 import generation_service_pb2, types_pb2
from stepwire_cli.main import app
from stepwire_cli.server_flags import TOKEN_VARIABLE

from tests.rules.source_tree import REPOSITORY, expect_none, read_file

MAX_README_LINES = 40
EXAMPLES = {"node": "example.mjs", "cpp": "example.cpp", "go": "main.go"}
FILES: tuple[FileDescriptor, ...] = (generation_service_pb2.DESCRIPTOR, types_pb2.DESCRIPTOR)

STRINGS_AND_COMMENTS = re.compile(r'"[^"\n]*"|//[^\n]*')
# Where each language names what the protos define, and what else stands in such places.
NODE_NAMES = re.compile(r"(?<![.\w])(?:message|final|delta|client)\.(\w+)|(\w+): |\{ (\w+), ")
NODE_OTHERS = {
    "close",
    "credentials",
    "event",
    "defaults",
    "deadline",
    "enums",
    "includeDirs",
    "longs",
    "oneofs",
}
CPP_NAMES = re.compile(
    r"\b(?:set|mutable|add|has)_(\w+)\(|(?:\bsw::|\bstub\.)(\w+)|\.(?!has_|mutable_)([a-z_]+)\(\)"
)
CPP_OTHERS = {"deadline", "error_code", "error_message", "what"}
GO_NAMES = re.compile(r"\bpb\.(\w+)|\bGet(\w+)\(|(\w+): |client\.(\w+)\(")
GO_OTHERS = {"Event", "Input", "NewGenerationServiceClient", "GenerationServiceClient"}


@pytest.mark.parametrize("language", EXAMPLES)
def test_a_readme_is_short_and_has_one_command(language: str) -> None:
    readme = read_file(f"clients/{language}/README.md")
    assert len(readme.splitlines()) < MAX_README_LINES
    assert readme.count("```sh\n") == 1
    assert f"]({EXAMPLES[language]})" in readme


def test_the_node_packages_are_pinned_and_come_from_no_private_place() -> None:
    package = json.loads(read_file("clients/node/package.json"))
    locked = json.loads(read_file("clients/node/package-lock.json"))["packages"]
    assert locked[""]["dependencies"] == package["dependencies"]
    versions = {name: locked[f"node_modules/{name}"]["version"] for name in package["dependencies"]}
    assert versions == package["dependencies"]
    sources = [each.get("resolved", "https://registry.npmjs.org/") for each in locked.values()]
    expect_none([source for source in sources if not source.startswith("https://registry.npmjs.org/")])
    expect_none([name for name, each in locked.items() if name and "integrity" not in each])


def test_the_readmes_name_what_the_build_files_ask_for() -> None:
    engines = json.loads(read_file("clients/node/package.json"))["engines"]["node"]
    assert f"Node.js {engines.removeprefix('>=')} or newer" in read_file("clients/node/README.md")
    (standard,) = re.findall(r"CMAKE_CXX_STANDARD (\d+)", read_file("clients/cpp/CMakeLists.txt"))
    assert f"C++{standard} compiler" in read_file("clients/cpp/README.md")
    (version,) = re.findall(r"^go (\S+)$", read_file("clients/go/go.mod"), re.MULTILINE)
    assert f"Go {version} or newer" in read_file("clients/go/README.md")
    (packages,) = re.findall(r"these are `([^`]*)`", read_file("clients/cpp/README.md"))
    assert f"install_debian.sh {packages}\n" in read_file("Makefile")


def test_protos_that_the_builds_read_exist() -> None:
    names = {
        "cpp": re.findall(r"stepwire/v1/\w+(?=[ )])", read_file("clients/cpp/CMakeLists.txt")),
        "go": re.findall(r"stepwire/v1/\w+(?=\.proto)", read_file("clients/go/generate.sh")),
        "node": re.findall(r"stepwire/v1/\w+(?=\.proto)", read_file("clients/node/example.mjs")),
    }
    assert set(names["cpp"]) == set(names["go"]) == {"stepwire/v1/types", "stepwire/v1/generation_service"}
    assert names["node"] == ["stepwire/v1/generation_service"]
    expect_none([name for name in names["cpp"] if not (REPOSITORY / f"protos/{name}.proto").is_file()])


def test_node_can_parse_its_example() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    subprocess.run([node, "--check", "clients/node/example.mjs"], cwd=REPOSITORY, check=True, timeout=60)


def test_node_uses_names_of_the_protos() -> None:
    used = _used(NODE_NAMES, "clients/node/example.mjs") - NODE_OTHERS
    assert len(used) > 10
    camel = {_camel(name) for name in _names()}
    assert sorted(used - camel) == []


def test_cpp_uses_names_of_the_protos() -> None:
    used = _used(CPP_NAMES, "clients/cpp/example.cpp") - CPP_OTHERS
    assert len(used) > 10
    assert sorted(name for name in used if name.removesuffix("_Name") not in _names()) == []


def test_go_uses_names_of_the_protos() -> None:
    used = _used(GO_NAMES, "clients/go/main.go") - GO_OTHERS
    assert len(used) > 10
    pascal = {_camel(name)[0].upper() + _camel(name)[1:] for name in _names()}
    assert sorted(name for name in used if not set(name.split("_")) <= pascal) == []


def test_the_python_readme_names_commands_and_flags_that_are() -> None:
    readme = read_file("clients/python/README.md")
    commands = vars(typer.main.get_command(app))["commands"]
    assert set(re.findall(r"^stepwire (\w+)", readme, re.MULTILINE)) == set(commands)
    flags = {
        flag
        for command in commands.values()
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    expect_none(
        [flag for flag in re.findall(r"(?<![\w-])--[a-z-]+", readme) if flag not in {*flags, "--help"}]
    )
    assert TOKEN_VARIABLE in readme


def _used(pattern: re.Pattern[str], path: str) -> set[str]:
    code = STRINGS_AND_COMMENTS.sub('""', read_file(path))
    return {next(filter(None, match.groups())) for match in pattern.finditer(code)}


def _names() -> set[str]:
    """Name all that clients can use: services, methods, messages, fields, enums."""
    names: set[str] = set()
    for file in FILES:
        names |= {*file.message_types_by_name, *file.enum_types_by_name, *file.services_by_name}
        for message in file.message_types_by_name.values():
            names |= set(message.fields_by_name)
        for service in file.services_by_name.values():
            names |= set(service.methods_by_name)
    return names


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
