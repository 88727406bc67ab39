"""Reading a run back: its settings, its store, its model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from partita.comm.context import Context
from partita.config import Config, read_yaml
from partita.core.errors import RunError
from partita.core.trust import refuse_code
from partita.graph.store import GraphStore
from partita.nn.decoders import from_description as decoder_from
from partita.nn.encoder import Encoder
from partita.nn.model import Model
from partita.nn.modules import model_from
from partita.runs.checkpoint import latest_checkpoint, load_model, read_state, share_model
from partita.runs.folder import RunFolder
from partita.runs.learnt_files import LearntFile
from partita.runs.other_store import Trained, apply_to, kept, with_kept
from partita.setup.inputs import DTYPES
from partita.setup.model import given_model

_BEFORE = {"target_scaling": "none", "time_encoding": "none"}
"""Settings that older runs do not name, where their default is not how these were trained."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A finished (or interrupted) run, ready for inference.

    Attributes:
        config: its settings.
        store: the graph store, opened; see :func:`partita.runs.other_store.apply_to` for one of another graph.
        model: with the weights of ``checkpoint``.
        checkpoint: the one that was loaded, the best where validation chose one.
        notes: what is not as it was in training.
    """

    config: Config
    store: GraphStore
    model: Model
    checkpoint: Path
    notes: tuple[str, ...] = ()


def read_run(
    context: Context,
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    trust: str | None = None,
) -> tuple[RunFolder, dict[str, Any], Config]:
    """Read a run folder, which only the first worker needs to see, for all workers. All call this.

    Args:
        context: of this worker.
        path: the run folder.
        overrides: settings that win over those of the run.
        trust: ``"imports"``: the run may name code to import, such as a model or a loss of one's own.

    Returns:
        The folder, the contents of ``run.json``, the settings.

    Raises:
        RunError, ConfigError: on all workers: no run, or not readable.
    """

    def read() -> dict[str, Any]:
        folder = RunFolder.open(path)
        settings = read_yaml(folder.config)
        before = {name: value for name, value in _BEFORE.items() if name not in settings}
        config = Config.load(folder.config, {**before, **(overrides or {})}, trust=trust)
        record = folder.read_record()
        described = record.get("model")
        if isinstance(described, Mapping) and not described.get("custom"):  # those are given, not imported
            refuse_code({"model": described}, str(folder.record), trust)
        return {"record": record, "config": config.model_dump(mode="json")}

    found = context.agree(read)
    return RunFolder(path), found["record"], Config.make(found["config"])


def open_store_of(
    folder: RunFolder, record: Mapping[str, Any], store: str | os.PathLike[str] | None = None
) -> GraphStore:
    """Open the store that the run of a ``run.json`` was trained on; ``store``: its path, if it has moved.

    Raises:
        RunError: the store there is not the one that the run was trained on.
    """
    opened = GraphStore.open(store if store is not None else folder.store_path(record))
    if opened.fingerprint != record["store"]["fingerprint"]:
        raise RunError(
            f"was trained on another store than {opened.path}",
            where=str(folder.path),
            fix=(
                "Give the store it was trained on (its contents have changed, or the path is another one's); evaluate "
                "and predict take any store with the same features: --store STORE"
            ),
        )
    return opened


def load_run(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    labels: bool = True,
    model: nn.Module | None = None,
    trust: str | None = None,
    context: Context | None = None,
) -> LoadedRun:
    """Open a run with its best weights.

    All workers call this. The first one reads the run folder and gives the others what it has read; every worker
    opens the store.

    Args:
        path: the run folder.
        store: path of a graph store with the same features; ``None``: the one that the run was trained on.
        labels: labels will be read, so that they must be those that the model predicts.
        model: a model of the same shape, for runs that were trained with ``Trainer(model=...)``.
        trust: ``"imports"``: the run may name code to import, such as a model or a loss of one's own.
        context: of this worker; ``None``: it is the only one.

    Raises:
        RunError: no run, no checkpoint yet, or a store that does not fit; the message says what differs.
    """
    context = context or Context.alone()
    folder, record, config = read_run(context, path, trust=trust)
    checkpoint = folder.checkpoints / context.agree(lambda: best_checkpoint(folder).name)
    opened, notes = _store_for(context, folder, record, store, labels=labels)
    own = model_of(folder, record) if model is None else given_model(model, config, opened, outputs_of(record))
    if own.decoder is None and "decoder" in record["model"]:
        own.decoder = decoder_from(record["model"]["decoder"])
    if not isinstance(config.target_scaling, str):
        own.scale_output(*config.target_scaling)
    own = own.to(DTYPES[config.precision])
    context.agree(lambda: load_model(checkpoint, own))
    share_model(context, own)
    if own.encoder is not None and any(own.encoder.learnt):
        attach_learnt(context, checkpoint, own.encoder, opened)
    return LoadedRun(config, opened, own, checkpoint, tuple(notes))


def attach_learnt(context: Context, checkpoint: Path, encoder: Encoder, store: GraphStore) -> None:
    """Let an encoder read the learnt rows of a checkpoint, which every worker maps. All workers call this.

    Raises:
        RunError: there are none, they are damaged, or of other nodes than those of the store.
    """

    def open_file(*, verify: bool) -> LearntFile:
        found = LearntFile.open(checkpoint, None, verify=verify)
        for kind, (name, width) in enumerate(zip(encoder.node_types, encoder.learnt, strict=True)):
            held, wanted = found.arrays.get(f"rows/{name}"), (store.node_types.size(kind), width)
            if width and (held is None or tuple(held.shape) != wanted):
                shape = "none" if held is None else f"{tuple(held.shape)}"
                raise RunError(f"holds other learnt rows of '{name}': {shape}, not {wanted}", where=str(found.path))
        return found

    def check() -> None:
        open_file(verify=True)

    context.agree(check)  # reads all of it, once
    encoder.source = open_file(verify=False).source(encoder.node_types)


def outputs_of(record: Mapping[str, Any]) -> int:
    """Columns of the model's result; older runs have noted classes only."""
    return int(record["outputs"] if "outputs" in record else record["store"]["classes"])


def model_of(folder: RunFolder, record: Mapping[str, Any]) -> Model:
    """The model of a run, made anew; its weights are others.

    Raises:
        RunError: it was given as an object, which the run does not keep.
        ConfigError: it was named, and the name stands for nothing any more.
    """
    described = record["model"]
    if not described.get("custom"):
        return model_from(described)
    name = described.get("module", "")
    again = (
        f"train with its name, --model {name}, to use the run from the command line"
        if name and "<" not in name and not name.startswith("__main__:")
        else "put its class into a module and train with --model package.module:Name, to use the run from the "
        "command line"
    )
    raise RunError(
        "was trained with a model of your own, given as an object, which is not kept in the run",
        where=str(folder.path),
        fix=f"Give the same model in Python: partita.evaluate({str(folder.path)!r}, model=...), and likewise "
        f"partita.predict and Trainer.resume; or {again}",
    )


def _store_for(
    context: Context,
    folder: RunFolder,
    record: Mapping[str, Any],
    store: str | os.PathLike[str] | None,
    *,
    labels: bool,
) -> tuple[GraphStore, list[str]]:
    """The store to apply a run to, and what is not as it was in training. All workers call this."""
    if store is None:
        return open_store_of(folder, record), []
    opened = GraphStore.open(store)
    of_run = record["store"]
    # Equal bytes may be features of other names.
    same = all(value == of_run.get(name, value) for name, value in kept(opened.metadata).items())
    if opened.fingerprint == of_run["fingerprint"] and same:
        return opened, []
    if learns_rows(record):
        raise RunError(
            f"has learnt the rows of the nodes of {of_run['path']}, which other stores have not",
            where=str(folder.path),
            fix="Use the store that it was trained on",
        )
    trained = Trained.of(context.agree(lambda: with_kept(folder, record)))
    applied, notes = apply_to(opened, trained, labels=labels)
    return applied, [f"not the store that the run was trained on ({trained.path})", *notes]


def learns_rows(record: Mapping[str, Any]) -> bool:
    """Whether the model of a ``run.json`` has learnt rows."""
    encoder = record["model"].get("encoder")
    return isinstance(encoder, Mapping) and bool(encoder.get("learnt"))


def keep_age_unit(model: Model, record: Mapping[str, Any]) -> None:
    """Let a model measure ages of rows in the unit that the run of a ``run.json`` began with."""
    encoder = record["model"].get("encoder")
    if model.encoder is not None and model.encoder.ages is not None and isinstance(encoder, Mapping):
        model.encoder.ages.unit = float(encoder["age_unit"])


def best_checkpoint(folder: RunFolder) -> Path:
    """The best checkpoint of a run, the latest where none was evaluated.

    Raises:
        RunError: there is none.
    """
    latest = latest_checkpoint(folder.checkpoints)
    if latest is None:
        path = folder.path
        raise RunError("has no checkpoint yet", where=str(path), fix=f"Train it first: partita train --resume {path}")
    best = read_state(latest).best
    return folder.checkpoints / best.checkpoint if best else latest
