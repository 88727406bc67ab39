"""What an ingest says when it is done."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from partita.sources.ids import IdMode


@dataclass(frozen=True)
class IngestSummary:
    """What was ingested and what was decided on the way.

    Attributes:
        path: of the store.
        nodes: N.
        edges: E, directed edges in the store.
        features: F, 0 without.
        edge_features: columns of the edges' features, 0 without.
        task: "classes", "multilabel", "regression" or ``None``.
        classes: number of classes or label columns, 0 without labels.
        splits: size of every split.
        held_out: how many edges are held out for each split; they are not among the ``edges``.
        split_rule: where the splits come from.
        ids: how ids were read: "index", "int" or "str".
        header: whether the edge file has a header; ``None`` where the format knows none.
        edges_read: how many the source has, without those that are held out.
        both_directions: every edge of the store is there in both directions.
        self_loops: how many are in the store.
        repeated_edges: how many directed edges repeat an earlier one, dropped or not.
        duplicates_dropped: how many of them were dropped.
        class_sizes: labeled nodes by class or label; empty for a regression.
        node_types: nodes of each type, of a typed graph.
        relations: edges of each relation, likewise.
        type_features: feature columns of each node type that has some, likewise.
        notes: anything else worth saying, one sentence each.
        seconds: of wall-clock time.
        edges_per_second: edges in the store divided by ``seconds``.
    """

    path: str
    nodes: int
    edges: int
    features: int
    edge_features: int
    task: str | None
    classes: int
    splits: dict[str, int]
    held_out: dict[str, int]
    split_rule: str
    ids: IdMode
    header: bool | None
    edges_read: int
    both_directions: bool
    self_loops: int
    repeated_edges: int
    duplicates_dropped: int
    class_sizes: dict[str, int]
    node_types: dict[str, int]
    relations: dict[str, int]
    type_features: dict[str, int]
    notes: list[str]
    seconds: float
    edges_per_second: float

    def keys(self) -> list[str]:
        """Names of the fields, so that ``dict(summary)`` works."""
        return list(asdict(self))

    def __getitem__(self, name: str) -> Any:
        return asdict(self)[name]

    def to_json(self) -> str:
        """The fields as a JSON object."""
        return json.dumps(asdict(self), indent=1)
