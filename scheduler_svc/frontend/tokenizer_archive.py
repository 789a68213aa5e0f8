"""The model folder's tokenizer as one zip file, for gateways that render and tokenize by themselves.

The same folder gives the same bytes on every front end. Holds no weights, and knows nothing about how it
is sent.
"""

import asyncio
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

_FILE_PATTERNS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json"),
    *("*.jinja", "tokenizer.model", "*.tiktoken"),
)
_NO_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip file can hold: times would make each machine's bytes differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerArchive:
    """A zip file and its fingerprint."""

    data: bytes
    sha256: str
    """Of ``data``, hex."""


class TokenizerArchives:
    """Makes the archive of one folder when it is first asked for, and keeps it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archive: TokenizerArchive | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> TokenizerArchive:
        """Return the archive; made in another thread, since that takes up to a second."""
        async with self._lock:
            if self._archive is None:
                self._archive = await asyncio.to_thread(make_archive, self._folder)
            return self._archive


def make_archive(folder: Path) -> TokenizerArchive:
    """Zip the tokenizer's files of a model folder."""
    paths = sorted({path for pattern in _FILE_PATTERNS for path in folder.glob(pattern) if path.is_file()})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            entry = zipfile.ZipInfo(path.name, _NO_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    data = buffer.getvalue()
    return TokenizerArchive(data=data, sha256=hashlib.sha256(data).hexdigest())
