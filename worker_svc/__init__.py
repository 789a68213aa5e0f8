"""The worker service: owns every tensor, decides nothing.

It runs the steps that an engine plans. Knows nothing about requests, queues, text or prefixes.
"""
