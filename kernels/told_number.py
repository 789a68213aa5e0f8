"""Numbers that one warp of a Gluon kernel tells the others through shared memory.

Knows nothing about when they may be read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def write_number(slot, number):
    """Put an int32 into a slot of one."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot.store(gl.full([1], number, gl.int32, ONE))


@gluon.jit
def read_number(slot):
    """Return it, as a scalar."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(slot.load(ONE), 0)
