"""How a rank's share is cut out of a checkpoint's tensors: whole, by rows, by columns, by token ids.

Column-parallel layers (queries, keys and values; gate and up) take rows of their tensors, one for each
number that they give. Row-parallel ones (output, down) take columns, one for each number that they read.
Knows nothing about names or files.
"""

from dataclasses import dataclass

from model.share import ModelShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one of the checkpoint's tensors."""

    name: str
    shape: tuple[int, ...]
    """That the whole tensor must have."""
    rows: range
    columns: range | None = None
    """None: all, or a tensor of one dimension."""
    num_padding_rows: int = 0
    """Zeros that follow the rows."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut off."""
        return len(self.rows) == self.shape[0] and self.columns is None

    @property
    def num_rows(self) -> int:
        """Rows that the piece fills."""
        return len(self.rows) + self.num_padding_rows


def whole(name: str, *shape: int) -> Piece:
    """Return all of a tensor."""
    return Piece(name=name, shape=shape, rows=range(shape[0]))


def rows(name: str, *shape: int, taken: range) -> Piece:
    """Return some rows of a tensor."""
    return Piece(name=name, shape=shape, rows=taken)


def columns(name: str, *shape: int, taken: range) -> Piece:
    """Return some columns of a tensor."""
    is_whole = len(taken) == shape[1]
    return Piece(name=name, shape=shape, rows=range(shape[0]), columns=None if is_whole else taken)


def token_rows(name: str, share: ModelShare) -> Piece:
    """Return the share's rows of a table of token ids, padded."""
    shape = (share.whole.vocab_size, share.whole.hidden_size)
    num_padding_rows = share.config.vocab_size - len(share.vocabulary)
    return Piece(name=name, shape=shape, rows=share.vocabulary, num_padding_rows=num_padding_rows)


def added_once(name: str, size: int, *, share: ModelShare) -> Piece:
    """Return what is added to a sum over all ranks: the first rank has it, the others zeros."""
    num_taken = size if share.rank == 0 else 0
    return Piece(name=name, shape=(size,), rows=range(num_taken), num_padding_rows=size - num_taken)
