"""Counts what fault runs did and what came of it, and prints it as a table.

Pure: knows nothing about how faults are inflicted.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.e2e.faults.cases import token_ids_of
from tests.e2e.faults.fault_plan import FaultKind, FaultPlan
from tests.e2e.faults.verdicts import Manner, Told, Verdict


@dataclass(slots=True, kw_only=True)
class Tally:
    """Figures of many runs."""

    num_runs: int = 0
    num_epochs_lost: int = 0
    """Worker epochs that ended, as the engine that is there at a run's end counts."""
    num_tokens: int = 0
    """Told by requests that ended right, each compared."""
    num_resumes: int = 0
    """Streams that went on with another call; those inside GenerateMany are not counted."""
    num_refusals: int = 0
    faults: Counter[FaultKind] = field(default_factory=Counter)
    manners: Counter[Manner] = field(default_factory=Counter)
    verdicts: Counter[Verdict] = field(default_factory=Counter)

    def count(self, told: Told, verdict: Verdict) -> None:
        """Count a request."""
        self.manners[told.manner] += 1
        self.verdicts[verdict] += 1
        self.num_resumes += told.num_resumes
        self.num_refusals += told.num_refusals
        if verdict is not Verdict.LOST:
            self.num_tokens += len(token_ids_of(told.events))

    def count_run(self, plan: FaultPlan, *, num_epochs_lost: int) -> None:
        """Count a run."""
        self.num_runs += 1
        self.num_epochs_lost += num_epochs_lost
        self.faults.update(fault.kind for fault in plan.faults)

    def table(self) -> str:
        """Write the figures, a line each."""
        rows = [("runs", self.num_runs), ("faults", self.faults.total())]
        rows += [(f"  {kind.value}", self.faults[kind]) for kind in FaultKind]
        rows += [("requests", self.manners.total())]
        rows += [(f"  {manner.value}", self.manners[manner]) for manner in Manner]
        rows += [(verdict.value, self.verdicts[verdict]) for verdict in Verdict]
        rows += [
            ("tokens checked", self.num_tokens),
            ("streams resumed", self.num_resumes),
            ("requests asked again", self.num_refusals),
            ("worker epochs lost", self.num_epochs_lost),
        ]
        return "\n".join(f"{name:42} {count:>9,}" for name, count in rows)
