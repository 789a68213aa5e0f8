"""What the processes of both services are started and guarded with.

Knows nothing about either service: each says what its options and errors are.
"""
