"""Launches a step with prefill rows: rows of one token first, then the others.

The model's part is captured for each kind of step that captured_shapes.py tells, where the attention
backend allows; others are launched kernel by kernel. What samples behind it is captured by itself. Knows
nothing about lanes' lengths or requests.
Legend: T packed tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kernels.lane_step import LaneStep, PrefillRows
from kernels.prefill_tiles import (
    PrefillConfig,
    PrefillTiles,
    choose_prefill_config,
    prefill_tiles,
    tokens_per_tile,
)
from model.fused_step import ChosenTokens, FusedStep
from model.row_cut import cut_rows
from worker_svc.batch.admission_layout import AdmissionShape
from worker_svc.batch.captured_shapes import (
    CapturedKind,
    captured_kinds,
    captured_token_counts,
    choose_kind,
    padded_shape,
)
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.mixed_layout import (
    MixedShape,
    TileTokens,
    exact_shape,
    mixed_sizes,
    write_mixed,
    write_padding,
)
from worker_svc.batch.step import Admission
from worker_svc.runner.cuda_graphs import CudaGraphs
from worker_svc.runner.lane_admissions import LaneAdmissions
from worker_svc.runner.mixed_sampling import Key, MixedSampling, Uploaded
from worker_svc.runner.packed_upload import Arrays, RepeatedUpload
from worker_svc.runner.prepared_tokens import PreparedTokens
from worker_svc.runner.step_parts import StepParts


class PrefillConfigs(NamedTuple):
    """Launches of a step's prefill rows."""

    new: PrefillConfig
    """Of prompts that begin in the step."""
    old: PrefillConfig
    """Of those that have tokens from before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedInputs:
    """What a captured step reads."""

    shape: MixedShape
    admitted: AdmissionShape
    configs: PrefillConfigs
    upload: RepeatedUpload


def captured_counts(parts: StepParts) -> tuple[int, ...]:
    """List the padded numbers of tokens that steps are captured for, ascending.

    None that several ranks would cut: in a graph a kernel that waits for another rank's rows may come before
    the copy that the other one waits for.
    """
    if not parts.attention.captures_prefill:
        return ()
    config = parts.decoder.config
    head_weights = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    counts = captured_token_counts(
        parts.limits.max_num_batched_tokens,
        layer_weights=config.hidden_size * (head_weights + 3 * config.intermediate_size),
    )
    row_bytes = config.hidden_size * parts.logits_RV.itemsize
    return tuple(count for count in counts if not cut_rows(count, row_bytes, num_ranks=2))


class MixedStep:
    """Steps of any rows, over one memory."""

    def __init__(self, parts: StepParts, admissions: LaneAdmissions, *, has_graphs: bool) -> None:
        max_tokens, device = parts.limits.max_num_batched_tokens, parts.device
        self._parts = parts
        self._admissions = admissions
        self._most_admitted = admissions.most
        self._prepared = PreparedTokens.of(max_tokens, device)
        self._prepared_chosen = PreparedTokens.of(parts.limits.max_num_seqs, device)
        self._token_counts = captured_counts(parts) if has_graphs else ()
        self._kinds = captured_kinds(self._token_counts, max_num_seqs=parts.limits.max_num_seqs)
        self._graphs = CudaGraphs(self._launch_captured, device=device) if self._kinds else None
        self._inputs: dict[CapturedKind, CapturedInputs] = {}
        self._sampling = MixedSampling(parts, has_graphs=has_graphs)

    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> int:
        """Queue all kernels of the step; tokens go to the pool and the parts.

        Args:
            batch: The step, of some rows.
            admissions: Lanes that are put into the tables before.

        Returns:
            How many rows sample.
        """
        kind = choose_kind(batch, self._token_counts, max_num_seqs=self._parts.limits.max_num_seqs)
        if kind is None:
            on_device = self._launch_eager(batch, admissions)
        else:
            on_device = self._replay(kind, batch, admissions=admissions)
        num_sampling = len(batch.sampling_places.lanes)
        if num_sampling:
            self._sampling.launch(on_device, num_rows=num_sampling, flavour=batch.sampling_flavour)
        return num_sampling

    def captures(self, flavours: tuple[SamplingFlavour, ...]) -> list[Callable[[], None]]:
        """List what captures every kind of step, and the sampling of these flavours."""
        sampling = [partial(self._capture_sampling, key) for key in self._sampling.keys(flavours)]
        return [*sampling, *(partial(self._capture, kind) for kind in reversed(self._kinds))]

    def _capture_sampling(self, key: Key) -> None:
        self._sampling.capture(key, self._upload_padding(self._padded_shape(CapturedKind(1, 1, False))))

    def _capture(self, kind: CapturedKind) -> None:
        """Capture such a step; running it once, as that takes, changes nothing."""
        assert self._graphs is not None, "there are no graphs to capture"
        shape, admitted = self._padded_shape(kind), self._admissions.padded_shape(kind.num_tokens)
        upload = RepeatedUpload(self._parts.upload, mixed_sizes(shape) | admitted.sizes)

        def fill(arrays: Arrays) -> None:
            write_padding({name: arrays[name] for name in mixed_sizes(shape)})
            self._admissions.fill(arrays, ())

        upload.send(fill)
        self._inputs[kind] = CapturedInputs(
            shape=shape,
            admitted=admitted,
            configs=self._configs(kind.num_tokens),
            upload=upload,
        )
        self._graphs.capture(kind)

    def _padded_shape(self, kind: CapturedKind) -> MixedShape:
        return padded_shape(
            kind,
            max_num_seqs=self._parts.limits.max_num_seqs,
            tile_tokens=self._tile_tokens(self._configs(kind.num_tokens)),
        )

    def _upload_padding(self, shape: MixedShape) -> Uploaded:
        sizes = mixed_sizes(shape)
        self._parts.upload.send(sizes, write_padding)
        return self._parts.upload.views(sizes)

    def _launch_eager(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> Uploaded:
        admissions, admitted = self._admissions.join(admissions, self._most_admitted)
        configs = self._configs(int(batch.query_lens.max()))
        shape = exact_shape(
            batch,
            max_num_seqs=self._parts.limits.max_num_seqs,
            tile_tokens=self._tile_tokens(configs),
        )
        sizes = mixed_sizes(shape) | (admitted.sizes if admissions else {})

        def fill(arrays: Arrays) -> None:
            write_mixed(arrays, batch, shape=shape, make_tiles=prefill_tiles)
            if admissions:
                self._admissions.fill(arrays, admissions)

        self._parts.upload.send(sizes, fill)
        on_device = self._parts.upload.views(sizes)
        if admissions:
            self._admissions.launch(on_device)
        self._forward(on_device, shape, configs)
        return on_device

    def _replay(
        self, kind: CapturedKind, batch: InputBatch, *, admissions: tuple[Admission, ...]
    ) -> Uploaded:
        assert self._graphs is not None, "there is nothing to replay"
        if kind not in self._graphs:
            self._capture(kind)
        inputs = self._inputs[kind]
        admissions, _ = self._admissions.join(admissions, inputs.admitted)

        def fill(arrays: Arrays) -> None:
            write_mixed(arrays, batch, shape=inputs.shape, make_tiles=prefill_tiles)
            self._admissions.fill(arrays, admissions)

        inputs.upload.send(fill)
        self._graphs.replay(kind)
        return inputs.upload.views

    def _launch_captured(self, kind: CapturedKind) -> None:
        inputs = self._inputs[kind]
        self._admissions.launch(inputs.upload.views)
        self._forward(inputs.upload.views, inputs.shape, inputs.configs)

    def _configs(self, max_seqlen_q: int) -> PrefillConfigs:
        cache_NSKD, group = self._parts.kv_caches[0][0], self._parts.group
        choose = partial(choose_prefill_config, max_seqlen_q, cache_NSKD=cache_NSKD, group=group)
        return PrefillConfigs(new=choose(are_new=True), old=choose())

    def _tile_tokens(self, configs: PrefillConfigs) -> TileTokens:
        return TileTokens(*(tokens_per_tile(config, self._parts.group) for config in configs))

    def _forward(self, on_device: Uploaded, shape: MixedShape, configs: PrefillConfigs) -> None:
        """Queue the model's kernels."""
        parts, attention = self._parts, self._parts.attention
        prepared = self._prepared.first(shape.num_tokens)
        prepared.prepare(on_device["token_lanes"], on_device["positions"], parts=parts)
        step = FusedStep(
            input_ids_T=prepared.input_ids_T,
            positions_T=on_device["positions"],
            slot_mapping_T=prepared.slot_mapping_T,
            attention=attention,
            attention_plan=attention.plan_lanes(self._rows(on_device, shape, configs)),
        )
        parts.decoder.forward_chosen(
            step,
            parts.kv_caches,
            num_chosen=shape.num_chosen,
            choose=partial(self._prepare_chosen, on_device, shape.num_chosen),
        )

    def _prepare_chosen(self, on_device: Uploaded, num_chosen: int) -> ChosenTokens:
        """Queue what makes those that sample ready to be decode rows, and return them."""
        parts, attention = self._parts, self._parts.attention
        prepared = self._prepared_chosen.first(num_chosen)
        lanes_S, positions_S = (on_device[name][:num_chosen] for name in ("sampling_lanes", "last_positions"))
        prepared.prepare(lanes_S, positions_S, parts=parts)
        rows = LaneStep(
            block_table_LM=parts.tables.block_table_LM,
            lanes_B=lanes_S,
            seq_lens_B=on_device["sampling_seq_lens"][:num_chosen],
            num_decode_rows=num_chosen,
        )
        step = FusedStep(
            input_ids_T=prepared.input_ids_T,
            positions_T=positions_S,
            slot_mapping_T=prepared.slot_mapping_T,
            attention=attention,
            attention_plan=attention.plan_lanes(rows),
            is_decode=True,
        )
        return ChosenTokens(rows_R=on_device["token_rows"][:num_chosen], step=step)

    def _rows(self, on_device: Uploaded, shape: MixedShape, configs: PrefillConfigs) -> LaneStep:
        prefill = None
        if shape.num_prefill_rows:
            new_I4, old_I4 = (on_device[name].view(-1, 4) for name in ("new_tiles", "old_tiles"))
            # Programs of new prompts come last: they draw work, so that all end at once.
            tiles = (
                PrefillTiles(tiles_I4=old_I4, config=configs.old, has_old=True),
                PrefillTiles(tiles_I4=new_I4, config=configs.new, has_old=False),
            )
            prefill = PrefillRows(
                cu_seqlens_q=on_device["cu_seqlens"],
                max_seqlen_q=shape.num_tokens,
                tiles=tuple(some for some in tiles if len(some.tiles_I4)),
            )
        return LaneStep(
            block_table_LM=self._parts.tables.block_table_LM,
            lanes_B=on_device["lanes"],
            seq_lens_B=on_device["seq_lens"],
            num_decode_rows=shape.num_decode_rows,
            prefill=prefill,
        )
