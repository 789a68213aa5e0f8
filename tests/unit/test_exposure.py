"""What the services say at start of who can reach them."""

from typing import Any

import pytest

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.exposure import exposure_lines
from worker_svc.config import WorkerConfig
from worker_svc.exposure import exposure_lines as worker_exposure_lines

TLS = {"tls_cert": "c", "tls_key": "k"}
NOBODY_ASKED = (
    "warning: whoever reaches 0.0.0.0:50051 can use it; "
    "--tenants-file asks for tokens, --tls-client-ca for certificates"
)
PLAIN = "warning: prompts, answers and tokens travel in plain text; --tls-cert encrypts them"
PLAIN_LINK = "warning: the link to worker gpu1:50061 is plain text; --worker-tls-ca encrypts it"
TAKEN_OVER = (
    "warning: whoever reaches 0.0.0.0:50061 can take the worker over; --tls-client-ca asks for certificates"
)
METRICS = "warning: whoever reaches 0.0.0.0 can read the metrics"
PLAIN_STEPS = "warning: token ids travel in plain text; --tls-cert encrypts them"


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["only this machine can connect: --host is 127.0.0.1"]),
        ({"host": "localhost"}, ["only this machine can connect: --host is localhost"]),
        ({"host": "[::1]"}, ["only this machine can connect: --host is [::1]"]),
        ({"host": "0.0.0.0"}, [NOBODY_ASKED, PLAIN]),
        ({"host": "0.0.0.0", "tenants_file": "t"}, [PLAIN]),
        ({"host": "0.0.0.0", **TLS}, [NOBODY_ASKED]),
        ({"host": "0.0.0.0", **TLS, "tls_client_ca": "a"}, []),
        ({"host": "0.0.0.0", **TLS, "tls_client_ca": "a", "metrics_port": 0}, [METRICS]),
        ({"host": "0.0.0.0", **TLS, "tenants_file": "t", "worker": ("gpu1:50061", "[::1]:1")}, [PLAIN_LINK]),
        ({"host": "llm.example", **TLS, "tenants_file": "t", "worker": ("g:1",), "worker_tls_ca": "a"}, []),
    ],
)
def test_the_scheduler_says_who_can_reach_it(options: dict[str, Any], lines: list[str]) -> None:
    assert list(exposure_lines(SchedulerConfig(model="m", **options))) == lines


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["only this machine can connect: --host is 127.0.0.1"]),
        ({"host": "0.0.0.0"}, [TAKEN_OVER, PLAIN_STEPS]),
        ({"host": "0.0.0.0", **TLS}, [TAKEN_OVER]),
        ({"host": "0.0.0.0", **TLS, "tls_client_ca": "a"}, []),
        ({"host": "0.0.0.0", **TLS, "tls_client_ca": "a", "metrics_port": 0}, [METRICS]),
    ],
)
def test_the_worker_says_who_can_reach_it(options: dict[str, Any], lines: list[str]) -> None:
    assert list(worker_exposure_lines(WorkerConfig(model="m", **options))) == lines
