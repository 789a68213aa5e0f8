"""Runs one step eagerly: admissions to the token pool, forward, sample, tokens to the pool.

Any device, no captured graphs. Knows nothing about steps, lanes' lengths or streams.
Legend: T packed tokens, B rows, M blocks a table, R sampling rows, E hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch

from kernels.attention_backend import AttentionBackend
from model.decoder import CausalLM
from model.forward_context import ForwardContext, KvCache
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.step import Admission, SampledTokens
from worker_svc.runner.logprobs import DeviceLogprobs, compute_logprobs
from worker_svc.runner.sampler import Sampler
from worker_svc.runner.token_pool import TokenPool
from worker_svc.runner.upload import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerStep:
    """Tokens on the device; ``wait`` brings them to the host."""

    token_ids_R: torch.Tensor
    """int32."""
    logprobs: DeviceLogprobs | None = None

    def wait(self) -> SampledTokens:
        """Download the tokens, and the log-probabilities where rows asked."""
        return SampledTokens(
            token_ids=self.token_ids_R.cpu().numpy(),
            logprobs=None if self.logprobs is None else self.logprobs.download(),
        )

    def wait_until_computed(self) -> None:
        """Wait for the device; see LaunchedStep."""
        self.token_ids_R.cpu()

    def device_times(self) -> None:
        """Leave it to the host's clock; see LaunchedStep."""


class EagerModelRunner:
    """A ModelRunner that launches every operation of a step by itself.

    Ranks of a shared model are given the same steps, and each takes the same tokens.
    """

    def __init__(
        self,
        model: CausalLM,
        token_pool: TokenPool,
        *,
        kv_caches: tuple[KvCache, ...],
        backend: AttentionBackend,
        device: torch.device,
    ) -> None:
        self._model = model
        self._token_pool = token_pool
        self._sampler = Sampler(token_pool, device)
        self._kv_caches = kv_caches
        self._backend = backend
        self._device = device
        # A CPU has computed a step when launch returns: a second one would only delay its tokens.
        self.num_steps_ahead = 0 if device.type == "cpu" else 1

    @torch.inference_mode()
    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> EagerStep:
        """Compute the batch; see ModelRunner."""
        self._token_pool.admit(admissions)
        if batch.num_rows == 0:
            return EagerStep(token_ids_R=torch.empty(0, dtype=torch.int32))
        hidden_TE = self._forward(batch)
        if len(batch.sampling.lanes) == 0:
            return EagerStep(token_ids_R=torch.empty(0, dtype=torch.int32))
        return self._sample(hidden_TE, batch)

    def _forward(self, batch: InputBatch) -> torch.Tensor:
        device = self._device
        positions_T = upload(batch.positions, device)
        input_ids_T = self._token_pool.gather(upload(batch.token_lanes, device), positions_T)
        context = ForwardContext(
            slot_mapping_T=upload(batch.slot_mapping, device),
            cu_seqlens_q=upload(batch.cu_seqlens_q, device),
            seq_lens_B=upload(batch.seq_lens, device),
            block_table_BM=upload(batch.block_table, device),
            query_lens=tuple(batch.query_lens.tolist()),
            context_lens=tuple(batch.seq_lens.tolist()),
            num_decode_rows=batch.num_decode_rows,
            kv_caches=self._kv_caches,
            backend=self._backend,
        )
        hidden_TE: torch.Tensor = self._model(input_ids_T, positions_T, context)
        return hidden_TE

    def _sample(self, hidden_TE: torch.Tensor, batch: InputBatch) -> EagerStep:
        rows, device = batch.sampling, self._device
        hidden_RE = hidden_TE[upload(rows.token_rows, device)]
        logits_RV, vocabulary = self._model.compute_logits(hidden_RE), self._model.shared_vocabulary
        if vocabulary is not None and rows.flavour == SamplingFlavour.FULL:
            logits_RV, vocabulary = vocabulary.gather(logits_RV), None
        token_ids_R = self._sampler.sample(logits_RV, rows, vocabulary=vocabulary)
        stored_R = token_ids_R.to(torch.int32)
        self._token_pool.store(
            stored_R, lanes_R=upload(rows.lanes, device), positions_R=upload(rows.positions, device)
        )
        logprobs = compute_logprobs(logits_RV, token_ids_R, counts=rows.num_logprobs_plus_one)
        return EagerStep(token_ids_R=stored_R, logprobs=logprobs)
