"""Leases of different rows that take each other over still get on.

Found by the state machine: where a lease that was taken over before its first iteration ran none, two
requests, each left out of the other's lease, waited for ever.
"""

from scheduler_svc.core.types import CoreLimits
from tests.machines.core_driver import CoreDriver, make_checked_scheduler

LIMITS = CoreLimits(
    block_size=2,
    num_blocks=10,
    max_num_seqs=2,
    max_num_batched_tokens=2,
    max_model_len=9,
    max_num_waiting=8,
)


def test_two_leases_that_take_each_other_over_come_to_an_end() -> None:
    driver = CoreDriver(LIMITS, make_checked_scheduler)
    driver.add([1], max_tokens=8)
    driver.fill(depth=4, num_steps=8)  # its prompt, and a lease of all that follows
    driver.add([2], max_tokens=8)  # takes over, and is leased while the first seems to be at its end
    driver.drain(depth=4, num_steps=8)
    assert [len(tracked.output) for tracked in driver.requests.values()] == [8, 8]
