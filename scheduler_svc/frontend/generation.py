"""One request's way from tokens to output: detokenizer, then stop strings, then what is told.

Pure and synchronous: tokens are pushed in, what gathered is taken out. Token ids flow at once even
while their text is held back. Where no stop string is watched for, tokens become text when it is taken:
many at once cost a third. Knows nothing about streams, clocks or protobuf.
"""

from scheduler_svc.frontend.detokenizer import Detokenizer
from scheduler_svc.frontend.stop_strings import StopStringMatcher
from scheduler_svc.frontend.values import Delta, TokenLogprobs

_MAX_TEXTLESS = 256
"""Tokens that may wait to become text, so that no one call has to turn thousands."""


class Generation:
    """The output of one request."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        matcher: StopStringMatcher | None,
        *,
        min_tokens: int = 0,
        silent_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Start with no output.

        Args:
            detokenizer: Turns the tokens into text.
            matcher: Watches for stop strings; None where there are none.
            min_tokens: A stop string that completes before this many tokens does not count.
            silent_token_ids: Stop tokens, whose text is not told.
        """
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._silent_token_ids = silent_token_ids
        self._texts: list[str] = []
        self._textless_ids: list[int] = []
        """Tokens whose text comes after ``_texts``; always empty where a stop string is watched for."""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._num_logprob_entries = 0
        self.num_tokens = 0
        """Tokens generated so far; after a stop string, those up to the one that completed it."""

    @property
    def matched_stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.matched if self._matcher is not None else None

    @property
    def num_pending(self) -> int:
        """How much waits to be taken: tokens and log-probability entries."""
        return len(self._token_ids) + self._num_logprob_entries

    @property
    def has_output(self) -> bool:
        """Whether there is something to take."""
        return bool(self._token_ids or self._texts)

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Take one more token; return whether it completed a stop string: then it is the last."""
        self.num_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
            self._num_logprob_entries += len(logprobs.token_ids)
        if token_id in self._silent_token_ids:
            return False
        if self._matcher is not None:
            return self._tell(self._detokenizer.push(token_id))
        self._textless_ids.append(token_id)
        if len(self._textless_ids) >= _MAX_TEXTLESS:
            self._put_textless()
        return False

    def close(self) -> None:
        """Tell all text that is still held back; nothing follows."""
        if self.matched_stop_string is not None:
            return
        self._put_textless()
        is_matched = self._tell(self._detokenizer.flush())
        if self._matcher is not None and not is_matched:
            self.put_text(self._matcher.flush())

    def take(self) -> Delta | None:
        """Take out what gathered since the last call; None where there is nothing."""
        if not self.has_output:
            return None
        self._put_textless()
        delta = Delta(text="".join(self._texts), token_ids=self._token_ids, logprobs=self._logprobs)
        self.drop()
        return delta

    def put_text(self, text: str) -> None:
        """Have ``text`` told next, as it is."""
        if text:
            self._texts.append(text)

    def drop(self) -> None:
        """Forget what waits to be taken."""
        self._texts, self._textless_ids, self._token_ids, self._logprobs = [], [], [], []
        self._num_logprob_entries = 0

    def _put_textless(self) -> None:
        if self._textless_ids:
            self.put_text(self._detokenizer.push_all(self._textless_ids))
            self._textless_ids = []

    def _tell(self, text: str) -> bool:
        if not text:
            return False
        if self._matcher is not None:
            text = self._matcher.push(text, counts=self.num_tokens >= self._min_tokens)
        self.put_text(text)
        return self.matched_stop_string is not None
