"""Samples behind a step with prefill rows, whichever way that was launched: one replay for the host.

It reads the rows' hidden states and its own inputs where every such step leaves them, so that one captured
graph for each padded number of rows serves steps of any number of tokens. Padding rows write nothing. Knows
nothing about prompts.
Legend: R sampling rows, padding included; S sampling rows that inputs have room for.
"""

import torch

from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.mixed_layout import sampling_row_counts
from worker_svc.batch.padding import choose_batch_size
from worker_svc.runner.cuda_graphs import CudaGraphs
from worker_svc.runner.device_sampler import SampledRows
from worker_svc.runner.step_parts import StepParts

Uploaded = dict[str, torch.Tensor]
Key = tuple[int, SamplingFlavour]
"""Padded number of rows, and flavour."""


class MixedSampling:
    """Sampling of any number of rows, over one memory."""

    def __init__(self, parts: StepParts, *, has_graphs: bool) -> None:
        self._parts = parts
        self._row_counts = sampling_row_counts(parts.limits.max_num_seqs)
        self._uploaded: Uploaded = {}
        self._graphs: CudaGraphs[Key] | None = None
        if has_graphs:
            self._graphs = CudaGraphs(lambda key: self._launch(*key), device=parts.device)

    def launch(self, uploaded: Uploaded, *, num_rows: int, flavour: SamplingFlavour) -> None:
        """Queue the sampling of a step; tokens go to the pool and the parts.

        Args:
            uploaded: sampling_lanes and last_positions, (S,) each: the same memory in every step.
            num_rows: How many of them sample.
            flavour: Of the most demanding one.
        """
        key = (choose_batch_size(num_rows, self._row_counts), self._parts.sampler.flavours[flavour])
        if self._graphs is None:
            self._uploaded = uploaded
            self._launch(*key)
            return
        if key not in self._graphs:
            self.capture(key, uploaded)
        self._graphs.replay(key)

    def keys(self, flavours: tuple[SamplingFlavour, ...]) -> list[Key]:
        """List what there is to capture for steps of these flavours, as the parts' sampler launches them."""
        if self._graphs is None:
            return []
        return [(num_rows, flavour) for flavour in flavours for num_rows in reversed(self._row_counts)]

    def capture(self, key: Key, uploaded: Uploaded) -> None:
        """Capture the sampling of such steps. It runs once: rows draw then what they will draw again."""
        assert self._graphs is not None, "there are no graphs to capture"
        self._uploaded = uploaded
        self._graphs.capture(key)

    def _launch(self, num_rows: int, flavour: SamplingFlavour) -> None:
        parts, inputs = self._parts, {name: rows[:num_rows] for name, rows in self._uploaded.items()}
        logits_RV = parts.logits_RV[:num_rows]
        parts.decoder.compute_logits(parts.decoder.hidden_memory[:num_rows], logits_RV)
        rows = SampledRows(
            lanes_R=inputs["sampling_lanes"],
            positions_R=inputs["last_positions"],
            out_R=parts.token_ids_R[:num_rows],
        )
        parts.sampler.sample(logits_RV, rows, flavour=flavour)
