"""Runs steps with fused kernels on a GPU, as captured graphs wherever they are small.

Launching never waits for the device: inputs leave from a ring of staged buffers, tokens come back
through another. Knows nothing about steps, lanes' lengths or streams.
Legend: W int32 words.
"""

from collections.abc import Callable
from functools import partial

import torch

from kernels.step_times import mark_begin, mark_end, mark_untold_end
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.padding import choose_batch_size
from worker_svc.batch.step import Admission, Int32Array
from worker_svc.runner.cuda_graphs import CudaGraphs, OnProgress
from worker_svc.runner.decode_step import DecodeStep
from worker_svc.runner.interface import LaunchedStep
from worker_svc.runner.lane_admissions import LaneAdmissions
from worker_svc.runner.mixed_step import MixedStep
from worker_svc.runner.results import DeviceLogprobs, EmptyStep, ResultRing
from worker_svc.runner.step_parts import StepParts

NUM_STEPS_AHEAD = 1
NUM_RESULT_BUFFERS = 4


class FusedModelRunner:
    """A ModelRunner over StepParts.

    Args:
        parts: Of this rank.
        batch_sizes: To which decode steps are padded, ascending; the last is the most rows of a step.
        has_graphs: Whether decode steps are captured; otherwise their kernels are launched each time.
    """

    num_steps_ahead = NUM_STEPS_AHEAD

    def __init__(
        self,
        parts: StepParts,
        *,
        batch_sizes: tuple[int, ...],
        has_graphs: bool,
    ) -> None:
        self._parts = parts
        self._batch_sizes = batch_sizes
        self._admissions = LaneAdmissions(parts)
        self._told_2 = torch.zeros(2, dtype=torch.int64, device=parts.device)
        """As kernels.step_times has it."""
        self._decode = DecodeStep(parts, told_2=self._told_2)
        self._mixed = MixedStep(parts, self._admissions, has_graphs=has_graphs)
        self._results = ResultRing(NUM_RESULT_BUFFERS, parts.limits.max_num_seqs, device=parts.device)
        self._token_ids: dict[int, torch.Tensor] = {}
        """First rows of what the last step sampled, kept: slicing takes 2 us."""
        self._has_clock = parts.device.type == "cuda"
        self._graphs: CudaGraphs[tuple[int, SamplingFlavour]] | None = None
        """By batch size and flavour."""
        if has_graphs:
            self._graphs = CudaGraphs(lambda key: self._decode.launch(*key), device=parts.device)

    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> LaunchedStep:
        """Queue the step on the device; see ModelRunner.

        What is common, a decode step that was captured, goes without inference mode: it takes 4 us to
        enter, and two copies need none.
        """
        if batch.is_decode:
            num_rows = choose_batch_size(batch.num_rows, self._batch_sizes)
            if len(batch.appends) <= num_rows:
                if admissions:
                    self._begin()
                    self._admit(admissions)
                return self._launch_decode(batch, num_rows)
        return self._launch_mixed(batch, admissions)

    @torch.inference_mode()
    def _admit(self, admissions: tuple[Admission, ...]) -> None:
        self._admissions.write(admissions)

    @torch.inference_mode()
    def _launch_mixed(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> LaunchedStep:
        if batch.num_rows:
            # Not where lanes are only released: until the next step has rows the device has nothing to do.
            self._begin()
        self._parts.tables.append(batch.appends)
        if batch.num_rows == 0:
            self._admissions.write(admissions)
            return EmptyStep()
        num_sampling = self._mixed.launch(batch, admissions)
        if num_sampling == 0:
            if self._has_clock:
                mark_untold_end(self._told_2)
            return EmptyStep()
        is_full = batch.sampling_flavour == SamplingFlavour.FULL
        counts = batch.sampling_logprobs_plus_one if is_full else None
        return self._download(num_sampling, counts)

    @torch.inference_mode()
    def capture(self, flavours: tuple[SamplingFlavour, ...], on_progress: OnProgress | None = None) -> None:
        """Capture steps of all sizes now; decode steps of other flavours when they first come."""
        flavours = tuple(dict.fromkeys(self._parts.sampler.flavours[flavour] for flavour in flavours))
        captures: list[Callable[[], None]] = [
            partial(self._capture, num_rows, flavour)
            for flavour in flavours
            for num_rows in reversed(self._batch_sizes)
        ]
        captures += self._mixed.captures(flavours)
        for num_captured, capture in enumerate(captures, start=1):
            capture()
            if on_progress is not None:
                on_progress(num_captured, len(captures))

    def _launch_decode(self, batch: InputBatch, num_rows: int) -> LaunchedStep:
        flavour = self._parts.sampler.flavours[batch.flavour]
        if self._graphs is not None and (num_rows, flavour) not in self._graphs:
            self._capture(num_rows, flavour)
        result = self._results.take()
        self._decode.stage(num_rows, batch, told_address=result.address)
        if self._graphs is None:
            with torch.inference_mode():
                self._decode.launch(num_rows, flavour)
        else:
            self._graphs.replay((num_rows, flavour))
        self._decode.launched()
        counts = batch.num_logprobs_plus_one if flavour == SamplingFlavour.FULL else None
        logprobs = self._logprobs(batch.num_rows, counts)
        return self._results.close(result, logprobs, num_rows=batch.num_rows)

    @torch.inference_mode()
    def _capture(self, num_rows: int, flavour: SamplingFlavour) -> None:
        assert self._graphs is not None, "there are no graphs to capture"
        # Capturing runs the step once: padding alone changes nothing.
        self._decode.stage(num_rows, None)
        self._graphs.capture((num_rows, flavour))
        self._decode.launched()

    def _download(self, num_rows: int, counts: Int32Array | None) -> LaunchedStep:
        """Queue the copy of the tokens, and of the log-probabilities where they were computed and asked."""
        logprobs, result = self._logprobs(num_rows, counts), self._results.take()
        if self._has_clock:
            mark_end(self._told_2, result.tensor_R)
        # Copying up to a captured size keeps the number of slices small.
        size = choose_batch_size(num_rows, self._batch_sizes)
        if size not in self._token_ids:
            self._token_ids[size] = self._parts.token_ids_R[:size]
        return self._results.download(self._token_ids[size], logprobs, num_rows=num_rows, into=result)

    def _logprobs(self, num_rows: int, counts: Int32Array | None) -> DeviceLogprobs | None:
        if counts is None or not counts.any():
            return None
        sampler = self._parts.sampler
        return DeviceLogprobs(
            counts=counts,
            token_ids_RK=sampler.logprob_ids_RK[:num_rows],
            values_RK=sampler.logprobs_RK[:num_rows],
        )

    def _begin(self) -> None:
        """Tell when the step begins; begin_step tells it of decode steps."""
        if self._has_clock:
            mark_begin(self._told_2)
