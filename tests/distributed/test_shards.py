"""Training and prediction where every host holds only its own share of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors.numpy import load_file
from typed_graphs import typed_store

import partita
from partita.comm.context import Context
from partita.core.errors import ConfigError, StoreError
from partita.runs.checkpoint import latest_checkpoint
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

SETTINGS: dict[str, Any] = {
    "layers": 2, "hidden": 8, "fanout": (4, 3), "batch_size": 48, "epochs": 2, "precision": "float64", "dropout": 0.3,
    "input_dropout": 0.2, "seed": 4, "normalize_features": True,
}  # fmt: skip

WAYS: dict[str, dict[str, Any]] = {
    "gdp": {"strategy": "gdp", "cache": "2KiB", "cache_policy": "pagerank"},
    "dsp": {"strategy": "gdp", "cache": "2KiB", "cache_layout": "partitioned"},
    "snp": {"strategy": "snp", "model": "gcn"},
    "dnp": {"strategy": "dnp", "cache": "2KiB", "cache_policy": "strategy"},
    "gsplit": {"strategy": "gsplit", "model": "gat", "cache": "2KiB", "cache_policy": "presample"},
    "hybrid": {"strategy": "data@hosts+gsplit@workers"},
    "columns": {"strategy": "nfp@workers+data@hosts", "cache": "2KiB"},
    "ahead": {"strategy": "gdp", "cache": "5KiB", "cache_policy": "look-ahead", "look_ahead": 2},
    "hybrid ahead": {
        "strategy": "data@hosts+gsplit@workers",
        "cache": "5KiB",
        "cache_policy": "look-ahead",
        "look_ahead": 1,
    },
    "columns ahead": {
        "strategy": "nfp@workers+data@hosts",
        "cache": "5KiB",
        "cache_policy": "look-ahead",
        "look_ahead": 9,
    },
}

TYPED_WAYS: dict[str, dict[str, Any]] = {
    name: {"model": "rgcn", "fanout": "cites=3,2 *=2,1", **way}
    for name, way in {
        "gdp": {"strategy": "gdp", "cache": "1KiB", "cache_policy": "pagerank"},
        "dsp": {"strategy": "gdp", "cache": "1KiB", "cache_layout": "partitioned"},
        "snp": {"strategy": "snp"},
        "dnp": {"strategy": "dnp", "model": "rgat", "cache": "1KiB", "cache_policy": "strategy"},
        "gsplit": {"strategy": "gsplit", "model": "hgt", "cache": "1KiB", "cache_policy": "presample"},
        "hybrid": {"strategy": "data@hosts+gsplit@workers", "model": "graphconv", "edge_weights": True},
        "ahead": {"strategy": "gdp", "cache": "5KiB", "cache_policy": "look-ahead", "look_ahead": 2},
    }.items()
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole`` in four parts; ``shard0``, ``shard1`` with the edges of their host, ``full0``, ``full1`` with all."""
    folder = tmp_path_factory.mktemp("shards")
    small_random_store(folder / "source", num_nodes=300, num_edges=1500, num_features=6)
    partita.partition(folder / "source", folder / "whole", parts="2x2", algorithm="spring")
    for host in (0, 1):
        partita.shard(folder / "whole", folder / f"shard{host}", host=host, hosts=2, hot_bytes=320)
        partita.shard(folder / "whole", folder / f"full{host}", host=host, hosts=2, topology="replicated")
    return folder


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a typed graph. All authors are nodes of the first host."""
    folder = tmp_path_factory.mktemp("typed")
    typed_store(folder / "source", 240)
    source = partita.open(folder / "source.whole")
    parts = np.arange(240) % 4
    parts[source.types(np.arange(240)) == 1] %= 2
    np.save(folder / "parts.npy", parts)
    partita.partition(source, folder / "whole", parts="2x2", algorithm=str(folder / "parts.npy"))
    for host in (0, 1):
        partita.shard(folder / "whole", folder / f"shard{host}", host=host, hosts=2, hot_bytes=320)
        partita.shard(folder / "whole", folder / f"full{host}", host=host, hosts=2, topology="replicated")
    return folder


def train_here(context: Context, kind: str, folder: str, out: str, ways: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Train and predict in every way; returns the records."""
    torch.set_num_threads(1)
    store, records = Path(folder) / f"{kind}{context.mesh.host}", {}
    for name, way in ways.items():
        run = Path(out) / name
        trainer = partita.Trainer(store, out=run, context=context, **{**SETTINGS, **way})
        records[name] = trainer.fit().record
        partita.predict(run, out=f"{run}.parquet", store=store, context=context)
    return records


def model_of(run: Path) -> dict[str, np.ndarray]:
    return load_file(latest_checkpoint(run / "checkpoints") / "model.safetensors")


@pytest.mark.parametrize("kind", ["shard", "full"])
def test_a_share_on_every_host_trains_the_model_of_the_whole_graph(graph, tmp_path, kind) -> None:
    topology = "partitioned" if kind == "shard" else "replicated"
    names = list(WAYS) if kind == "shard" else ["gdp", "gsplit", "ahead"]
    check(graph, tmp_path, kind, {name: {**WAYS[name], "topology": topology} for name in names})


@pytest.mark.parametrize("kind", ["shard", "full"])
def test_a_share_of_a_typed_graph_on_every_host_trains_the_model_of_the_whole_graph(typed, tmp_path, kind) -> None:
    topology = "partitioned" if kind == "shard" else "replicated"
    names = list(TYPED_WAYS) if kind == "shard" else ["gdp", "snp", "ahead"]
    check(typed, tmp_path, kind, {name: {**TYPED_WAYS[name], "topology": topology} for name in names})


_OF_MODELS = ("model", "fanout", "edge_weights")


def check(graph: Path, tmp_path: Path, kind: str, ways: dict[str, dict[str, Any]]) -> None:
    """Weights and predictions are those of one process, and rows come from where they should."""
    results = run_workers(train_here, 4, kind, str(graph), str(tmp_path), ways, hosts=2, purposes=PURPOSES, timeout=300)
    for name, way in ways.items():
        alone = tmp_path / f"alone-{way.get('model', 'sage')}"
        if not alone.exists():
            settings = {**SETTINGS, **{name: way[name] for name in _OF_MODELS if name in way}}
            partita.Trainer(graph / "whole", out=alone, **settings).fit()
            partita.predict(alone, out=f"{alone}.parquet")
        found, wanted = model_of(tmp_path / name), model_of(alone)
        for key, value in wanted.items():
            assert np.abs(found[key] - value).max() <= 1e-9 * np.abs(value).max(), (name, key)
        here, there = (pyarrow.parquet.read_table(f"{run}.parquet") for run in (tmp_path / name, alone))
        assert here["node"].equals(there["node"])
        assert here["prediction"].equals(there["prediction"])
        record = results[0][name]
        rows_from = record["counts"]["rows_from"]
        moves = name != "snp"  # by source, every row is summed up where it is; else no host has all rows
        assert (rows_from["hosts"] > 0) == moves, (name, rows_from)
        # A copy in memory of what the host has in memory saves nothing, so an owner's own rows are not cached.
        assert (rows_from["cache"] > 0) == (name in ("gdp", "dsp", "dnp", "columns") or "ahead" in name)
        sent = [worker["traffic_bytes"]["training"].get("features", {}) for worker in record["workers"]]
        assert (sum(links.get("other_host", 0) for links in sent) > 0) == moves
        assert record["traffic_bytes"]["evaluation"]["forward"] > 0


def refuse_here(context: Context, folder: str, out: str) -> str:
    """What is wrong about a strategy, or about a shard, on this host."""
    home = Path(folder) / f"shard{context.mesh.host}"
    cases: list[tuple[Path, dict[str, Any]]] = [
        (home, {"strategy": "gdp"}),
        (home, {"strategy": "nfp", "topology": "partitioned"}),
        (Path(folder) / f"shard{1 - context.mesh.host}", {"strategy": "gdp", "topology": "partitioned"}),
    ]
    said = []
    for store, way in cases:
        try:
            partita.Trainer(store, out=out, context=context, **{**SETTINGS, **way})
        except (ConfigError, StoreError) as error:
            said.append(str(error))
    return "\n".join(said)


def test_what_a_share_cannot_do_is_said(graph, tmp_path) -> None:
    said = run_workers(refuse_here, 4, str(graph), str(tmp_path / "run"), hosts=2, purposes=PURPOSES, timeout=120)
    for lines in said:
        assert "--topology partitioned" in lines
        assert "partita shard" in lines
        assert "nfp@workers+data@hosts" in lines
    assert not (tmp_path / "run").exists()
    with pytest.raises((ConfigError, StoreError), match="host"):
        partita.Trainer(graph / "shard0", out=tmp_path / "run", **SETTINGS)
