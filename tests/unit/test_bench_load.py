"""What `stepwire bench` offers: cases, arrival times, shares of processes, flags."""

import hashlib

import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire_cli.bench.flags import BenchFlags, parse_length
from stepwire_cli.bench.jobs import JobOptions, make_jobs
from stepwire_cli.bench.load import Load, poisson_arrivals, split_concurrency, split_items
from stepwire_cli.bench.workload import CASES, LengthRange, fit_vocabulary, shaped, share_prefix
from stepwire_client import InvalidRequest

from benchmarks.workload import cases

SHAPES = {
    "nano256": (256, 142827, 133966),
    "bs1_128_512": (1, 128, 512),
    "bs8_128_512": (8, 1024, 4096),
    "bs32_128_512": (32, 4096, 16384),
    "bs1024_256_256": (1024, 262144, 262144),
    "prefill_64x1024": (64, 65536, 64),
    "prefill_1x4000": (1, 4000, 1),
}


def test_the_workload_is_the_published_one() -> None:
    made = cases()
    assert {
        name: (len(prompts), sum(map(len, prompts)), sum(num_outs))
        for name, (prompts, num_outs) in made.items()
    } == SHAPES
    digest = hashlib.sha256(repr(made["nano256"]).encode()).hexdigest()
    assert digest == "b4ef58e545028c958a5dba41b51bc2d2dc39e4e7c81bbff57ea94f23774ca269"


def test_poisson_arrivals_are_seeded_and_of_the_rate() -> None:
    arrivals = poisson_arrivals(10_000, 50.0, seed=1)
    assert arrivals == poisson_arrivals(10_000, 50.0, seed=1)
    assert arrivals != poisson_arrivals(10_000, 50.0, seed=2)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(200.0, rel=0.03)
    assert poisson_arrivals(2, 100.0, seed=1) == [value / 2 for value in poisson_arrivals(2, 50.0, seed=1)]


@pytest.mark.parametrize(
    ("concurrency", "num_processes", "expected"),
    [(8, 4, [2, 2, 2, 2]), (5, 3, [2, 2, 1]), (2, 3, [1, 1, 0]), (1, 1, [1])],
)
def test_concurrency_is_shared_out(concurrency: int, num_processes: int, expected: list[int]) -> None:
    assert split_concurrency(concurrency, num_processes) == expected


def test_items_are_dealt_out_to_processes_that_may_open_one() -> None:
    assert split_items([0, 1, 2, 3, 4], 2, concurrency=5) == [[0, 2, 4], [1, 3]]
    assert split_items([0, 1, 2], 3, concurrency=2) == [[0, 2], [1], []]
    assert split_items([], 2, concurrency=2) == [[], []]


def test_loads_say_what_they_are() -> None:
    labels = [load.label for load in (Load(), Load(concurrency=8), Load(rate_per_second=2.5))]
    assert labels == ["all at once", "8 at a time", "2.5 requests/s"]


def test_own_shapes_keep_to_their_ranges() -> None:
    ranges = {"num_in": LengthRange(low=3, high=9), "num_out": LengthRange(low=5, high=5)}
    prompts, num_outs = shaped(200, **ranges, seed=3)
    assert {len(prompt) for prompt in prompts} == set(range(3, 10))
    assert num_outs == [5] * 200
    assert (prompts, num_outs) == shaped(200, **ranges, seed=3)


def test_a_smaller_vocabulary_has_all_the_ids() -> None:
    case = ([[0, 5, 10_000]], [1])
    assert fit_vocabulary(case, 7) == ([[0, 5, 4]], [1])
    assert fit_vocabulary(case, 10_001) is case


def test_a_shared_prefix_changes_no_length() -> None:
    case = ([[1, 2], [3, 4, 5, 6], [7]], [1, 1, 1])
    assert share_prefix(case, 2) == ([[3, 4], [3, 4, 5, 6], [3]], [1, 1, 1])
    assert share_prefix(case, 0) == case


def test_jobs_are_requests_as_the_workload_says() -> None:
    jobs = make_jobs(
        [[1, 2], "hi"], [3, 4], options=JobOptions(temperature=0.5), round_id="r", arrivals=[0.0, 2.5]
    )
    requests = [service_pb.GenerateRequest.FromString(job.payload) for job in jobs]
    assert list(requests[0].token_ids.ids) == [1, 2]
    assert requests[1].text == "hi"
    assert [job.request_id for job in jobs] == ["r/0", "r/1"] == [item.request_id for item in requests]
    assert [item.cache_salt for item in requests] == ["r/0", "r/1"]
    assert [item.sampling.seed for item in requests] == [1, 2]
    assert [item.sampling.temperature for item in requests] == [0.5, 0.5]
    assert [(item.stop.max_tokens, item.stop.ignore_eos) for item in requests] == [(3, True), (4, True)]
    assert [(job.num_output_tokens, job.due_seconds) for job in jobs] == [(3, 0.0), (4, 2.5)]


def test_jobs_of_generate_many_and_with_shared_prefixes() -> None:
    options = JobOptions(temperature=0.0, is_many=True, has_shared_prefixes=True)
    (job,) = make_jobs([[1]], [3], options=options, round_id="r")
    request = service_pb.GenerateManyRequest.FromString(job.payload).generate
    assert (request.request_id, request.cache_salt, job.due_seconds) == ("r/0", "r", None)


@pytest.mark.parametrize(("text", "low", "high"), [("128", 128, 128), ("100:1024", 100, 1024), ("1:1", 1, 1)])
def test_lengths(text: str, low: int, high: int) -> None:
    assert parse_length("--input-tokens", text) == LengthRange(low=low, high=high)


@pytest.mark.parametrize("text", ["", "x", "0", "5:4", "5:", "1:2:3", "-1"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--input-tokens is '{text}', but must be"):
        parse_length("--input-tokens", text)


def test_flags_name_loads_and_cases() -> None:
    assert BenchFlags().loads() == [Load()]
    assert BenchFlags(rate=[1.0, 2.0]).loads() == [Load(rate_per_second=1.0), Load(rate_per_second=2.0)]
    assert BenchFlags(concurrency=[4]).loads() == [Load(concurrency=4)]
    assert BenchFlags(case=["bs1_128_512"]).cases(50_000) == {"bs1_128_512": CASES["bs1_128_512"]()}
    (name,) = BenchFlags(num_requests=2, input_tokens="3:4", output_tokens="5").cases(50_000)
    assert name == "2x3:4->5"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (BenchFlags(rate=[1.0], concurrency=[1]), "two kinds of load"),
        (BenchFlags(rate=[0.0]), "--rate is 0, but must be above 0"),
        (BenchFlags(rate=[float("nan")]), "--rate is nan, but must be above 0"),
        (BenchFlags(case=["nano"]), "--case is 'nano', but must be one of nano256, "),
        (BenchFlags(case=["nano256"], num_requests=3), "leave out --num-requests"),
    ],
)
def test_flags_that_do_not_fit_are_named(flags: BenchFlags, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        assert (flags.loads(), flags.cases(50_000)) == ([], {})


def test_warm_up_requests() -> None:
    assert BenchFlags().num_warm_up_requests(100) == 100
    assert BenchFlags(rate=[1.0]).num_warm_up_requests(100) == 16
    assert BenchFlags(warm_up=5).num_warm_up_requests(3) == 3
    assert BenchFlags(warm_up=0).num_warm_up_requests(100) == 0
