"""Times of edges and nodes, as stores hold them."""

from __future__ import annotations

import numpy as np

ALWAYS = int(np.iinfo(np.int64).min)
"""The time of edges and nodes that were always there; NumPy writes dates that are missing so."""

DATES = "dates"
"""The note of a store whose times are dates, in microseconds since 1970."""
