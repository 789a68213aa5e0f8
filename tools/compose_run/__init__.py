"""Runs the stack of docker-compose.yml for real, and takes its worker away while a client reads.

`make test-compose` is its command. Knows nothing about how the services work inside.
"""
