"""Sums through mailboxes, the ranks of one process one after another: all push, then all take.

In Triton's interpreter, or on one GPU. That ranks wait for each other needs several GPUs: tests/gpu.
"""

import pytest
import torch

from kernels.all_reduce import (
    DTYPES,
    LINE_BYTES,
    MOST_BYTES,
    Cut,
    Mailbox,
    all_reduce_ref,
    can_sum,
    choose_cut,
    mailbox_words,
    make_mailbox,
    push,
    take_sum,
)
from kernels.line_words import EMPTY_WORD
from kernels.row_squares import sum_squares_ref

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CUT = Cut(num_lines=4, num_warps=1)
SQUARES_CUT = Cut(num_lines=16, num_warps=1)
CANARY = 7.0


def make_mailboxes(size: int) -> list[Mailbox]:
    own = [torch.empty(mailbox_words(size), dtype=torch.int32, device=DEVICE) for _ in range(size)]
    addresses = [tensor.data_ptr() for tensor in own]
    return [make_mailbox(tensor, addresses, rank=rank) for rank, tensor in enumerate(own)]


def sum_messages(messages: list[torch.Tensor], mailboxes: list[Mailbox], cut: Cut = CUT) -> None:
    for message, mailbox in zip(messages, mailboxes, strict=True):
        push(message, mailbox, cut=cut)
    for message, mailbox in zip(messages, mailboxes, strict=True):
        take_sum(message, mailbox, cut=cut)


def random_messages(size: int, num_lines: int, dtype: torch.dtype, *, seed: int = 0) -> list[torch.Tensor]:
    """Return one of each rank; the interpreter rounds to bfloat16 its own way, so no sum there needs it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (size, num_lines * LINE_BYTES // dtype.itemsize)
    numbers = torch.randn(shape, generator=generator)
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        numbers = torch.randint(-16, 16, shape, generator=generator) / 4
    return list(numbers.to(DEVICE, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "num_lines"), [(2, 1), (2, 9), (4, 5)])
def test_all_ranks_have_the_reference_bit_by_bit(size: int, num_lines: int, dtype: torch.dtype) -> None:
    messages, mailboxes = random_messages(size, num_lines, dtype), make_mailboxes(size)
    expected = all_reduce_ref(messages)
    sum_messages(messages, mailboxes)
    for message in messages:
        assert torch.equal(message, expected)


def test_turns_empty_what_they_took_and_may_differ_in_size() -> None:
    mailboxes = make_mailboxes(2)
    for turn, num_lines in enumerate((9, 3, 12, 1, 9)):
        messages = random_messages(2, num_lines, torch.float32, seed=turn)
        expected = all_reduce_ref(messages)
        sum_messages(messages, mailboxes, cut=Cut(num_lines=8 if turn == 3 else 4, num_warps=1))
        assert torch.equal(messages[0], expected)
        assert torch.equal(messages[1], expected)
    for mailbox in mailboxes:
        assert mailbox.turns_P[:4].tolist() == [5, 3, 3, 0]
        assert bool((mailbox.own_X == EMPTY_WORD).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_squares_are_those_of_the_sum(dtype: torch.dtype) -> None:
    messages, mailboxes = [torch.randn(3, 64).to(DEVICE, dtype) for _ in range(2)], make_mailboxes(2)
    squares_RJ = torch.full((4, 2), CANARY, device=DEVICE)
    for message, mailbox in zip(messages, mailboxes, strict=True):
        push(message, mailbox, cut=SQUARES_CUT)
    take_sum(messages[0], mailboxes[0], squares_RJ=squares_RJ[:3], cut=SQUARES_CUT)
    torch.testing.assert_close(squares_RJ[:3], sum_squares_ref(messages[0]))
    assert squares_RJ[3].tolist() == [CANARY] * 2


def test_a_rank_may_be_a_turn_ahead() -> None:
    mailboxes = make_mailboxes(2)
    first, second = (random_messages(2, 2, torch.float32, seed=seed) for seed in (1, 2))
    expected = [all_reduce_ref(messages) for messages in (first, second)]
    push(first[0], mailboxes[0], cut=CUT)
    push(first[1], mailboxes[1], cut=CUT)
    take_sum(first[0], mailboxes[0], cut=CUT)
    push(second[0], mailboxes[0], cut=CUT)
    take_sum(first[1], mailboxes[1], cut=CUT)
    push(second[1], mailboxes[1], cut=CUT)
    for rank in (1, 0):
        take_sum(second[rank], mailboxes[rank], cut=CUT)
        assert torch.equal(first[rank], expected[0])
        assert torch.equal(second[rank], expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_looks_like_nothing_stays_nan(dtype: torch.dtype) -> None:
    messages = [torch.zeros(LINE_BYTES // dtype.itemsize, dtype=dtype, device=DEVICE) for _ in range(2)]
    messages[0].view(torch.int32)[1] = EMPTY_WORD
    sum_messages(messages, make_mailboxes(2))
    numbers = 4 // dtype.itemsize
    is_nan = [index // numbers == 1 for index in range(len(messages[0]))]
    assert messages[0].isnan().tolist() == messages[1].isnan().tolist() == is_nan


def test_what_lies_behind_a_message_stays() -> None:
    memory = [torch.full((16,), CANARY, device=DEVICE) for _ in range(2)]
    sum_messages([numbers[4:8] for numbers in memory], make_mailboxes(2))
    assert memory[0].tolist() == memory[1].tolist() == [CANARY] * 4 + [2 * CANARY] * 4 + [CANARY] * 8


def test_only_whole_lines_are_messages() -> None:
    numbers = torch.zeros(MOST_BYTES // 4 + 4)
    assert can_sum(numbers[:-4])
    assert not any(map(can_sum, (numbers, numbers[:3], numbers[1:5], numbers[:8:2], numbers[:4].half())))
    with pytest.raises(ValueError, match=r"12 bytes of torch\.float32 are no message"):
        push(numbers[:3], make_mailboxes(2)[0])


def test_every_size_has_a_cut_that_fits() -> None:
    for num_bytes in (LINE_BYTES, 2 << 10, 8 << 10, 100_000, 512 << 10, MOST_BYTES):
        cut = choose_cut(num_bytes)
        assert num_bytes <= cut.num_lines * LINE_BYTES * 256
