"""Runs one plan: asks, inflicts, waits until all has ended and settled, judges every request.

Knows nothing about how a plan was drawn, or what a session does to be hurt or healed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from tests.e2e.faults import askers
from tests.e2e.faults.askers import Place
from tests.e2e.faults.cases import Case, Expected, base_cases, expected_of, stopped_cases
from tests.e2e.faults.fault_plan import Ask, Fault, FaultPlan
from tests.e2e.faults.fault_session import FaultSession
from tests.e2e.faults.inflict import inflict
from tests.e2e.faults.progress import Progress
from tests.e2e.faults.raw_asker import ask_raw
from tests.e2e.faults.tally import Tally
from tests.e2e.faults.verdicts import Manner, Told, judge

RUN_LIMIT_SECONDS = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All cases, and what each must be told."""

    cases: tuple[Case, ...]
    expected: tuple[Expected, ...]


async def read_catalogue(session: FaultSession) -> Catalogue:
    """Ask an undisturbed server for every case, and check what the cases say of each other."""
    base = base_cases()
    base_expected = await _undisturbed(session, base)
    stopped = stopped_cases(base, base_expected)
    stopped_expected = await _undisturbed(session, stopped)
    for case, expected in zip(stopped, stopped_expected, strict=True):
        whole = base_expected[[one.prompt for one in base].index(case.prompt)]
        num_tokens = len(expected.token_ids)
        assert 0 < num_tokens < len(whole.token_ids), "it ends early"
        assert expected.token_ids == whole.token_ids[:num_tokens]
        assert whole.text.startswith(expected.text)
        assert expected.matched_stop in (case.options.get("stop") or case.options["stop_token_ids"])
    return Catalogue(cases=(*base, *stopped), expected=(*base_expected, *stopped_expected))


async def _undisturbed(session: FaultSession, cases: Sequence[Case]) -> tuple[Expected, ...]:
    place = Place(address=session.address, progress=Progress(), catalogue=cases)
    tolds = [Told(manner=Manner.STREAM, case=index) for index in range(len(cases))]
    await asyncio.gather(*(askers.ask_stream(place, told) for told in tolds))
    return tuple(expected_of(told.events) for told in tolds)


async def _expected_with_seed(session: FaultSession, case: Case, seed: int) -> Expected:
    (expected,) = await _undisturbed(session, [replace(case, options={**case.options, "seed": seed})])
    return expected


async def run_plan(session: FaultSession, catalogue: Catalogue, plan: FaultPlan, tally: Tally) -> list[str]:
    """Run a plan; count in ``tally`` what happened; return all that is wrong."""
    progress = Progress()
    place = Place(address=session.clients_link.address, progress=progress, catalogue=catalogue.cases)
    tolds = [[Told(manner=ask.manner, case=case) for case in ask.cases] for ask in plan.asks]
    asking = [_ask(place, ask, told) for ask, told in zip(plan.asks, tolds, strict=True)]
    tasks = [
        asyncio.create_task(one)
        for one in (*asking, *(_inflict_when_due(session, fault, progress) for fault in plan.faults))
    ]
    done, late = await asyncio.wait(tasks, timeout=RUN_LIMIT_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    problems = [f"{len(late)} tasks did not end"] if late else []
    problems += [problem for task in done for problem in task.result() or ()]
    problems += await session.settle()
    num_epochs_lost = session.num_epochs_lost
    for told in (one for together in tolds for one in together):
        expected = catalogue.expected[told.case]
        if told.seed is not None:
            expected = await _expected_with_seed(session, catalogue.cases[told.case], told.seed)
        verdict, wrong = judge(told, expected, num_epochs_lost=num_epochs_lost)
        tally.count(told, verdict)
        problems += [f"{told.manner.value}, case {told.case}: {problem}" for problem in wrong]
    tally.count_run(plan, num_epochs_lost=num_epochs_lost)
    return problems


async def _inflict_when_due(session: FaultSession, fault: Fault, progress: Progress) -> list[str]:
    await progress.reach(fault.at_tokens)
    return await inflict(session, fault)


async def _ask(place: Place, ask: Ask, tolds: list[Told]) -> list[str]:
    await place.progress.reach(ask.at_tokens)
    with place.progress.moving():
        await _ASKERS[ask.manner](place, ask, tolds)
    return []


Asker = Callable[[Place, Ask, list[Told]], Awaitable[None]]
_ASKERS: dict[Manner, Asker] = {
    Manner.STREAM: lambda place, _, tolds: askers.ask_stream(place, tolds[0]),
    Manner.THREAD: lambda place, _, tolds: askers.ask_in_thread(place, tolds[0]),
    Manner.SLOW: lambda place, ask, tolds: askers.ask_slowly(place, tolds[0], num_tokens=ask.num_tokens),
    Manner.BULK: lambda place, _, tolds: askers.ask_bulk(place, tolds),
    Manner.RAW: lambda place, _, tolds: ask_raw(place, tolds[0]),
    Manner.DEADLINE: lambda place, ask, tolds: askers.ask_stream(
        place, tolds[0], timeout_seconds=ask.timeout_seconds
    ),
    Manner.DRAWN: lambda place, _, tolds: ask_raw(place, tolds[0], gives_seed=False),
    Manner.CANCEL: lambda place, ask, tolds: askers.ask_and_cancel(
        place, tolds[0], num_deltas=ask.num_deltas
    ),
    Manner.ABORT: lambda place, ask, tolds: askers.ask_and_abort(place, tolds[0], num_deltas=ask.num_deltas),
    Manner.VANISH: lambda place, ask, tolds: askers.ask_and_vanish(
        place, tolds[0], num_deltas=ask.num_deltas
    ),
}
