"""Tells boards in Prometheus' text format over HTTP, with prometheus-client.

Reads the boards when it is asked and at no other time. Imported where there is a port to listen on
only: a service without one runs without the package. Knows nothing about what is counted.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from telemetry.board import Board
from telemetry.metric import Kind, Metric

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_PATHS = ("/", "/metrics", "/metrics/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A board, and labels that all of its series get."""

    board: Board
    labels: Mapping[str, str] = field(default_factory=dict)


class BoardCollector(Collector):
    """Reads boards; those of equal processes have the same metrics under other labels."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = tuple(places)

    def collect(self) -> Iterable[Family]:
        """Read all numbers."""
        families: dict[str, Family] = {}
        for place in self._places:
            for metric in place.board.metrics:
                if metric.name not in families:
                    families[metric.name] = _family(metric, tuple(place.labels))
                _add(families[metric.name], metric, place=place)
        return families.values()


@contextmanager
def metrics_server(places: Sequence[Place], *, host: str, port: int) -> Iterator[int]:
    """Answer scrapes at ``/metrics``, in threads of this process; yield the port.

    Raises:
        OSError: if the address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(BoardCollector(places))
    server, thread = start_http_server(port, addr=host, registry=registry)
    server.set_app(_refusing_other_paths(server.get_app()))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _refusing_other_paths(app: "WSGIApplication | None") -> "WSGIApplication":
    """Wrap the library's application, which answers every path: a mistyped one is to be noticed."""
    assert app is not None, "a server that was started has one"

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["PATH_INFO"] in _PATHS:
            return app(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"metrics are at /metrics\n"]

    return answer


def _family(metric: Metric, place_labels: tuple[str, ...]) -> Family:
    labels = (*place_labels, *metric.labels)
    match metric.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=labels)
        case Kind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=labels)


def _add(family: Family, metric: Metric, *, place: Place) -> None:
    for values in metric.series:
        label_values = (*place.labels.values(), *values)
        if isinstance(family, HistogramMetricFamily):
            buckets = place.board.buckets(metric.name, *values)
            bounds = map(floatToGoString, (*metric.buckets, math.inf))
            told = list(zip(bounds, accumulate(buckets.counts()), strict=True))
            family.add_metric(label_values, buckets=told, sum_value=buckets.sum)
        else:
            assert isinstance(family, (CounterMetricFamily, GaugeMetricFamily))
            family.add_metric(label_values, place.board.slot(metric.name, *values).value)
