"""The leases in flight that a step can still take over, and whether the next one has to.

A lease is open from its plan on until its last result, or until a later plan takes over. Knows nothing
about rows or blocks.
"""


class OpenLeases:
    """Step ids of the open leases of one epoch."""

    def __init__(self) -> None:
        self._step_ids: set[int] = set()
        self._must_end = False

    def __bool__(self) -> bool:
        """Tell whether any lease is open."""
        return bool(self._step_ids)

    @property
    def must_end(self) -> bool:
        """Whether something that happened asks the next plan to take over."""
        return self._must_end

    def add(self, step_id: int) -> None:
        """Note that a lease was planned."""
        self._step_ids.add(step_id)

    def ask_end(self) -> None:
        """Have the next plan take over, if a lease is open then."""
        self._must_end = bool(self._step_ids)

    def take_over(self) -> None:
        """Note that a plan takes over."""
        self._step_ids.clear()
        self._must_end = False

    def close(self, step_id: int) -> None:
        """Note a lease's last result; it may have been taken over before."""
        self._step_ids.discard(step_id)
        self._must_end &= bool(self._step_ids)
