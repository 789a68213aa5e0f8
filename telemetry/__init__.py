"""What both services tell of themselves: metrics, traces and log lines.

Knows nothing about requests or steps: each service says what it counts.
"""
