"""What the settings of a run mean for the ages of rows as an input of the model."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64

from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS
from partita.nn.ages import RowTimes
from partita.nn.model import Model
from partita.sample.topology import as_tensor
from partita.setup.temporal import is_temporal

NODE_TIME = "node_time"
_AGE = "age"
_LARGEST = int(np.iinfo(np.int64).max)


def reads_ages(config: Config, store: GraphStore) -> bool:
    """Whether a model that the settings name reads how old rows are: in typed graphs with times, unless refused.

    Raises:
        ConfigError: it should, and there are no node types or no times; see also
            :func:`partita.setup.temporal.is_temporal`.
    """
    if config.time_encoding == "none":
        return False
    refusal = None
    if not is_temporal(config, store):
        refusal = "neighbors are not sampled by time, so that rows have no age"
    elif store.schema is None:
        refusal = "ages of rows are read of typed graphs only, whose rows an encoder brings to one width"
    elif not store.has(NODE_TIME):
        refusal = "the nodes of the store have no times"
    if refusal is None or config.time_encoding != _AGE:
        return refusal is None
    raise ConfigError(
        refusal,
        where="time_encoding",
        fix="Leave time_encoding out, or ingest the graph with node types, edge_time or node_time, and node_time",
    )


def dated_types(store: GraphStore) -> tuple[str, ...]:
    """Names of the node types of which any row has a time."""
    assert store.schema is not None
    known, types = _known(_times(store, NODE_TIME)), store.node_types
    bounds, kinds = types.offsets, np.arange(len(types.offsets) - 1) % types.count
    dated = {int(kind) for kind, *ends in zip(kinds, bounds, bounds[1:]) if known[slice(*map(int, ends))].any()}
    return tuple(name for kind, name in enumerate(store.schema.node_types) if kind in dated)


def age_unit(store: GraphStore) -> float:
    """The median age of rows at the latest time of a training seed; above 0, in units of the store's times.

    It does not depend on the order of nodes. Where more than half of the rows are of that time, it is the median of the
    others; without any, 1.
    """
    rows, seeds = _times(store, NODE_TIME), store.seed_time
    rows, asked = rows[_known(rows)], np.empty(0, np.int64)
    if seeds is not None and "train" in store.splits:
        asked = seeds[store.splits["train"]]
        asked = asked[_known(asked)]
    if not len(rows):
        return 1.0
    last = int(asked.max()) if len(asked) else int(rows.max())
    # As floating-point numbers, as differences may have more than 64 bits; small times are exact all the same.
    ages = float(last) - rows[rows <= last].astype(np.float64)
    if len(ages) and (median := float(np.median(ages))) > 0:
        return median
    ages = ages[ages > 0]
    return float(np.median(ages)) if len(ages) else 1.0


def attach_times(model: Model, store: GraphStore) -> None:
    """Let a model that reads how old rows are read the times of a store. All workers call this.

    Raises:
        ConfigError: the nodes of the store have no times.
    """
    ages = None if model.encoder is None else model.encoder.ages
    if ages is None:
        return
    if not store.has(NODE_TIME):
        raise ConfigError(
            "the model reads how old rows are, and the nodes of the store have no times",
            where=str(store.path),
            fix="Ingest the graph with node_time, or train with time_encoding none",
        )
    rows, seeds = _times(store, NODE_TIME), store.seed_time
    latest = max(int(each[_known(each)].max(initial=ALWAYS)) for each in (rows, seeds) if each is not None)
    ages.source = RowTimes(as_tensor(rows), store.node_types, latest)


def check_ages(config: Config, store: GraphStore, model: Model) -> None:
    """Refuse a model that reads how old rows are where these have no age, and one that does not where it should.

    Raises:
        ConfigError: so it is.
    """
    if model.encoder is not None and model.encoder.ages is not None:
        if not is_temporal(config, store):
            raise ConfigError(
                "the model reads how old rows are when a seed is asked about, and neighbors are not sampled by time",
                where="temporal_strategy",
                fix="Use a store with edge_time and seed_time, or train with time_encoding none",
            )
    elif config.time_encoding == _AGE and reads_ages(config, store):
        raise ConfigError(
            "the model does not read how old rows are",
            where="time_encoding",
            fix="Use one of Partita's layers, or partita.Encoder(..., dated=..., age_unit=...) in a model of your "
            "own; or leave time_encoding out",
        )


def _times(store: GraphStore, name: str) -> Int64[np.ndarray, "N"]:
    found: Int64[np.ndarray, "N"] = store.held(name)[0]
    return found


def _known(times: Int64[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Which ones stand for a time: neither for always nor for never."""
    return (times != ALWAYS) & (times != _LARGEST)
