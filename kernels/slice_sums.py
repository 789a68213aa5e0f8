"""Sums of what several warps of a program hold, through shared memory once.

tl.sum over an axis that lies across warps has them write with strides that meet in few banks of shared
memory, and goes through it twice. Here halves of the axis are split off and added, for which Triton first
brings a row's numbers together in a thread: one exchange, laid out without conflicts. Knows nothing
about what is summed.

Shapes: A and B rows of N numbers, a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def sum_last(numbers):
    """Return the sums over the last of three axes, in an order that the shape alone decides."""
    A: tl.constexpr = numbers.shape[0]
    B: tl.constexpr = numbers.shape[1]
    N: tl.constexpr = numbers.shape[2]
    # Of many numbers, threads that hold some of a row add what is left.
    for halving in tl.static_range(4 if N <= 16 else 3):
        if (N >> halving) > 1:
            first, second = tl.split(tl.reshape(numbers, (A, B, N >> (halving + 1), 2)))
            numbers = first + second
    return tl.reshape(numbers, (A, B)) if N <= 16 else tl.sum(numbers, 2)
