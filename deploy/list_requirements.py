"""Print what the extras named on the command line, and the client, ask for, a requirement a line.

The images install these before the sources, so that a change of code installs nothing else again.
Knows nothing about pip or images: it reads two files and prints.
"""

import argparse
import sys
import tomllib
from pathlib import Path

CLIENT = Path("clients/python/pyproject.toml")
SERVICES = Path("pyproject.toml")


def list_requirements(top: Path, extras: list[str]) -> list[str]:
    """Read the requirements of ``extras`` and of the client, sorted, each once.

    Raises:
        KeyError: naming an extra that does not exist.
    """
    services = tomllib.loads((top / SERVICES).read_text(encoding="utf-8"))["project"]
    client = tomllib.loads((top / CLIENT).read_text(encoding="utf-8"))["project"]
    requirements = set(client["dependencies"])
    for extra in extras:
        requirements |= set(services["optional-dependencies"][extra])
    return sorted(requirements)


def main() -> int:
    """Print the requirements of what the command line names."""
    parser = argparse.ArgumentParser(description="Print the requirements of the client and of extras.")
    parser.add_argument("extra", nargs="*", help="an extra of pyproject.toml")
    parser.add_argument("--top", type=Path, default=Path(), help="top of the repository")
    arguments = parser.parse_args()
    print("\n".join(list_requirements(arguments.top, arguments.extra)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
