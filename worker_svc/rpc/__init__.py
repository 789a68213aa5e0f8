"""The worker's gRPC service and the thread that computes its steps.

Knows nothing about tensors: it hands steps to an executor and results back.
"""
