"""What starts the ranks of a worker group: ``python -m worker_svc.launch``.

Knows nothing about what they do.
"""
