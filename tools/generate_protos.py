"""Write the Python code of every file under protos/stepwire into a folder.

Messages, services and their type stubs, by the one pinned protoc. Knows nothing about what the
contract says, and leaves no generated file behind whose proto is gone.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTOS = REPOSITORY / "protos"


def generate(folder: Path) -> None:
    """Replace ``folder``/stepwire by code generated from the protos.

    Raises:
        subprocess.CalledProcessError: if protoc refuses a file; it has printed why.
    """
    shutil.rmtree(folder / "stepwire", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("stepwire/**/*.proto"))
    outputs = [f"--{plugin}_out={folder}" for plugin in ("python", "pyi", "grpc_python")]
    outputs.append(f"--mypy_grpc_out=quiet:{folder}")
    # protoc looks for its plugin protoc-gen-mypy_grpc on the path; it is installed beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *sources],
        check=True,
        env={**os.environ, "PATH": path},
    )


def main() -> int:
    """Generate into the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Generate Python code from protos/stepwire.")
    parser.add_argument("folder", type=Path, help="import root to write, usually protos/gen")
    generate(parser.parse_args().folder.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
