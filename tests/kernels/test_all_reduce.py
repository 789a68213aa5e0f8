"""Sums through mailboxes, the ranks of one process one after another: all push, then all take.

In Triton's interpreter, or on one GPU. That ranks wait for each other needs several GPUs: tests/gpu.
"""

from random import Random

import pytest
import torch

from kernels.all_reduce import (
    BOX_BYTES,
    BOX_LINES,
    DTYPES,
    LINE_BYTES,
    Cut,
    Mailbox,
    _pieces,
    all_reduce_ref,
    can_sum,
    choose_cut,
    mailbox_words,
    make_mailbox,
    push,
    take_sum,
)
from kernels.all_reduce_kernel import NUM_TURNS
from kernels.line_words import EMPTY_WORD
from kernels.row_squares import sum_squares_ref

MOST_BYTES = 32 * BOX_BYTES
CUT = Cut(num_lines=32, num_warps=1)
CANARY = 7.0
NUM_SUMS = 8


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("the other kind of device runs this")
    return str(request.param)


def make_mailboxes(size: int, device: str, most_bytes: int = MOST_BYTES) -> list[Mailbox]:
    num_words = mailbox_words(size, most_bytes)
    own = [torch.empty(num_words, dtype=torch.int32, device=device) for _ in range(size)]
    addresses = [tensor.data_ptr() for tensor in own]
    return [make_mailbox(tensor, addresses, rank=rank) for rank, tensor in enumerate(own)]


def sum_messages(messages: list[torch.Tensor], mailboxes: list[Mailbox], cut: Cut = CUT) -> None:
    for message, mailbox in zip(messages, mailboxes, strict=True):
        push(message, mailbox, cut=cut)
    for message, mailbox in zip(messages, mailboxes, strict=True):
        take_sum(message, mailbox, cut=cut)


def random_messages(
    size: int, num_lines: int, *, dtype: torch.dtype = torch.float32, device: str, seed: int = 0
) -> list[torch.Tensor]:
    """Return one of each rank; the interpreter rounds to bfloat16 its own way, so no sum there needs it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (size, num_lines * LINE_BYTES // dtype.itemsize)
    numbers = torch.randn(shape, generator=generator)
    if dtype is torch.bfloat16 and device == "cpu":
        numbers = torch.randint(-16, 16, shape, generator=generator) / 4
    return list(numbers.to(device, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "num_lines"), [(2, 1), (2, 70), (4, 40)])
def test_all_ranks_have_the_reference_bit_by_bit(
    size: int, num_lines: int, dtype: torch.dtype, device: str
) -> None:
    messages = random_messages(size, num_lines, dtype=dtype, device=device)
    expected = all_reduce_ref(messages)
    sum_messages(messages, make_mailboxes(size, device))
    for message in messages:
        assert torch.equal(message, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_residual_takes_the_sum_and_is_rounded_once(dtype: torch.dtype, device: str) -> None:
    messages, mailboxes = random_messages(2, 70, dtype=dtype, device=device), make_mailboxes(2, device)
    residual = torch.randint(-8, 8, messages[0].shape, generator=torch.Generator().manual_seed(5))
    before, kept = residual.to(device, dtype) * 4, messages[0].clone()
    residuals = [before.clone(), before.clone()]
    for message, mailbox in zip(messages, mailboxes, strict=True):
        push(message, mailbox, cut=CUT)
    for message, mailbox, after in zip(messages, mailboxes, residuals, strict=True):
        take_sum(message, mailbox, residual=after, cut=CUT)
    assert torch.equal(residuals[0], all_reduce_ref(messages, before))
    assert torch.equal(residuals[1], residuals[0])
    assert torch.equal(messages[0], kept)


def test_a_residual_of_another_shape_is_refused(device: str) -> None:
    message = torch.zeros(8, device=device)
    with pytest.raises(ValueError, match=r"a residual of \[16\] is not one of messages \[8\]"):
        take_sum(message, make_mailboxes(2, device)[0], residual=torch.zeros(16, device=device))


def test_turns_empty_what_they_took_and_may_differ_in_size(device: str) -> None:
    mailboxes = make_mailboxes(2, device)
    for turn, num_lines in enumerate((70, 20, 96, 1, 70)):
        messages = random_messages(2, num_lines, device=device, seed=turn)
        expected = all_reduce_ref(messages)
        sum_messages(messages, mailboxes, cut=Cut(num_lines=64 if turn == 3 else 32, num_warps=1))
        assert torch.equal(messages[0], expected)
        assert torch.equal(messages[1], expected)
    for mailbox in mailboxes:
        assert mailbox.turns_P[:4].tolist() == [5 % NUM_TURNS, 3 % NUM_TURNS, 3 % NUM_TURNS, 0]
        assert bool((mailbox.own_X == EMPTY_WORD).all())


def test_turns_do_not_grow_however_many_there_are(device: str) -> None:
    # A count of all sums so far would be negative after some hours, and so would the box.
    mailboxes = make_mailboxes(2, device)
    for turn in range(2 * NUM_TURNS):
        sum_messages(random_messages(2, 1, device=device), mailboxes)
        assert [int(mailbox.turns_P[0]) for mailbox in mailboxes] == [(turn + 1) % NUM_TURNS] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_squares_are_those_of_the_sum(dtype: torch.dtype, device: str) -> None:
    messages, mailboxes = [torch.randn(3, 192).to(device, dtype) for _ in range(2)], make_mailboxes(2, device)
    squares_RJ = torch.full((4, 6), CANARY, device=device)
    for message, mailbox in zip(messages, mailboxes, strict=True):
        push(message, mailbox, cut=CUT)
    take_sum(messages[0], mailboxes[0], squares_RJ=squares_RJ[:3], cut=CUT)
    torch.testing.assert_close(squares_RJ[:3], sum_squares_ref(messages[0]))
    assert squares_RJ[3].tolist() == [CANARY] * 6


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_may_be_ahead_of_each_other(size: int, device: str) -> None:
    random, mailboxes = Random(size), make_mailboxes(size, device)
    all_messages = [random_messages(size, 2, device=device, seed=turn) for turn in range(NUM_SUMS)]
    expected = [all_reduce_ref(messages) for messages in all_messages]
    num_pushed, num_taken = [0] * size, [0] * size
    while min(num_taken) < NUM_SUMS:
        # A rank pushes once its last turn has ended, and takes once all have pushed.
        ready = [
            rank
            for rank in range(size)
            if num_taken[rank] < min(num_pushed) or num_taken[rank] == num_pushed[rank] < NUM_SUMS
        ]
        rank = random.choice(ready)
        messages = all_messages[num_taken[rank]]
        if num_pushed[rank] == num_taken[rank]:
            push(messages[rank], mailboxes[rank], cut=CUT)
            num_pushed[rank] += 1
        else:
            take_sum(messages[rank], mailboxes[rank], cut=CUT)
            num_taken[rank] += 1
    for messages, total in zip(all_messages, expected, strict=True):
        assert all(torch.equal(message, total) for message in messages)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_looks_like_nothing_stays_nan(dtype: torch.dtype, device: str) -> None:
    messages = [torch.zeros(LINE_BYTES // dtype.itemsize, dtype=dtype, device=device) for _ in range(2)]
    messages[0].view(torch.int32)[1] = EMPTY_WORD
    mailboxes = make_mailboxes(2, device)
    push(messages[0], mailboxes[0], cut=CUT)
    assert int((mailboxes[1].own_X != EMPTY_WORD).sum()) == LINE_BYTES // 4
    sum_messages(messages, mailboxes)
    numbers = 4 // dtype.itemsize
    is_nan = [index // numbers == 1 for index in range(len(messages[0]))]
    assert messages[0].isnan().tolist() == messages[1].isnan().tolist() == is_nan


def test_what_lies_behind_a_message_stays(device: str) -> None:
    memory = [torch.full((16,), CANARY, device=device) for _ in range(2)]
    sum_messages([numbers[4:8] for numbers in memory], make_mailboxes(2, device))
    assert memory[0].tolist() == memory[1].tolist() == [CANARY] * 4 + [2 * CANARY] * 4 + [CANARY] * 8


def test_only_whole_lines_are_messages() -> None:
    numbers = torch.zeros(8)
    assert can_sum(numbers[:4])
    assert not any(map(can_sum, (numbers[:0], numbers[:3], numbers[1:5], numbers[::2], numbers[:4].half())))
    with pytest.raises(ValueError, match=r"12 bytes of torch\.float32 are no message"):
        push(numbers[:3], make_mailboxes(2, "cpu")[0])


def test_a_message_of_all_boxes_is_summed_and_a_larger_one_refused(device: str) -> None:
    mailboxes = make_mailboxes(2, device, most_bytes=4 * BOX_BYTES)
    assert mailboxes[0].most_bytes == 4 * BOX_BYTES
    cut, numbers = Cut(num_lines=BOX_LINES, num_warps=1), torch.ones(BOX_BYTES + 4, device=device)
    messages = [numbers[:-4].clone() for _ in mailboxes]
    sum_messages(messages, mailboxes, cut=cut)
    assert all(torch.equal(message, 2 * numbers[:-4]) for message in messages)
    with pytest.raises(ValueError, match="no message"):
        push(numbers, mailboxes[0], cut=cut)


@pytest.mark.parametrize("has_squares", [True, False])
def test_what_no_mailbox_holds_is_cut_with_all_that_belongs_to_it(has_squares: bool) -> None:
    x, residual = torch.randn(7, 64), torch.randn(7, 64)
    squares_RJ = sum_squares_ref(x) if has_squares else None
    pieces = _pieces(x, residual, squares_RJ, 3 * x[0].nbytes + LINE_BYTES)
    assert [len(piece) for piece, _, _ in pieces] == ([3, 3, 1] if has_squares else [196, 196, 56])
    for of_each, whole in zip(zip(*pieces, strict=True), (x, residual, squares_RJ), strict=True):
        if whole is None:
            assert of_each == (None,) * len(pieces)
        else:
            assert torch.equal(torch.cat(of_each).view(whole.shape), whole)
    assert _pieces(x, None, squares_RJ, x.nbytes) == [(x, None, squares_RJ)]


def test_every_size_has_a_cut_that_fits() -> None:
    for num_bytes in (LINE_BYTES, 2 << 10, 8 << 10, 100_000, 512 << 10, 1 << 20, 8 << 20):
        cut, num_boxes = choose_cut(num_bytes), max(num_bytes, 1 << 20) // BOX_BYTES
        assert num_bytes <= cut.num_lines * LINE_BYTES * num_boxes
        assert cut.num_lines <= BOX_LINES
