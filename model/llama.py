"""Llama-type models (Llama 3.x, SmolLM2): the shared decoder as it is, without q/k norm."""

from model.decoder import CausalLM


class LlamaForCausalLM(CausalLM):
    """The shared decoder."""
