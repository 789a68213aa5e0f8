"""Finds stop strings in text that comes in pieces; pure.

One Aho-Corasick automaton over all stop strings: each character costs the same however many there
are, and the state's depth is exactly how much of the text could still become a stop string, so
that much is held back and no more. The match that completes first wins; of those that complete at
the same character the longest, so that nothing of any of them is told. Knows nothing about tokens.

Source: Aho and Corasick, "Efficient string matching", 1975.
"""

from collections import deque


class StopAutomaton:
    """The states of a set of stop strings; state 0 is "nothing matched so far"."""

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        assert all(stop_strings), "a stop string is not empty"
        self._children: list[dict[str, int]] = [{}]
        self._fallback: list[int] = [0]
        self.depth: list[int] = [0]
        self.match_length: list[int] = [0]
        """Length of the longest stop string that ends in this state; 0 where none does."""
        for stop_string in stop_strings:
            self._insert(stop_string)
        self._link()
        self.first_characters = frozenset(self._children[0])

    def step(self, state: int, character: str) -> int:
        """Return the state after one more character."""
        while (child := self._children[state].get(character)) is None:
            if state == 0:
                return 0
            state = self._fallback[state]
        return child

    def extendable(self, state: int) -> int:
        """Return the deepest state at or behind ``state`` that more text could still complete."""
        while state and not self._children[state]:
            state = self._fallback[state]
        return state

    def _insert(self, stop_string: str) -> None:
        state = 0
        for character in stop_string:
            child = self._children[state].get(character)
            if child is None:
                child = len(self._children)
                self._children[state][character] = child
                self._children.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match_length.append(0)
            state = child
        self.match_length[state] = len(stop_string)

    def _link(self) -> None:
        """Set each state's fallback, breadth first: those of shorter text are set before."""
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._children[state].items():
                queue.append(child)
                fallback = self.step(self._fallback[state], character)
                self._fallback[child] = fallback
                self.match_length[child] = self.match_length[child] or self.match_length[fallback]


class StopStringMatcher:
    """One text stream in front of its stop strings."""

    def __init__(self, stop_strings: tuple[str, ...], *, includes_stop_string: bool = False) -> None:
        """Watch for ``stop_strings``; a matched one is told only where ``includes_stop_string``."""
        self._automaton = StopAutomaton(stop_strings)
        self._includes_stop_string = includes_stop_string
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        """The stop string that matched; nothing is pushed after it."""

    def push(self, text: str, *, counts: bool) -> str:
        """Take more text; return the part that can be told now.

        Args:
            text: What follows the text of the last call; may be empty.
            counts: Whether a match that completes in this text ends the stream (min_tokens).
        """
        assert self.matched is None, "text after a match"
        if self._state == 0 and self._automaton.first_characters.isdisjoint(text):
            return text
        whole = self._held + text
        state = self._state
        for index, character in enumerate(text, start=len(self._held)):
            state = self._automaton.step(state, character)
            length = self._automaton.match_length[state]
            if length and counts:
                return self._match(whole, index + 1 - length, index + 1)
        self._state = self._automaton.extendable(state)
        num_told = len(whole) - self._automaton.depth[self._state]
        self._held = whole[num_told:]
        return whole[:num_told]

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _match(self, whole: str, start: int, end: int) -> str:
        self.matched = whole[start:end]
        self._held, self._state = "", 0
        return whole[: end if self._includes_stop_string else start]
