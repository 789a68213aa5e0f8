"""The ranks of one worker group.

Knows nothing about models or steps.
"""
