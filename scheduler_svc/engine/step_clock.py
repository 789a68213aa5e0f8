"""How long a step may take before its worker counts as lost: a multiple of what such steps usually take.

    limit of a step = max(least limit, 20 x the usual time of steps of its size)
    limit of the first step of its size in an epoch = the limit of first steps: kernels compile then

Steps are of one size when their numbers of tokens lie between the same powers of two, and both are, or
both are not, steps of decodes alone. Knows nothing about streams; the caller says how long steps took.
"""

from dataclasses import dataclass

from scheduler_svc.core.plan import StepPlan

_PATIENCE = 20.0
"""How many times the usual time a step may take."""
_NEWEST_SHARE = 0.1
"""Share of the newest step in the running mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """How patient the clock is."""

    least_seconds: float
    first_seconds: float


@dataclass(frozen=True, slots=True)
class StepSize:
    """What steps are compared by."""

    num_tokens_bits: int
    is_decode: bool


def size_of(plan: StepPlan) -> StepSize:
    """Tell how large a step is; of a lease, one iteration."""
    num_rows = len(plan.row_lanes)
    num_tokens = num_rows if plan.num_steps > 1 else int(plan.row_num_tokens.sum())
    return StepSize(num_tokens.bit_length(), num_tokens == num_rows)


class StepClock:
    """The usual step times of one worker epoch."""

    def __init__(self, limits: StepLimits) -> None:
        self._limits = limits
        self._usual_seconds: dict[StepSize, float] = {}
        """Running mean by size; 0 while only the first step has run, which says nothing of the others."""

    def note(self, size: StepSize, seconds: float) -> None:
        """Take in how long a step took."""
        usual = self._usual_seconds.get(size)
        if usual is None:
            self._usual_seconds[size] = 0.0
        elif usual == 0.0:
            self._usual_seconds[size] = seconds
        else:
            self._usual_seconds[size] = usual + _NEWEST_SHARE * (seconds - usual)

    def limit_seconds(self, size: StepSize) -> float:
        """Tell how long a step of this size may be the oldest in flight."""
        usual = self._usual_seconds.get(size)
        least_seconds = self._limits.least_seconds
        if usual is None:
            return max(least_seconds, self._limits.first_seconds)
        return max(least_seconds, _PATIENCE * usual)
