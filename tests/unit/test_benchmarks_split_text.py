"""The text of benchmarks/split_cost.py: what the stand-in worker tells is what a client is told to expect."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from stepwire.worker.v1 import worker_service_pb2 as pb
from tokenizers import Tokenizer, decoders, models

from benchmarks.process_cost import read_cost
from benchmarks.split_text import Script
from tests.stand_in_lanes import StandInLanes, StandInLimits


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def row(num_tokens: int) -> dict[str, Any]:
    return {"row_lanes": int32(0), "row_num_tokens": int32(num_tokens), "row_samples": b"\x01"}


def tiny_script() -> Script:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return Script(tokenizer=tokenizer, token_ids=[0, 1, 2, 1, 0])


def test_a_slice_goes_around_the_end() -> None:
    assert tiny_script().slice_text(3, 4) == "baab"
    assert tiny_script().slice_text(5 * 10**9 + 1, 2) == "bc"


def test_the_stand_in_tells_the_script_from_seed_plus_position_on(tmp_path: Path) -> None:
    script = tiny_script()
    script.save(tmp_path / "script.npy")
    lanes = StandInLanes(StandInLimits(), script=np.load(tmp_path / "script.npy"))
    sampling = pb.LaneSampling(temperature=1, top_p=1, repetition_penalty=1, seed=2**31)
    admission = pb.Admission(
        lane=0,
        incarnation=1,
        token_ids=int32(7, 8, 9),
        num_prompt_tokens=3,
        block_ids=int32(1),
        max_total_tokens=6,
        sampling=sampling,
    )
    first = lanes.apply(pb.Step(step_id=1, admissions=[admission], **row(3)))
    second = lanes.apply(pb.Step(step_id=2, **row(1)))
    ids = np.frombuffer(first.token_ids + second.token_ids, "<i4").tolist()
    assert script.tokenizer.decode(ids) == script.slice_text(2**31 + 3, 2)
    assert ids == [script.token_ids[(2**31 + 3) % 5], script.token_ids[(2**31 + 4) % 5]]


def test_the_cost_of_this_process_is_read() -> None:
    cost = read_cost(os.getpid())
    times = os.times()
    assert 0 < cost.cpu_seconds <= times.user + times.system + 0.02
    assert cost.resident_mib > 10
