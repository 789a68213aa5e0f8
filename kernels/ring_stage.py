"""Turns through a ring of buffers that warps of a Gluon kernel fill and empty.

Knows nothing about what they hold.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def next_stage(stage, phase, NUM_STAGES: gl.constexpr):
    """Return the next buffer of a ring, and which phase of its barriers to wait for."""
    is_last = stage == NUM_STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)
