"""Reading a run back: its settings, its store, its model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import RunError
from partita.graph.store import GraphStore
from partita.nn.model import Model
from partita.runs.checkpoint import latest_checkpoint, load_model, read_state, share_model
from partita.runs.folder import RunFolder
from partita.setup.inputs import DTYPES


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A finished (or interrupted) run, ready for inference.

    Attributes:
        config: its settings.
        store: its graph store, opened.
        model: with the weights of ``checkpoint``.
        checkpoint: the one that was loaded, the best where validation chose one.
    """

    config: Config
    store: GraphStore
    model: Model
    checkpoint: Path


def read_run(
    context: Context, path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> tuple[RunFolder, dict[str, Any], Config]:
    """Read a run folder, which only the first worker needs to see, for all workers. All call this.

    Returns:
        The folder, the contents of ``run.json``, the settings; ``overrides`` win over those of the run.

    Raises:
        RunError, ConfigError: on all workers: no run, or not readable.
    """

    def read() -> dict[str, Any]:
        folder = RunFolder.open(path)
        config = Config.load(folder.config, overrides)
        return {"record": folder.read_record(), "config": config.model_dump(mode="json")}

    found = context.agree(read)
    return RunFolder(path), found["record"], Config.make(found["config"])


def open_store_of(
    folder: RunFolder, record: Mapping[str, Any], store: str | os.PathLike[str] | None = None
) -> GraphStore:
    """Open the store that the run of a ``run.json`` was trained on; ``store``: its path, if it has moved.

    Raises:
        RunError: the store there is not the one that the run was trained on.
    """
    opened = GraphStore.open(store if store is not None else record["store"]["path"])
    if opened.fingerprint != record["store"]["fingerprint"]:
        raise RunError(
            f"was trained on another store than {opened.path}",
            where=str(folder.path),
            fix="Give the store it was trained on (its contents have changed, or the path is another one's)",
        )
    return opened


def load_run(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    model: Model | None = None,
    context: Context | None = None,
) -> LoadedRun:
    """Open a run with its best weights.

    All workers call this. The first one reads the run folder and gives the others what it has read; every worker
    opens the store.

    Args:
        path: the run folder.
        store: path of the graph store, if it has moved.
        model: a model of the same shape, for runs that were trained with ``Trainer(model=...)``.
        context: of this worker; ``None``: it is the only one.

    Raises:
        RunError: no run, no checkpoint yet, or a store that does not belong to it.
    """
    context = context or Context.alone()
    folder, record, config = read_run(context, path)
    checkpoint = folder.checkpoints / context.agree(lambda: _best_checkpoint(folder).name)
    if model is None:
        if record["model"].get("custom"):
            raise RunError(
                "was trained with a model of your own, which is not kept in the run",
                where=str(path),
                fix="Pass the same model: partita.evaluate(run, model=...)",
            )
        model = Model.from_description(record["model"])
    model = model.to(DTYPES[config.precision])
    context.agree(lambda: load_model(checkpoint, model))
    share_model(context, model)
    return LoadedRun(config, open_store_of(folder, record, store), model, checkpoint)


def _best_checkpoint(folder: RunFolder) -> Path:
    latest = latest_checkpoint(folder.checkpoints)
    if latest is None:
        path = folder.path
        raise RunError("has no checkpoint yet", where=str(path), fix=f"Train it first: partita train --resume {path}")
    best = read_state(latest).best
    return folder.checkpoints / best.checkpoint if best else latest
