"""What one rank holds of a tensor-parallel model: which heads, which numbers of the MLP, which token ids.

Arithmetic on shapes: knows nothing about tensors, files or how ranks reach each other, and imports no torch.

Query heads, KV heads and the MLP's inner numbers are cut into equal runs. Where there are more ranks than
KV heads, several ranks hold a copy of the same one. The vocabulary is padded to equal runs at its end, which
begin with groups of ids that are drawn together, where no rank is left without an id by that.
"""

from dataclasses import dataclass, replace

from kernels.id_groups import GROUP_SIZE
from model.config import ModelConfig
from model.errors import ShareError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShare:
    """One rank's share of a model; make it with share_model."""

    whole: ModelConfig
    rank: int
    size: int
    """Ranks that hold the model together."""

    @property
    def config(self) -> ModelConfig:
        """The share's shapes, as if it were a model; its vocab_size counts padding, too."""
        whole, size = self.whole, self.size
        if size == 1:
            return whole
        return replace(
            whole,
            num_heads=whole.num_heads // size,
            num_kv_heads=max(whole.num_kv_heads // size, 1),
            intermediate_size=whole.intermediate_size // size,
            vocab_size=_vocabulary_run(whole.vocab_size, size),
            eos_token_ids=(),
        )

    @property
    def heads(self) -> range:
        """The query heads."""
        return _run(self.whole.num_heads // self.size, self.rank)

    @property
    def kv_heads(self) -> range:
        """The KV heads that these query heads read."""
        whole, size = self.whole, self.size
        if size > whole.num_kv_heads:
            return _run(1, self.rank * whole.num_kv_heads // size)
        return _run(whole.num_kv_heads // size, self.rank)

    @property
    def intermediate(self) -> range:
        """The MLP's inner numbers."""
        return _run(self.whole.intermediate_size // self.size, self.rank)

    @property
    def vocabulary(self) -> range:
        """The token ids, without padding."""
        padded = _run(_vocabulary_run(self.whole.vocab_size, self.size), self.rank)
        return range(padded.start, min(padded.stop, self.whole.vocab_size))


def share_model(config: ModelConfig, *, rank: int, size: int) -> ModelShare:
    """Return what this rank holds of a model that so many ranks hold together.

    Raises:
        ShareError: the model cannot be cut so.
    """
    assert 0 <= rank < size
    misfits = _list_misfits(config, size)
    if misfits:
        fitting = [other for other in range(1, config.num_heads + 1) if not _list_misfits(config, other)]
        raise ShareError(
            f"{size} ranks cannot share this model: {', and '.join(misfits)}. "
            f"Numbers of ranks that fit it: {', '.join(map(str, fitting))}"
        )
    return ModelShare(whole=config, rank=rank, size=size)


def _list_misfits(config: ModelConfig, size: int) -> list[str]:
    """Say what hinders so many ranks from sharing the model."""
    misfits = [
        f"its {name}, {number}, is no multiple of that"
        for name, number in (
            ("num_heads", config.num_heads),
            ("intermediate_size", config.intermediate_size),
        )
        if number % size
    ]
    num_kv_heads = config.num_kv_heads
    if num_kv_heads % size and size % num_kv_heads:
        misfits.append(f"its num_kv_heads, {num_kv_heads}, is neither a multiple nor a divisor of that")
    if -(-config.vocab_size // size) * (size - 1) >= config.vocab_size:
        misfits.append(f"its vocab_size, {config.vocab_size}, leaves the last rank without a token id")
    return misfits


def _vocabulary_run(vocab_size: int, size: int) -> int:
    """Return how many token ids each of so many ranks has, padding included."""
    least = -(-vocab_size // size)
    whole_groups = -(-least // GROUP_SIZE) * GROUP_SIZE
    return whole_groups if whole_groups * (size - 1) < vocab_size else least


def _run(length: int, index: int) -> range:
    """Return one of the runs of this length that lie side by side."""
    return range(index * length, (index + 1) * length)
