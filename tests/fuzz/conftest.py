"""How much each fuzz run throws, and what it is held to.

Knows nothing about services.
"""

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz.fuzz_calls import Amount

_SHORT = Amount(num_hostile=100, num_random=30)
_LONG = Amount(num_hostile=10_000, num_random=10_000)
_LONG_MARKS = (pytest.mark.long, pytest.mark.timeout(1800))


@pytest.fixture(params=[_SHORT, pytest.param(_LONG, marks=_LONG_MARKS)], ids=["short", "long"])
def amount(request: pytest.FixtureRequest) -> Amount:
    """Return how much is thrown: a little as part of `make test`, a lot as `make test-fuzz`."""
    given: Amount = request.param
    return given


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep only log records with a traceback, of which there must be none: each is a fault of ours.

    Each refusal is logged, too: some hundred thousand records would take up all memory.
    """

    def has_traceback(record: logging.LogRecord) -> bool:
        return bool(record.exc_info)

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(has_traceback)
    yield
    for handler in handlers:
        handler.removeFilter(has_traceback)
    assert caplog.text == ""
