"""Joins the ranks that torchrun started, for benchmarks that run the model without its service.

Knows nothing about what they run. A worker's own ranks join in worker_svc/tp/join.py, and watch each other.
"""

import os

import torch
from torch import distributed

from worker_svc.__main__ import GPU_ENVIRONMENT
from worker_svc.tp.group import TpGroup, make_tp_group


def join_torchrun(device: str) -> TpGroup:
    """Return this rank's place; more than one rank are in the default process group then."""
    for name, value in GPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    group = make_tp_group(device, os.environ, parent_pid=os.getppid())
    if group.size > 1:
        if device == "cuda":
            torch.cuda.set_device(group.device)
        distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    return group
