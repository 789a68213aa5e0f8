"""One request's pipeline: tokens in, deltas out."""

from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.stop_strings import StopStringMatcher
from scheduler_svc.frontend.values import Delta, TokenLogprobs

PIECES = ["he", "llo", " wor", "ld", "\n\n", "€"]


class PieceDetokenizer:
    """Token i is PIECES[i]; 90 and 91 are the two halves of one character."""

    def __init__(self) -> None:
        self.is_half = False

    def push(self, token_id: int) -> str:
        if token_id == 90:
            self.is_half = True
            return ""
        if token_id == 91:
            self.is_half = False
            return "é"
        return PIECES[token_id]

    def push_all(self, token_ids: list[int]) -> str:
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        return "\ufffd" if self.is_half else ""


def make(
    *stop_strings: str, min_tokens: int = 0, silent: tuple[int, ...] = (), includes: bool = False
) -> Generation:
    matcher = StopStringMatcher(stop_strings, includes_stop_string=includes) if stop_strings else None
    return Generation(PieceDetokenizer(), matcher, min_tokens=min_tokens, silent_token_ids=frozenset(silent))


def delta(text: str, *token_ids: int) -> Delta:
    return Delta(text=text, token_ids=list(token_ids), logprobs=[])


def test_tokens_merge_into_one_delta() -> None:
    generation = make()
    assert generation.take() is None
    assert [generation.push(token_id) for token_id in (0, 1, 2)] == [False, False, False]
    assert generation.num_pending == 3
    assert generation.take() == delta("hello wor", 0, 1, 2)
    assert generation.take() is None
    assert generation.num_tokens == 3


def test_ids_flow_while_their_text_is_held() -> None:
    generation = make("world")
    generation.push(2)
    assert generation.take() == delta(" ", 2)
    generation.push(4)
    assert generation.take() == delta("wor\n\n", 4)


def test_ids_flow_while_a_character_is_incomplete() -> None:
    generation = make()
    generation.push(90)
    assert generation.take() == delta("", 90)
    generation.push(91)
    assert generation.take() == delta("é", 91)


def test_a_stop_string_ends_it_and_counts_the_completing_token() -> None:
    generation = make("world")
    assert [generation.push(token_id) for token_id in (0, 1, 2)] == [False, False, False]
    assert generation.push(3) is True
    assert generation.matched_stop_string == "world"
    assert generation.num_tokens == 4
    generation.close()
    assert generation.take() == delta("hello ", 0, 1, 2, 3)


def test_the_stop_string_is_told_where_asked() -> None:
    generation = make("o w", includes=True)
    generation.push(0)
    generation.push(1)
    assert generation.push(2) is True
    assert generation.take() == delta("hello w", 0, 1, 2)


def test_a_stop_string_counts_from_min_tokens_on() -> None:
    generation = make("ld", min_tokens=2)
    assert generation.push(3) is False
    assert generation.take() == delta("ld", 3)
    assert generation.push(3) is True
    assert generation.num_tokens == 2


def test_close_tells_held_text() -> None:
    generation = make("world")
    generation.push(2)
    generation.take()
    generation.close()
    assert generation.take() == delta("wor")


def test_close_tells_a_half_character() -> None:
    generation = make()
    generation.push(90)
    generation.close()
    assert generation.take() == delta("\ufffd", 90)


def test_a_stop_string_that_the_last_half_character_completes() -> None:
    generation = make("o\ufffd")
    generation.push(1)
    generation.push(90)
    generation.close()
    assert generation.matched_stop_string == "o\ufffd"
    assert generation.take() == delta("ll", 1, 90)


def test_a_stop_token_has_an_id_but_no_text() -> None:
    generation = make(silent=(4,))
    generation.push(0)
    generation.push(4)
    assert generation.take() == delta("he", 0, 4)


def test_logprobs_stay_with_their_tokens() -> None:
    generation = make()
    first = TokenLogprobs(token_ids=(0, 5), values=(-0.5, -0.25))
    second = TokenLogprobs(token_ids=(1,), values=(-1.0,))
    generation.push(0, first)
    generation.push(1, second)
    assert generation.num_pending == 2 + 3
    assert generation.take() == Delta(text="hello", token_ids=[0, 1], logprobs=[first, second])
    assert generation.num_pending == 0


def test_drop_forgets_what_waits() -> None:
    generation = make()
    generation.push(0)
    generation.drop()
    assert generation.take() is None
    assert generation.num_tokens == 1


def test_text_does_not_depend_on_how_many_tokens_are_taken_at_once() -> None:
    token_ids = [0, 1, 90, 91, 5, 2] * 200  # more than may wait as tokens
    whole, by_one, with_stop_string = make(), make(), make("no such text")
    text = ""
    for token_id in token_ids:
        assert not whole.push(token_id)
        assert not by_one.push(token_id)
        assert not with_stop_string.push(token_id)
        taken = by_one.take()
        assert taken is not None
        text += taken.text
    for generation in (whole, by_one, with_stop_string):
        generation.push(90)
        generation.close()
    deltas = [generation.take() for generation in (whole, by_one, with_stop_string)]
    assert all(delta is not None for delta in deltas)
    texts = [delta.text for delta in deltas if delta is not None]
    want = "helloé€ wor" * 200 + "\ufffd"
    assert (texts[0], text + texts[1], texts[2]) == (want, want, want)


def test_tokens_do_not_wait_by_the_thousand_to_become_text() -> None:
    num_at_once = list[int]()

    class Counting(PieceDetokenizer):
        def push_all(self, token_ids: list[int]) -> str:
            num_at_once.append(len(token_ids))
            return super().push_all(token_ids)

    generation = Generation(Counting(), None)
    for _ in range(1000):
        generation.push(0)
    taken = generation.take()
    assert taken is not None
    assert taken.text == "he" * 1000
    assert num_at_once == [256, 256, 256, 232]
