"""The pure scheduler core: no I/O, clock, randomness, environment or logging."""
