"""Steps to flat arrays, with numpy only.

Pure: knows nothing about torch, gRPC, threads, time or the environment.
"""
