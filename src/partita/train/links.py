"""The store of a run that predicts links: one that holds some out, to judge the model by."""

from __future__ import annotations

from pathlib import Path

from partita.comm.context import Context
from partita.config import Config
from partita.core import progress
from partita.core.errors import ConfigError, StoreError
from partita.graph.options import SplitLinksOptions
from partita.graph.store import GraphStore
from partita.setup.check import LINKS, check_names
from partita.setup.temporal import is_temporal

SUFFIX = ".links"
"""Of the store with links held out, behind the name of the one that has them all."""


def with_held_out(store: GraphStore, config: Config, context: Context | None = None) -> GraphStore:
    """The store that a run trains on: the one given, unless links are predicted and it has none held out.

    Then links are held out as ``partita split`` does it, in a store beside, which later runs find there; but none where
    edges have times that count, by which links are split then.

    Args:
        store: the one that was given.
        config: the settings.
        context: of this worker; ``None``: it is the only one. All workers call this.

    Raises:
        StoreError: what is beside the store is something else, or nothing can be written there.
        ConfigError: the shares are impossible, or a name in the settings stands for nothing.
    """
    if config.task != LINKS or store.held_out or is_temporal(config, store):  # those of times are split by time
        return store
    check_names(config)  # before anything is written
    store.require_whole("holding links out")
    if context is None or context.mesh.size == 1:
        return GraphStore.open(_beside(store, config))
    if context.mesh.hosts > 1:
        raise ConfigError(
            "the store has no links held out",
            where=str(store.path),
            fix=f"Hold some out first, and give every host the result: partita split {store.path} OUT",
        )
    return GraphStore.open(context.agree(lambda: str(_beside(store, config))))


def _beside(store: GraphStore, config: Config) -> Path:
    from partita.graph.split_links import split_links  # imports a compiler, which other runs can do without

    val, test = _shares(config)
    path = store.path.with_name(store.path.name + SUFFIX)
    wanted = {"val": val, "test": test, "seed": SplitLinksOptions().seed, "of": store.fingerprint}
    if path.exists():
        note = GraphStore.open(path).metadata.notes.get("links", {})
        if {name: note.get(name, 0.0) for name in wanted} != wanted:  # a share of 0 is not noted
            raise StoreError(
                "holds out other links than this run is to be judged by",
                where=str(path),
                fix=f"Remove it, or hold links out yourself and train on that: partita split {store.path} OUT",
            )
        return path
    try:
        made = split_links(store, path, val=val, test=test)
    except PermissionError as error:
        raise StoreError(
            f"cannot be written ({error.strerror})",
            where=str(path),
            fix=f"Hold links out elsewhere and train on that: partita split {store.path} OUT",
        ) from None
    held = ", ".join(f"{count:,} for {name}" for name, count in made.held_out.items())
    progress.say(f"links held out ({held}) in {path}, on which the run trains")
    return path


def _shares(config: Config) -> tuple[float, float]:
    """Of the links, for validation and for testing.

    Raises:
        ConfigError: they are no two numbers.
    """
    try:
        val, test = (float(share) for share in config.held_out.split(","))
    except ValueError:
        raise ConfigError(
            f"'{config.held_out}' are not two shares", where="held_out", fix="Give two numbers, for instance 0.05,0.1"
        ) from None
    return val, test
