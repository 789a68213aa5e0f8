"""The Grafana dashboard's panels and what they ask for. Knows nothing about Grafana or Prometheus."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

DASHBOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "stepwire.json"
NEEDS_GPU = "(needs a GPU)"
"""In a panel's description: a CPU run has nothing to show there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel."""

    panel: str
    expression: str
    needs_gpu: bool

    @property
    def names(self) -> set[str]:
        """The names of the series that it reads."""
        return set(re.findall(r"\bstepwire_\w+", self.expression))


def queries() -> list[Query]:
    """Read all queries of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        Query(
            panel=panel["title"],
            expression=target["expr"],
            needs_gpu=NEEDS_GPU in panel.get("description", ""),
        )
        for panel in panels
        for target in panel.get("targets", ())
    ]
