"""Who is told what the prefix caches gain and lose. While that is nobody, the cores write nothing down.

Knows nothing about streams: a feed's reader writes them, and is cut off where it does not read.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler_svc.core.cache_events import CacheCleared, CacheEvent
from scheduler_svc.engine.groups import WorkerGroups
from scheduler_svc.engine.mailboxes import Outbox
from scheduler_svc.engine.values import CacheBatch


class CacheFeeds:
    """The feeds that are attached now."""

    def __init__(self, groups: WorkerGroups) -> None:
        self._groups = groups
        self._feeds: list[Outbox[CacheBatch]] = []
        self._num_batches: Counter[int] = Counter()
        """Told so far, by group."""

    @contextmanager
    def attached(self, feed: Outbox[CacheBatch]) -> Iterator[None]:
        """Feed an outbox inside the ``with`` block, first with the fact that it knows nothing yet."""
        if not self._feeds:
            self._keep(is_kept=True)
        self._feeds.append(feed)
        for index, _ in enumerate(self._groups):
            feed.put(self._batch(index, (CacheCleared(),)))
        try:
            yield
        finally:
            self._feeds.remove(feed)
            if not self._feeds:
                self._keep(is_kept=False)

    def publish(self) -> None:
        """Tell all feeds what happened since the last call."""
        if not self._feeds:
            return
        for index, group in enumerate(self._groups):
            events = group.take_cache_events()
            if not events:
                continue
            self._num_batches[index] += 1
            batch = self._batch(index, events)
            for feed in self._feeds:
                feed.put(batch)

    def _batch(self, group: int, events: tuple[CacheEvent, ...]) -> CacheBatch:
        return CacheBatch(group=group, sequence_number=self._num_batches[group], events=events)

    def _keep(self, *, is_kept: bool) -> None:
        for group in self._groups:
            group.keep_cache_events(is_kept=is_kept)
