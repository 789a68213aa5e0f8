"""The text that is scraped, read with Prometheus' own parser."""

from urllib.error import HTTPError

import pytest

from telemetry.board import Board
from telemetry.exposition import Place, metrics_server
from telemetry.metric import counter, gauge, histogram
from tests.scraping import scrape_families

METRICS = (
    counter("stepwire_a_total", "A.", label="reason", values=("x", "y")),
    gauge("stepwire_b_ratio", "B."),
    histogram("stepwire_c_seconds", "C.", buckets=(0.1, 1.0)),
)


def scrape(*places: Place) -> dict[tuple[str, ...], float]:
    """Scrape over HTTP; return each sample by its name and label values, these in the order of labels."""
    with metrics_server(places, host="127.0.0.1", port=0) as port:
        families = scrape_families(f"http://127.0.0.1:{port}/metrics")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }


def test_places_of_one_kind_are_told_as_one_family_under_their_labels() -> None:
    boards = [Board(METRICS), Board(METRICS)]
    boards[0].slot("stepwire_a_total", "y").add(3)
    boards[1].slot("stepwire_b_ratio").set(0.25)
    for value in (0.05, 0.5, 0.6, 7.0):
        boards[1].buckets("stepwire_c_seconds").observe(value)
    samples = scrape(
        *(Place(board=board, labels={"frontend": str(index)}) for index, board in enumerate(boards))
    )
    assert samples["stepwire_a_total", "0", "y"] == 3
    assert samples["stepwire_a_total", "1", "y"] == 0
    assert samples["stepwire_b_ratio", "1"] == 0.25
    assert [samples["stepwire_c_seconds_bucket", "1", bound] for bound in ("0.1", "1.0", "+Inf")] == [1, 3, 4]
    assert samples["stepwire_c_seconds_count", "1"] == 4
    assert samples["stepwire_c_seconds_sum", "1"] == pytest.approx(8.15)
    assert samples["stepwire_c_seconds_count", "0"] == 0


def test_each_scrape_reads_anew_and_a_stop_frees_the_port() -> None:
    board = Board(METRICS)
    assert scrape(Place(board=board))["stepwire_a_total", "x"] == 0
    board.slot("stepwire_a_total", "x").add()
    assert scrape(Place(board=board))["stepwire_a_total", "x"] == 1


def test_an_address_that_is_taken_is_an_error() -> None:
    place = Place(board=Board(METRICS))
    with (
        metrics_server([place], host="127.0.0.1", port=0) as port,
        pytest.raises(OSError, match="in use"),
        metrics_server([place], host="127.0.0.1", port=port),
    ):
        raise AssertionError("never reached")


def test_other_paths_are_not_there() -> None:
    with metrics_server([Place(board=Board(METRICS))], host="127.0.0.1", port=0) as port:
        at_root = scrape_families(f"http://127.0.0.1:{port}/")
        with pytest.raises(HTTPError) as caught:
            scrape_families(f"http://127.0.0.1:{port}/nope")
        caught.value.close()
    assert set(at_root) == {"stepwire_a", "stepwire_b_ratio", "stepwire_c_seconds"}
    assert caught.value.code == 404
