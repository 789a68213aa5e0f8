"""Gathers the events of one generation into its completion.

Pure: knows nothing about channels, threads or event loops; both kinds of streams share it.
"""

from stepwire_client.errors import Internal, StepwireClientError, StreamNotFinished
from stepwire_client.results import Completion, Delta, FinalOutput


class OutputCollector:
    """All that one generation has told so far."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._deltas: list[Delta] = []
        self._final: FinalOutput | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the final message has come."""
        return self._final is not None

    def feed(self, event: Delta | FinalOutput | StepwireClientError | None) -> Delta | None:
        """Take one event in; return it where it is a delta; None is no event.

        Raises:
            StepwireClientError: the event itself where it is an error, Internal where it comes after the end.
        """
        if isinstance(event, StepwireClientError):
            raise event
        if self._final is not None:
            raise Internal(f"request {self.request_id!r}: the server sent more after the final message")
        if event is None:
            return None
        if isinstance(event, FinalOutput):
            self._final = event
            return None
        self._deltas.append(event)
        return event

    def end(self) -> None:
        """Check, when the stream has ended without an error, that the final message has come.

        Raises:
            Internal: if it has not.
        """
        if self._final is None:
            raise Internal(f"request {self.request_id!r}: the stream ended without a final message")

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(delta.text for delta in self._deltas)

    @property
    def final(self) -> FinalOutput:
        """The end.

        Raises:
            StreamNotFinished: if it has not come yet.
        """
        if self._final is None:
            raise StreamNotFinished(f"request {self.request_id!r} has not ended: read the stream first")
        return self._final

    def completion(self) -> Completion:
        """Join everything, after the end.

        Raises:
            StreamNotFinished: if the end has not come yet.
        """
        final = self.final
        return Completion(
            request_id=self.request_id,
            text=self.text,
            token_ids=tuple(token_id for delta in self._deltas for token_id in delta.token_ids),
            logprobs=tuple(position for delta in self._deltas for position in delta.logprobs),
            finish_reason=final.finish_reason,
            matched_stop=final.matched_stop,
            usage=final.usage,
            timings=final.timings,
        )
