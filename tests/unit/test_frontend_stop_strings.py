"""Stop strings: found across borders, the earliest completed wins, no more held than must be."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.frontend.stop_strings import StopStringMatcher


def push_all(matcher: StopStringMatcher, pieces: list[str]) -> list[str]:
    """Push pieces up to the match; then flush if there was none."""
    told = []
    for piece in pieces:
        told.append(matcher.push(piece, counts=True))
        if matcher.matched is not None:
            return told
    return [*told, matcher.flush()]


def test_a_match_inside_one_piece_cuts_the_rest() -> None:
    matcher = StopStringMatcher(("END",))
    assert push_all(matcher, ["one END two"]) == ["one "]
    assert matcher.matched == "END"


def test_a_match_across_pieces_holds_exactly_what_could_still_match() -> None:
    matcher = StopStringMatcher(("END",))
    assert push_all(matcher, ["aE", "N", "D", "x"]) == ["a", "", ""]
    assert matcher.matched == "END"


def test_a_held_prefix_is_released_when_it_cannot_match_any_more() -> None:
    matcher = StopStringMatcher(("END",))
    assert push_all(matcher, ["aE", "N", "x"]) == ["a", "", "ENx", ""]
    assert matcher.matched is None


def test_a_held_prefix_is_released_at_the_end() -> None:
    assert push_all(StopStringMatcher(("END",)), ["aEN"]) == ["a", "EN"]


def test_only_the_longest_possible_prefix_is_held() -> None:
    # After "abab" only the last "ab" can still become "abc".
    matcher = StopStringMatcher(("abc",))
    assert push_all(matcher, ["ab", "ab", "c"]) == ["", "ab", ""]
    assert matcher.matched == "abc"


def test_a_repeating_stop_string_is_found_at_its_first_place() -> None:
    matcher = StopStringMatcher(("aab",))
    assert push_all(matcher, ["a", "a", "a", "b"]) == ["", "", "a", ""]
    assert matcher.matched == "aab"


def test_the_match_that_completes_first_wins_whatever_the_order() -> None:
    for stop_strings in (("lo wor", "ell"), ("ell", "lo wor")):
        matcher = StopStringMatcher(stop_strings)
        assert push_all(matcher, ["hello world"]) == ["h"]
        assert matcher.matched == "ell"


def test_a_stop_string_that_is_another_s_prefix_wins() -> None:
    matcher = StopStringMatcher(("abcd", "ab"))
    assert push_all(matcher, ["xabcd"]) == ["x"]
    assert matcher.matched == "ab"


def test_of_matches_that_complete_together_the_longest_is_taken() -> None:
    for stop_strings in (("bc", "abc"), ("abc", "bc")):
        matcher = StopStringMatcher(stop_strings)
        assert push_all(matcher, ["xab", "c"]) == ["x", ""]
        assert matcher.matched == "abc"


def test_a_short_match_inside_a_longer_candidate_is_found() -> None:
    matcher = StopStringMatcher(("abcde", "cx"))
    assert push_all(matcher, ["zabc", "x"]) == ["z", "ab"]
    assert matcher.matched == "cx"


def test_a_stop_string_that_ends_inside_a_longer_candidate_is_found() -> None:
    matcher = StopStringMatcher(("abcde", "bc"))
    assert push_all(matcher, ["zab", "cde"]) == ["z", "a"]
    assert matcher.matched == "bc"


def test_the_stop_string_is_told_where_asked() -> None:
    assert push_all(StopStringMatcher(("END",), includes_stop_string=True), ["aE", "NDx"]) == ["a", "END"]


def test_matches_before_min_tokens_do_not_count() -> None:
    matcher = StopStringMatcher(("ab",))
    assert matcher.push("ab", counts=False) == "ab"
    assert matcher.push("xa", counts=False) == "x"
    assert matcher.push("b", counts=True) == ""
    assert matcher.matched == "ab"


def test_an_ignored_match_still_holds_what_a_later_match_needs() -> None:
    matcher = StopStringMatcher(("aa",))
    assert matcher.push("aa", counts=False) == "a"
    assert matcher.push("a", counts=True) == ""
    assert matcher.matched == "aa"


def test_a_piece_that_holds_characters_beyond_ascii() -> None:
    matcher = StopStringMatcher(("。\n", "👩"))
    assert push_all(matcher, ["你好。", "再见", "👩"]) == ["你好", "。再见", ""]
    assert matcher.matched == "👩"


def naive(text: str, stop_strings: tuple[str, ...]) -> tuple[str, str | None]:
    """Try every end, then every start."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stop_strings:
                return text[:start], text[start:end]
    return text, None


@settings(max_examples=300)
@given(
    text=st.text("ab", max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=6),
    stop_strings=st.lists(st.text("ab", min_size=2, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_equals_a_naive_search_and_holds_no_more_than_needed(
    text: str, cuts: list[int], stop_strings: tuple[str, ...]
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    want_text, want_match = naive(text, stop_strings)
    matcher = StopStringMatcher(stop_strings)
    told = ""
    for piece, border in zip(pieces, borders[1:], strict=True):
        told += matcher.push(piece, counts=True)
        if matcher.matched is not None:
            break
        seen = text[:border]
        could_match = [
            length for stop in stop_strings for length in range(1, len(stop)) if seen.endswith(stop[:length])
        ]
        assert len(seen) - len(told) == max(could_match, default=0)
    else:
        told += matcher.flush()
    assert (told, matcher.matched) == (want_text, want_match)


def test_an_empty_stop_string_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        StopStringMatcher(("",))
