"""What the settings of a run mean for the age that edges may have."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.options import SECONDS, time_span
from partita.graph.schema import OTHERS
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS, DATES
from partita.sample.temporal import Windows

EDGE_TIME, WINDOW = "edge_time", "time_window"
_LARGEST = int(np.iinfo(np.int64).max)
_BLOCK = 1 << 22
"""Edges that are looked at together."""


def windows_of(config: Config, store: GraphStore) -> Windows | None:
    """How old edges may be; ``None``: of any age. Relations without times are of any age, too.

    Raises:
        ConfigError: a window is given for what has no times, as a span of dates in a store without dates, or for a
            relation that there is not; or one for all relations, of which several have times.
    """
    given, schema = config.time_window, store.schema
    if given is None:
        return None
    if isinstance(given, str):
        widths = [_span(given, store)] * (1 if schema is None else len(schema.relations))
    elif schema is None:
        raise ConfigError(
            "windows are given for relations, and the graph has none", where=WINDOW, fix="Give one for all edges"
        )
    else:
        # Numbers that stand for no window of relations that are not named are 0, so that windows are one more.
        wide = {name: (_span(text, store) + 1,) for name, text in given.items()}
        widths = [width - 1 for width in schema.by_relation(wide, WINDOW)[0]]
    dated, latest = _dated_relations(store)
    if isinstance(given, str) and schema is not None and dated.sum() > 1:
        raise ConfigError(
            "one window is given, and several relations have times: also those from nodes that have been there for "
            "long, such as from a customer to a purchase, which would be cut off",
            where=WINDOW,
            fix=f"Name relations of events, as '{schema.short_relations[int(dated.argmax())]}={given}'; or '*={given}' "
            "for all",
        )
    for at in np.flatnonzero(~dated).tolist():
        if isinstance(given, dict) and schema is not None and OTHERS not in given and widths[at] >= 0:
            raise ConfigError(
                f"the edges of '{schema.relations[at]}' have no times, so none is older than a window",
                where=WINDOW,
                fix="Leave the relation out",
            )
        widths[at] = -1
    return Windows(torch.tensor(widths), latest)


def _span(text: str, store: GraphStore) -> int:
    if text[-1] in SECONDS and not store.metadata.notes.get(DATES):
        raise ConfigError(
            f"{text} is a span of dates, and the store does not say that its times are dates",
            where=WINDOW,
            fix="Give a whole number in the unit of its times (dates in stores of older versions: microseconds)",
        )
    return time_span(text)


def _dated_relations(store: GraphStore) -> tuple[Bool[np.ndarray, "R"], int]:
    """Which relations have an edge with a time; and the latest time of edges and seeds."""
    (times, _), seeds = store.held(EDGE_TIME), store.seed_time
    kinds = None if store.schema is None else store.held("edge_type")[0]
    dated = np.zeros(1 if store.schema is None else len(store.schema.relations), np.bool_)
    latest = ALWAYS
    for at in range(0, len(times), _BLOCK):
        known = times[at : at + _BLOCK]
        there = (known != ALWAYS) & (known != _LARGEST)
        of_relations = np.zeros(there.sum(), np.int64) if kinds is None else kinds[at : at + _BLOCK][there]
        dated |= np.bincount(of_relations, minlength=len(dated)) > 0
        latest = max(latest, int(known[there].max(initial=ALWAYS)))
    if seeds is not None:
        latest = max(latest, int(seeds[seeds != _LARGEST].max(initial=ALWAYS)))
    return dated, latest
