"""Reading a run back: its settings, its store, its model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partita.config import Config
from partita.core.errors import ConfigError, RunError
from partita.features.rows import FeatureColumn, l1_scale
from partita.graph.store import GraphStore
from partita.nn.model import Model
from partita.runs.checkpoint import latest_checkpoint, load_model, read_state
from partita.runs.folder import RunFolder
from partita.sample.topology import LocalTopology, as_tensor

DTYPES = {"float32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


def open_topology(store: GraphStore, config: Config) -> LocalTopology:
    """The store's topology with the sampling settings of a run."""
    return LocalTopology(store, replace=config.replace, weighted=config.weighted)


def open_features(store: GraphStore, config: Config) -> FeatureColumn:
    """The store's features as the settings of a run want them.

    Raises:
        ConfigError: the store has none.
    """
    if store.x is None:
        raise ConfigError(
            "the store has no features to train on",
            where=str(store.path),
            fix="Ingest again with --features FILE (or --nodes FILE)",
        )
    x = as_tensor(store.x)
    return FeatureColumn(
        x,
        dtype=DTYPES[config.precision],
        scale=l1_scale(x) if config.normalize_features else None,
        dropout=config.input_dropout,
    )


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A finished (or interrupted) run, ready for inference.

    Attributes:
        folder: where it lies.
        record: contents of ``run.json``.
        config: its settings.
        store: its graph store, opened.
        model: with the weights of ``checkpoint``.
        checkpoint: the one that was loaded, the best where validation chose one.
    """

    folder: RunFolder
    record: dict[str, Any]
    config: Config
    store: GraphStore
    model: Model
    checkpoint: Path


def open_store_of(folder: RunFolder, store: str | os.PathLike[str] | None = None) -> GraphStore:
    """Open the store that a run was trained on.

    Args:
        folder: the run.
        store: another place where the same store lies now.

    Raises:
        RunError: the store there is not the one that the run was trained on.
    """
    record = folder.read_record()
    opened = GraphStore.open(store if store is not None else record["store"]["path"])
    if opened.fingerprint != record["store"]["fingerprint"]:
        raise RunError(
            f"was trained on another store than {opened.path}",
            where=str(folder.path),
            fix="Give the store it was trained on (its contents have changed, or the path is another one's)",
        )
    return opened


def load_run(
    path: str | os.PathLike[str], *, store: str | os.PathLike[str] | None = None, model: Model | None = None
) -> LoadedRun:
    """Open a run with its best weights.

    Args:
        path: the run folder.
        store: where its store lies now, if it was moved.
        model: a model of the same shape, for runs that were trained with ``Trainer(model=...)``.

    Raises:
        RunError: no run, no checkpoint yet, or a store that does not belong to it.
    """
    folder = RunFolder.open(path)
    record = folder.read_record()
    latest = latest_checkpoint(folder.checkpoints)
    if latest is None:
        raise RunError("has no checkpoint yet", where=str(path), fix=f"Train it first: partita train --resume {path}")
    best = read_state(latest).best
    checkpoint = folder.checkpoints / best.checkpoint if best else latest
    if model is None:
        if record["model"].get("custom"):
            raise RunError(
                "was trained with a model of your own, which is not kept in the run",
                where=str(path),
                fix="Pass the same model: partita.evaluate(run, model=...)",
            )
        model = Model.from_description(record["model"])
    config = Config.load(folder.config)
    model = model.to(DTYPES[config.precision])
    load_model(checkpoint, model)
    return LoadedRun(folder, record, config, open_store_of(folder, store), model, checkpoint)
