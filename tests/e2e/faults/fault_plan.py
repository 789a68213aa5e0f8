"""Draws what happens in one fault run from its seed: who asks what and how, which faults come and when.

Times are numbers of tokens that all requests together were told (progress.py), so that a seed means the
same on any machine. Pure: knows nothing about processes or channels.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tests.e2e.faults.cases import Expected
from tests.e2e.faults.verdicts import Manner
from tools.link_proxy import Direction

MIN_BULK, MAX_BULK = 3, 6
STORM_SIZE = 30
_MAX_WORKERS_LOST = 2
"""In one run: a request that has lost three may be given up."""


class FaultKind(Enum):
    """What is done to a part, from killing it to making it slow."""

    KILL_WORKER = "worker killed"
    HANG_WORKER = "worker stopped until noticed, killed"
    THAW_WORKER = "worker stopped until noticed, goes on"
    FREEZE_WORKER = "worker stopped for a moment"
    KILL_ENGINE = "engine killed"
    HANG_ENGINE = "engine stopped, killed"
    FREEZE_ENGINE = "engine stopped for a moment"
    KILL_FRONTEND = "front end killed"
    HANG_FRONTEND = "front end stopped, killed"
    FREEZE_FRONTEND = "front end stopped for a moment"
    CUT_STEPS = "steps' link cut"
    CUT_IN_STEP = "steps' link cut inside a message"
    STALL_STEPS = "steps' link stalled for a moment"
    LOSE_STEPS = "steps' link stalled until noticed"
    DELAY_STEPS = "steps' link delayed"
    CUT_CLIENTS = "clients' link cut"
    CUT_IN_REPLY = "clients' link cut inside a message"
    STALL_CLIENTS = "clients' link stalled for a moment"
    DELAY_CLIENTS = "clients' link delayed"
    DEADLINE_STORM = "deadline storm"
    CANCEL_STORM = "cancel storm"


STORMS = {FaultKind.DEADLINE_STORM: Manner.DEADLINE, FaultKind.CANCEL_STORM: Manner.CANCEL}
ON_WORKERS = frozenset(
    {FaultKind.KILL_WORKER, FaultKind.HANG_WORKER, FaultKind.THAW_WORKER, FaultKind.FREEZE_WORKER}
)
ON_PARTS = frozenset(
    {
        FaultKind.KILL_ENGINE,
        FaultKind.HANG_ENGINE,
        FaultKind.FREEZE_ENGINE,
        FaultKind.KILL_FRONTEND,
        FaultKind.HANG_FRONTEND,
        FaultKind.FREEZE_FRONTEND,
    }
)
LOSES_A_WORKER = frozenset(
    {
        FaultKind.KILL_WORKER,
        FaultKind.HANG_WORKER,
        FaultKind.THAW_WORKER,
        FaultKind.CUT_STEPS,
        FaultKind.CUT_IN_STEP,
        FaultKind.LOSE_STEPS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: what, when, to which of its kind, for how long."""

    kind: FaultKind
    at_tokens: int
    which: int
    seconds: float
    num_bytes: int
    direction: Direction

    def describe(self) -> str:
        """Say in a line what it is."""
        return f"{self.kind.value} ({self.which}) at {self.at_tokens} tokens, {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One call: which cases, how, and when."""

    manner: Manner
    cases: tuple[int, ...]
    at_tokens: int
    num_deltas: int
    """After which a client that leaves does."""
    num_tokens: int
    """Of all requests, which a slow reader waits for."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """All that happens in a run."""

    seed: int
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]


def draw_plan(
    seed: int,
    expected: Sequence[Expected],
    *,
    kinds: Sequence[FaultKind] = tuple(FaultKind),
    num_faults: int | None = None,
) -> FaultPlan:
    """Draw a run's plan.

    Args:
        seed: of this run alone.
        expected: what each case is to be told.
        kinds: the faults to draw from.
        num_faults: how many; None: drawn, 1 to 3.
    """
    rng = random.Random(seed)
    asks = [_draw_ask(rng, manner, len(expected)) for manner in rng.choices(list(Manner), k=9)]
    # Some stream at once that goes on to its end, so that there is something to hurt.
    asks.insert(0, _draw_ask(rng, rng.choice([Manner.STREAM, Manner.RAW, Manner.BULK]), len(expected)))
    num_tokens = sum(len(expected[case].token_ids) for ask in asks for case in ask.cases)
    asks = [asks[0], *(_when(rng, ask, num_tokens) for ask in asks[1:])]
    faults = _draw_faults(rng, kinds, num_tokens)[:num_faults]
    for fault in faults:
        if fault.kind in STORMS:
            asks += [
                _storm_ask(rng, STORMS[fault.kind], len(expected), fault.at_tokens) for _ in range(STORM_SIZE)
            ]
    return FaultPlan(seed=seed, asks=tuple(asks), faults=faults)


def _draw_ask(rng: random.Random, manner: Manner, num_cases: int) -> Ask:
    num_requests = rng.randint(MIN_BULK, MAX_BULK) if manner is Manner.BULK else 1
    return Ask(
        manner=manner,
        cases=tuple(rng.sample(range(num_cases), num_requests)),
        at_tokens=0,
        num_deltas=rng.choice([0, 1, 3, 10, 30]),
        num_tokens=0,
        timeout_seconds=rng.choice([0.005, 0.05, 0.2, 0.5, 1.0]),
    )


def _when(rng: random.Random, ask: Ask, num_tokens: int) -> Ask:
    """Have half of the requests come at once, the others later."""
    at_tokens = rng.choice([0, rng.randrange(num_tokens // 2)])
    return Ask(
        manner=ask.manner,
        cases=ask.cases,
        at_tokens=at_tokens,
        num_deltas=ask.num_deltas,
        num_tokens=rng.randrange(num_tokens),
        timeout_seconds=ask.timeout_seconds,
    )


def _storm_ask(rng: random.Random, manner: Manner, num_cases: int, at_tokens: int) -> Ask:
    return Ask(
        manner=manner,
        cases=(rng.randrange(num_cases),),
        at_tokens=at_tokens,
        num_deltas=rng.randint(0, 2),
        num_tokens=0,
        timeout_seconds=rng.uniform(0.001, 0.1),
    )


def _draw_faults(rng: random.Random, kinds: Sequence[FaultKind], num_tokens: int) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        num_lost = sum(fault.kind in LOSES_A_WORKER for fault in faults)
        possible = [
            kind for kind in kinds if num_lost < _MAX_WORKERS_LOST or kind not in LOSES_A_WORKER
        ] or list(kinds)
        faults.append(
            Fault(
                kind=rng.choice(possible),
                at_tokens=rng.choice([0, *(rng.randrange(num_tokens) for _ in range(4))]),
                which=rng.randrange(2),
                seconds=rng.uniform(0.1, 0.6),
                num_bytes=rng.randrange(2000),
                direction=rng.choice(list(Direction)),
            )
        )
    return tuple(faults)
