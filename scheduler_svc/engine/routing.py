"""Which worker group a request goes to, of those that can take it.

    1. A group with fewer requests than lanes goes before one whose lanes are all spoken for: a cached
       prefix saves less than the wait for a lane costs.
    2. Of those, the one whose prefix cache saves the request most.
    3. Of those, the least loaded: requests it has, running or not, for each of its lanes.
    4. Of those, the first.

Pure: knows nothing about streams, cores or why a group cannot take a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker group that can take the request, as far as choosing goes."""

    group: int
    num_cached_tokens: int
    """Tokens of this request that its prefix cache would save."""
    num_requests: int
    """Requests that it has, running or not."""
    max_num_seqs: int


def choose_group(candidates: Sequence[Candidate]) -> int:
    """Choose one of ``candidates``, of which there is at least one; return its ``group``."""
    best = min(candidates, key=_rank)
    return best.group


def _rank(candidate: Candidate) -> tuple[bool, int, float, int]:
    load_ratio = candidate.num_requests / candidate.max_num_seqs
    return (load_ratio >= 1.0, -candidate.num_cached_tokens, load_ratio, candidate.group)
