"""Whether Triton kernels are interpreted, on a CPU, where some things are not as on a GPU.

There is no assembly, and no clock of a device; and the larger of a number and NaN is NaN, not the number.
Knows nothing about kernels.
"""

import triton
import triton.language as tl

IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
