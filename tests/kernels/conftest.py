"""Where kernel tests run: Triton's interpreter on a machine without a GPU, else the GPU itself.

One thread: on shared cores more of them are slower, not faster.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch


def pytest_configure() -> None:
    """Choose the interpreter before anything imports triton, which asks when it is imported."""
    if torch.cuda.is_available():
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("a test or a module that it imports has imported triton before this point")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> Iterator[None]:
    if torch.cuda.is_available():
        yield
        return
    from tests.kernels.quick_interpreter import quicken  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as monkeypatch:
        quicken(monkeypatch)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device and a dtype that Triton kernels are tested with."""

    device: str
    dtype: torch.dtype
    tolerance: float
    """Relative and absolute: some roundings of the dtype to values of about 1."""


# The interpreter's bfloat16 arithmetic is wrong, so that dtype is tested on GPUs only.
PLACES = [
    pytest.param(Place(device="cpu", dtype=torch.float32, tolerance=1e-5), id="cpu-float32"),
    pytest.param(Place(device="cpu", dtype=torch.float16, tolerance=4e-3), id="cpu-float16"),
    pytest.param(
        Place(device="cuda", dtype=torch.float32, tolerance=1e-5), id="cuda-float32", marks=pytest.mark.gpu
    ),
    pytest.param(
        Place(device="cuda", dtype=torch.float16, tolerance=4e-3), id="cuda-float16", marks=pytest.mark.gpu
    ),
    pytest.param(
        Place(device="cuda", dtype=torch.bfloat16, tolerance=2e-2), id="cuda-bfloat16", marks=pytest.mark.gpu
    ),
]


ONE_PLACE = [param for param in PLACES if param.id != "cpu-float16"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Return each device and dtype in turn, as far as this machine has them."""
    return _if_there(request.param)


@pytest.fixture(params=ONE_PLACE)
def one_place(request: pytest.FixtureRequest) -> Place:
    """Return what ``place`` does, but one dtype on a CPU: for what does not hang on how inputs are read."""
    return _if_there(request.param)


def _if_there(place: Place) -> Place:
    has_gpu = torch.cuda.is_available()
    if (place.device == "cuda") != has_gpu:
        pytest.skip("the GPU runs these tests itself" if has_gpu else "there is no GPU")
    return place


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Return where a test of kernels that take no floats runs."""
    name: str = request.param
    if (name == "cuda") != torch.cuda.is_available():
        pytest.skip("kernels are interpreted where there is no GPU, and only there")
    return name
