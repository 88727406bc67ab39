"""The options of partitions and of shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from partita.core.options import SEEDS, SIZES, Options, Range, Size, named_numbers, parse_bytes
from partita.sources.options import ColumnName, column


@dataclass(frozen=True, kw_only=True)
class _PartitionOptions(Options):
    algorithm: Annotated[Any, "See above.", str] = "spring+"
    weights: Annotated[str, "Weights to balance and cut by: none, presample, edges, node or degree."] = "none"
    balance: Annotated[
        str, "Nodes to spread evenly: none, type (those of each node type) or train (also the training nodes)."
    ] = "none"
    epsilon: Annotated[float, "Allowed imbalance of the parts.", Range(0, 1000)] = 0.05
    refine: Annotated[int, "Maximum refinement passes after the algorithm.", Range(0, 10**6)] = 0
    seed: Annotated[int, "Random seed.", SEEDS] = 0
    options: Annotated[
        Mapping[str, float] | None, "Option of the algorithm, NAME=NUMBER; may be repeated.", named_numbers
    ] = None
    feature_dtype: Annotated[str | None, "float16 or float32 for the new store's features."] = None
    memory_limit: Annotated[Size | None, "Private memory for sorting, for instance 2GiB.", SIZES, parse_bytes] = None
    source_column: Annotated[ColumnName | None, "Name or position (from 0) of the sources.", column] = None
    target_column: Annotated[ColumnName | None, "Name or position of the targets.", column] = None
    undirected: Annotated[bool, "Store every line in both directions."] = False
    overwrite: Annotated[bool, "Replace an existing store."] = False


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(_PartitionOptions):
    """See :func:`partita.partition`."""

    parts: Annotated[int | str, "Number of parts, or hosts x workers such as 2x4; auto: see below.", str]


@dataclass(frozen=True, kw_only=True)
class MemoryPartitionOptions(_PartitionOptions):
    """See :func:`partita.partition_for_memory`."""

    memory_per_worker: Annotated[Size, "Memory of a worker, for instance 4GiB.", SIZES, parse_bytes]
    workers: Annotated[int, "Number of workers: the least number of parts; default 1.", Range(1, 2**31 - 1)] = 1
    halo: Annotated[str, "Boundary (halo) nodes included with a part: none, one-hop (default) or one-hop+edges."] = (
        "one-hop"
    )
    compute_share: Annotated[
        float, "Share of that memory reserved for computation; the rest is for a part. Default 2/3.", Range(0, 1)
    ] = 2 / 3
    say: Annotated[Callable[[str], None] | None, "Is called with one sentence about every number of parts."] = None


@dataclass(frozen=True, kw_only=True)
class ShardOptions(Options):
    """See :func:`partita.shard`."""

    host: Annotated[int, "Whose shard, from 0.", Range(0, 2**31 - 1)]
    hosts: Annotated[int, "Number of hosts; divides the number of parts.", Range(1, 2**31 - 1)]
    topology: Annotated[str, "partitioned: edges into own nodes; replicated: all edges."] = "partitioned"
    hot_bytes: Annotated[
        int, "Memory for feature rows of other hosts' nodes, for instance 2GiB.", SIZES, parse_bytes
    ] = 0  # fmt: skip
    hot: Annotated[
        Any, "How they are ranked: in-degree, or presample (sampling counts).", str
    ] = "in-degree"  # fmt: skip
    overwrite: Annotated[bool, "Replace an existing store."] = False
