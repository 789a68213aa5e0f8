"""What is told of an environment option that is none. Knows nothing about the options."""

import difflib
from collections.abc import Iterable


def describe_unknown(name: str, known: Iterable[str], *, prefix: str) -> str:
    """Say that the option is unknown, and which of the ``known`` ones it resembles, if any.

    All begin with ``prefix``, which would make any two of them resemble each other.
    """
    ends = sorted(other.removeprefix(prefix) for other in known)
    close = [prefix + end for end in difflib.get_close_matches(name.removeprefix(prefix), ends)]
    limit = f"be one of those that --help lists{', such as ' if close else ''}{' or '.join(close)}"
    return f"environment option {name} is unknown, but must {limit}"
