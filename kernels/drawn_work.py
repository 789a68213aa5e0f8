"""How programs of a Gluon kernel draw pieces of work from work_counters, and leave those for the next launch.

Knows nothing about the work.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def draw_work(counter_ptr):
    """Return the number of another piece; the first ones are the programs' own numbers."""
    return gl.num_programs(0) + gl.atomic_add(counter_ptr, 1, sem="relaxed")


@gluon.jit
def end_drawing(counter_ptr):
    """Count a program that draws no more: the last one leaves the counters as the next launch needs them."""
    num_ended = gl.atomic_add(counter_ptr + 1, 1)
    if num_ended == gl.num_programs(0) - 1:
        gl.store(counter_ptr, 0)
        gl.store(counter_ptr + 1, 0)
