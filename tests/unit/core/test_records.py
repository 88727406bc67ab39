"""Records that travel between workers and devices."""

from __future__ import annotations

from dataclasses import fields

import torch

from partita.core.records import RemoteDraws, Sampled


def test_every_column_of_edges_is_moved() -> None:
    """What is added to a sample must not stay behind where the others travel."""
    names = [field.name for field in fields(Sampled) if field.name not in ("indptr", "remote")]
    ids = {name: torch.full((3,), 1) for name in names}
    dtypes = {"weights": torch.uint32, "importance": torch.float64, "visit_weight": torch.float64}
    dtypes |= dict.fromkeys(("edge_weight", "edge_attr"), torch.float32)
    columns = {name: column.to(dtypes.get(name, torch.int64)) for name, column in ids.items()}
    columns["edge_attr"] = columns["edge_attr"].unsqueeze(1)
    remote = RemoteDraws(edges=4)
    moved = Sampled(indptr=torch.tensor([0, 3]), remote=remote, **columns).mapped(lambda column: column[:2])
    assert {name: len(getattr(moved, name)) for name in names} == dict.fromkeys(names, 2)
    assert moved.indptr.tolist() == [0, 3]
    assert moved.remote == remote
    bare = Sampled(torch.tensor([0, 3]), columns["indices"]).mapped(lambda column: column[:2])
    assert [name for name in names if getattr(bare, name) is not None] == ["indices"]
