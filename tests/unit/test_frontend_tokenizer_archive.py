"""The tokenizer's files in a zip file, for gateways."""

import asyncio
import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from scheduler_svc.frontend.tokenizer_archive import TokenizerArchives, make_archive

FILES = {
    "config.json": "{}",
    "tokenizer.json": "the vocabulary",
    "chat_template.jinja": "a template",
    "model.safetensors": "weights",
    "notes.txt": "none of a gateway's business",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.jinja").mkdir()
    return tmp_path


def test_it_holds_what_a_tokenizer_needs_and_nothing_else(folder: Path) -> None:
    archive = make_archive(folder)
    assert archive.sha256 == hashlib.sha256(archive.data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive.data)) as opened:
        held = {name: opened.read(name).decode() for name in opened.namelist()}
    names = ("chat_template.jinja", "config.json", "tokenizer.json")
    assert held == {name: FILES[name] for name in names}


def test_the_same_files_give_the_same_bytes(folder: Path) -> None:
    before = make_archive(folder)
    os.utime(folder / "config.json", (2e9, 2e9))
    assert make_archive(folder) == before


async def test_it_is_made_once(folder: Path) -> None:
    archives = TokenizerArchives(folder)
    first, second = await asyncio.gather(archives.get(), archives.get())
    assert first is second
