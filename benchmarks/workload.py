"""The workload every engine is timed on, as `stepwire bench` has it: a client has no benchmarks folder.

Knows nothing about engines.
"""

from stepwire_cli.bench.workload import CASES, Case, cases, fixed

__all__ = ["CASES", "Case", "cases", "fixed"]
