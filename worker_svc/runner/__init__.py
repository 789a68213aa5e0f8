"""From flat arrays to sampled tokens: the model, its KV cache and the token pool.

Knows nothing about gRPC or streams.
"""
