"""Benchmarks: each prints what it measured, and none is a test."""
