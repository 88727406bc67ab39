"""Times of edges and nodes, as stores hold them."""

from __future__ import annotations

import numpy as np

ALWAYS = int(np.iinfo(np.int64).min)
"""The time of edges and nodes that were always there; NumPy writes dates that are missing so."""

DATES = "dates"
"""The note of a store whose times are dates, in microseconds since 1970."""

NEVER = int(np.iinfo(np.int64).max)
"""The time of edges that carry messages for no seed, as they are what is to be foretold: nothing is asked so late."""

SPLIT_TIMES = "split_times"
"""In the notes of a store: the two times from which on seeds are for validation, and for tests."""

LATEST = NEVER - 1
"""The last time that something is asked about: once all is known."""
