"""Asked-for flushes of the prefix caches: carried out once no request lives, or answered that some do.

Knows nothing about who asked, nor about time: who waits no longer cancels its answer.
"""

from scheduler_svc.engine.groups import WorkerGroups
from scheduler_svc.engine.values import FlushAsked


class Flushes:
    """The flushes that were asked for and are not answered."""

    def __init__(self) -> None:
        self._asked: list[FlushAsked] = []

    def ask(self, asked: FlushAsked) -> None:
        """Take in another one."""
        self._asked.append(asked)

    def settle(self, groups: WorkerGroups, *, num_live: int) -> None:
        """Flush and answer, if no request lives; else answer those that do not wait for that."""
        if not self._asked:
            return
        self._asked = [asked for asked in self._asked if not asked.answer.done()]
        if self._asked and not num_live:
            for group in groups:
                group.flush_prefix_cache()
        settled = [asked for asked in self._asked if not (num_live and asked.is_patient)]
        self._asked = [asked for asked in self._asked if num_live and asked.is_patient]
        for asked in settled:
            asked.answer.set_result(num_live)
