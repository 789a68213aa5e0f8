"""How often a process of the service looks for garbage in cycles.

Knows nothing about what the process does.
"""

import gc

_ALLOCATIONS_PER_COLLECTION = 20_000


def collect_garbage_rarely() -> None:
    """Leave what lives by now out of all collections, and have them come rarely.

    A thousand requests that come at once make 60,000 objects that live on: with Python's defaults a tenth
    of what taking them in costs is the collector, looking through them, the modules and the vocabulary.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
