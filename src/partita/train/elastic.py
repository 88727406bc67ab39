"""What every attempt of an elastic job does: go on where the run is, or begin it, with the workers that there are."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from typing import Any

from partita.comm.context import Context
from partita.config import Config
from partita.core.asides import set_aside
from partita.core.errors import ConfigError, RunError
from partita.core.locks import FolderLock
from partita.core.plan import Plan
from partita.parallel.strategies import AUTO
from partita.runs.checkpoint import check_checkpoint, checkpoints_in
from partita.runs.folder import RunFolder
from partita.train.copies import bring_to_first
from partita.train.team import join_team
from partita.train.trainer import RESUMABLE, Trainer

LOCK_SECONDS = 60.0
"""How long to wait for the process of an earlier attempt that still writes the run."""


def go_on_or_begin(
    store: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    config: Config,
    given: Collection[str],
    plan: Plan | None = None,
    trust: str | None = None,
    context: Context | None = None,
) -> Trainer:
    """A trainer that goes on from the latest sound checkpoint of a run, or begins the run where there is none.

    All workers call this. A checkpoint that is damaged is renamed, ``damaged-...``, and the one before it is used. A
    run without a sound checkpoint is replaced.

    Args:
        store: path of the graph store.
        out: the run folder.
        config: all settings. A run that goes on takes those of ``given`` that may change, and the number of workers.
        given: names of the settings that were asked for.
        plan: of the strategy, for a run that begins.
        trust: ``"imports"``: the run folder may name code to import.
        context: of this worker; ``None``: see :class:`~partita.train.trainer.Trainer`.

    Raises:
        ConfigError: a setting was asked for that the run has another value of, and that must not change.
        RunError: the folder holds something else than a run, or another process has been writing it for
            :data:`LOCK_SECONDS`.
        StoreError: the store cannot be used.
    """
    context, config = join_team(context, config)
    brought = bring_to_first(context, RunFolder(out)) if config.copy_checkpoints else None
    held: list[FolderLock] = []
    try:
        found = context.agree(lambda: _find(RunFolder(out), config, given, trust, held))
        if found["changes"] is None:
            trainer = Trainer(store, out=out, config=config, plan=plan, overwrite=True, context=context)
        else:
            trainer = Trainer.resume(out, store=store, trust=trust, context=context, **found["changes"])
    finally:
        for lock in held:  # which the trainer has taken over, if it was made
            lock.release()
    trainer.notes[:0] = [*([] if brought is None else [brought]), *found["notes"]]
    return trainer


def _find(
    folder: RunFolder, config: Config, given: Collection[str], trust: str | None, held: list[FolderLock]
) -> dict[str, Any]:
    """Which settings change where the run goes on, ``None`` where it begins; and what to say of it."""
    if not folder.record.is_file():
        return {"changes": None, "notes": []}
    held.append(_lock(folder))
    RunFolder.open(folder.path)
    notes = list[str]()
    for checkpoint in reversed(checkpoints_in(folder.checkpoints)):
        try:
            state = check_checkpoint(checkpoint)
        except RunError as error:
            notes.append(f"{error.where}: {error.what}; it is now called {set_aside(checkpoint).name}")
            continue
        before = Config.load(folder.config, trust=trust)
        changes = changes_of(before, config, given, str(folder.path))
        workers = f"{config.workers} worker{'' if config.workers == 1 else 's'}"
        if before.workers != config.workers:
            workers += f", not {before.workers}"
        notes.append(f"goes on after {state.epoch} epochs and {state.step} steps, with {workers}")
        return {"changes": changes, "notes": notes}
    return {"changes": None, "notes": [*notes, "no checkpoint to go on from: the run begins anew"]}


def changes_of(before: Config, config: Config, given: Collection[str], where: str) -> dict[str, Any]:
    """The settings to change when a run goes on.

    Args:
        before: those of the run, in which words such as ``auto`` may have been replaced by what they came to.
        config: those that are asked for.
        given: names of the settings that were asked for; the others stay, but for the number of workers.
        where: the run folder, for messages.

    Raises:
        ConfigError: a setting must not change.
    """
    changes = {}
    for name in sorted({*given, "workers"}):
        asked, held = getattr(config, name), getattr(before, name)
        resolved = asked == AUTO or (isinstance(asked, str) and not isinstance(held, str))
        if asked == held or resolved:
            continue
        if name not in RESUMABLE:
            raise ConfigError(
                f"the run has {name} {held}, not {asked}",
                where=where,
                fix="Give the settings that the run began with, or choose another --out",
            )
        changes[name] = asked
    return changes


def _lock(folder: RunFolder) -> FolderLock:
    """Lock a run; an attempt that is being ended may still hold it."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return folder.lock()
        except RunError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
