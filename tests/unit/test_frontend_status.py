"""The status table: every class of the exception tree has its row."""

import grpc
import pytest

from scheduler_svc import errors
from scheduler_svc.frontend.status import STATUS_OF_ERROR, hints_of, is_expected, retry_after_ms, status_of

TREE = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.StepwireError)
]


def test_every_class_of_the_tree_has_a_row() -> None:
    assert set(TREE) == set(STATUS_OF_ERROR)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.DuplicateRequestError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.UnknownRequestError("x"), grpc.StatusCode.NOT_FOUND),
        (errors.QueueFullError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.SlowConsumerError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.DeadlineError("x"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.DrainingError("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.WorkerUnavailableError("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.RequestInterruptedError("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.ModelMismatchError("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.ModelFolderError("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.EventsGoneError("x"), grpc.StatusCode.OUT_OF_RANGE),
        (errors.UnsupportedError("x"), grpc.StatusCode.UNIMPLEMENTED),
        (errors.InternalError("x"), grpc.StatusCode.INTERNAL),
        (errors.StepwireError("x"), grpc.StatusCode.INTERNAL),
    ],
)
def test_codes(error: errors.StepwireError, code: grpc.StatusCode) -> None:
    assert status_of(error) == (code, "x")


def test_an_unexpected_error_tells_no_details() -> None:
    code, message = status_of(KeyError("secret"))
    assert code == grpc.StatusCode.INTERNAL
    assert message == "internal error: the server's log has the details"
    assert not is_expected(KeyError("secret"))


def test_our_own_faults_are_worth_a_traceback() -> None:
    assert not is_expected(errors.InternalError("x"))
    assert is_expected(errors.InvalidRequestError("x"))


def test_a_long_message_keeps_its_ends() -> None:
    _, message = status_of(errors.InvalidRequestError("field " + "x" * 10_000 + " limit"))
    assert message == "field " + "x" * 244 + " ... " + "x" * 244 + " limit"


def test_what_passes_by_itself_says_when_to_try_again() -> None:
    assert hints_of(errors.QueueFullError("x")) == (("retry-after-ms", "1000"),)
    assert {kind for kind in TREE if retry_after_ms(kind("x"))} == {
        errors.QueueFullError,
        errors.DrainingError,
        errors.WorkerUnavailableError,
        errors.RequestInterruptedError,
    }
    assert hints_of(errors.InternalError("x")) == hints_of(KeyError("x")) == ()


def test_an_interrupted_request_says_where_to_go_on() -> None:
    error = errors.RequestInterruptedError("x", seed=2**64 - 1, num_output_tokens=7)
    assert dict(hints_of(error)) == {
        "retry-after-ms": "100",
        "stepwire-resume-num-tokens": "7",
        "stepwire-resume-seed": "18446744073709551615",
    }
