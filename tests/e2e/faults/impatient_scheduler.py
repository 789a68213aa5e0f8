"""The scheduler service, whose crashed parts come back at once, to be run as scheduler_svc is.

An operator's waits ever longer for a part that crashes ever again, and fault tests crash it hundreds of
times. Knows nothing about faults.
"""

from scheduler_svc import kept_child
from scheduler_svc.__main__ import main

if __name__ == "__main__":
    kept_child._MAX_DELAY_SECONDS = 0.0
    main()
