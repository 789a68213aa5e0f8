"""Sampling from logits that lie on several ranks: each takes what kernels.sample takes from all of them.

The ranks are threads. Logits are random, so equal tokens are no chance.
"""

from typing import Any

import pytest
import torch

from kernels import shared_sample
from kernels.sample import SampleInputs, sample_ref
from kernels.shared_sample import SharedVocabulary, argmax_shared, sample_shared
from tests.thread_ranks import Meeting, ThreadRank, run_in_meeting, run_ranks

NUM_ROWS = 24


def make_logits(vocab_size: int) -> torch.Tensor:
    return torch.randn(NUM_ROWS, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3


def make_inputs(**changes: Any) -> SampleInputs:
    fields: dict[str, Any] = {
        "temperature_R": torch.linspace(0.2, 2.0, NUM_ROWS),
        "top_k_R": torch.zeros(NUM_ROWS, dtype=torch.int32),
        "top_p_R": torch.ones(NUM_ROWS),
        "min_p_R": torch.zeros(NUM_ROWS),
        "seed_R": torch.arange(NUM_ROWS) - 3,
        "position_R": torch.arange(NUM_ROWS) * 7,
        "has_filters": False,
    }
    return SampleInputs(**fields | changes)


def own_logits(logits_RV: torch.Tensor, rank: ThreadRank) -> tuple[torch.Tensor, SharedVocabulary]:
    """Return what a rank has: a run of the columns, padded."""
    num_rows, vocab_size = logits_RV.shape
    length = -(-vocab_size // rank.size)
    padded = torch.full((num_rows, rank.size * length), -torch.inf)
    padded[:, :vocab_size] = logits_RV
    first_id = rank.rank * length
    vocabulary = SharedVocabulary(first_id=first_id, num_ids=vocab_size, all_gather=rank.all_gather)
    return padded[:, first_id : first_id + length], vocabulary


def draw_on(meeting: Meeting, logits_RV: torch.Tensor, inputs: SampleInputs) -> list[list[int]]:
    """Return each rank's tokens."""

    def work(rank: ThreadRank) -> list[int]:
        own, vocabulary = own_logits(logits_RV, rank)
        return sample_shared(own, inputs, vocabulary).tolist()

    return run_in_meeting(meeting, work)


def make_mixed() -> SampleInputs:
    """Return inputs of greedy rows, of rows without a limit, and of rows with one or several."""
    return make_inputs(
        temperature_R=torch.linspace(0.2, 2.0, NUM_ROWS) * (torch.arange(NUM_ROWS) % 5 != 0),
        top_k_R=torch.tensor([0, 1, 5, 40, 900, 5000] * 4, dtype=torch.int32),
        top_p_R=torch.tensor([1.0, 0.9, 0.3, 1.0] * 6),
        min_p_R=torch.tensor([0.0, 0.05, 0.2] * 8),
        has_filters=True,
    )


@pytest.mark.parametrize(("size", "vocab_size"), [(2, 1000), (4, 1000), (4, 1003), (3, 100)])
@pytest.mark.parametrize("kind", ["greedy", "drawn", "mixed"])
def test_every_rank_takes_the_token_of_one_rank(size: int, vocab_size: int, kind: str) -> None:
    logits_RV = make_logits(vocab_size)
    inputs = make_mixed() if kind == "mixed" else make_inputs(is_greedy=kind == "greedy")
    expected = sample_ref(logits_RV, inputs).tolist()
    assert draw_on(Meeting(size), logits_RV, inputs) == [expected] * size
    assert len({token * size // vocab_size for token in expected}) == size, "every rank's ids are drawn"


def test_rows_that_keep_more_tokens_than_are_exchanged_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_sample, "NUM_LIKELIEST", 4)
    logits_RV = make_logits(403)
    expected = sample_ref(logits_RV, make_mixed()).tolist()
    assert draw_on(Meeting(4), logits_RV, make_mixed()) == [expected] * 4


@pytest.mark.parametrize(
    ("changes", "num_exchanged"),
    [
        # A value and an id; before them a maximum; before them the likeliest and a sum.
        ({"is_greedy": True}, 2),
        ({}, 3),
        ({"top_k_R": [40] * NUM_ROWS, "has_filters": True}, 3 + 257),
    ],
    ids=["greedy", "drawn", "filtered"],
)
def test_little_is_exchanged(changes: dict[str, Any], num_exchanged: int) -> None:
    as_tensors = {
        name: torch.tensor(value) if isinstance(value, list) else value for name, value in changes.items()
    }
    meeting = Meeting(2)
    # A multiple of both ranks' groups, as ranks cut a vocabulary.
    draw_on(meeting, make_logits(20480), make_inputs(**as_tensors))
    assert meeting.num_exchanged == NUM_ROWS * num_exchanged


def test_the_lowest_id_of_equals_wins_wherever_it_is() -> None:
    logits_RV = torch.zeros(3, 12)
    logits_RV[0, [5, 9]] = 1.0
    logits_RV[1, 11] = float("inf")
    logits_RV[2] = float("-inf")
    logits_RV[2, 10] = float("nan")
    tokens = run_ranks(3, lambda rank: argmax_shared(*own_logits(logits_RV, rank)).tolist())
    assert tokens == [[5, 11, 10]] * 3


def test_gathered_logits_have_no_padding() -> None:
    logits_RV = make_logits(13)

    def work(rank: ThreadRank) -> torch.Tensor:
        own, vocabulary = own_logits(logits_RV, rank)
        return vocabulary.gather(own)

    for gathered in run_ranks(4, work):
        assert torch.equal(gathered, logits_RV)
