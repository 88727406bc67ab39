"""What was measured on this machine before, so that nothing is measured twice: links and plans, in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.files import write_text
from partita.core.mesh import Mesh
from partita.core.plan import Plan
from partita.graph.store import GraphStore
from partita.plan.links import Links, cache_folder, links_file, links_hold, measure_links

_ANY = (
    "strategy", "replan", "epochs", "seed", "lr", "weight_decay", "momentum", "schedule", "lr_step", "lr_decay",
    "lr_patience", "warmup", "patience", "metric", "eval_every", "trace", "checkpoint_minutes", "checkpoint_steps",
    "copy_checkpoints", "keep_checkpoints", "heartbeat", "relative_paths",
)  # fmt: skip
"""Settings on which a plan does not depend."""

LINKS_HOLD_TIMES = 1.5
"""Links that a plan has measured are measured again where they are this many times as slow or as fast as they were."""


def links_here(context: Context) -> Links:
    """The links between the workers of a run: as ``partita measure`` has measured them here, not too long ago; or as a
    plan has, if they still are so; or else as they are measured now, quickly, for this plan and later ones. All workers
    call this."""
    mesh = context.mesh
    for quick in (False, True):
        kept = context.agree(partial(_kept_links, mesh, quick=quick))
        if kept is None:
            continue
        links = Links.from_json(kept)
        if not quick or links_hold(context, links, LINKS_HOLD_TIMES):
            return links
    links = measure_links(context, quick=True)

    def keep() -> None:
        with suppress(OSError):  # without a folder for it, nothing is kept
            links.save(links_file(mesh.hosts, mesh.workers, quick=True))

    context.agree(keep)
    return links


def _kept_links(mesh: Mesh, *, quick: bool) -> dict[str, Any] | None:
    """What was measured with as many workers, not too long ago."""
    path = links_file(mesh.hosts, mesh.workers, quick=quick)
    if mesh.size == 1 or not path.exists():
        return None
    try:
        found = Links.load(path)
    except ConfigError:  # nobody has named the file, so it is not the user's to mend
        return None
    return found.to_json() if found.is_of_here else None


def same_plan(made_for: Mapping[str, Any], config: Config, store: GraphStore) -> dict[str, Any]:
    """What runs share for which the same plan is made on the same machine.

    Args:
        made_for: see :class:`~partita.core.plan.Plan`.
        config: the settings of a run.
        store: the graph store, or the shard of a host.
    """
    settings = {name: value for name, value in config.model_dump(mode="json").items() if name not in _ANY}
    hot = store.hot if store.shard is not None else None
    ids = None if hot is None else xxhash.xxh3_64_hexdigest(hot[0].tobytes())
    return {"made_for": dict(made_for), "settings": settings, "hot": ids}


def plan_file(made_for: Mapping[str, Any]) -> Path:
    """Where a plan for such runs is kept.

    Args:
        made_for: :func:`same_plan`, all that a plan depends on beside the machine.
    """
    said = json.dumps(made_for, sort_keys=True, default=str)
    return cache_folder() / "plans" / f"{xxhash.xxh3_64_hexdigest(said.encode())}.json"


def kept_plan(made_for: Mapping[str, Any]) -> Plan | None:
    """A plan for such a run that was made here, with these versions, not too long ago."""
    path = plan_file(made_for)
    if not path.exists():
        return None
    try:
        plan = Plan.load(path)
        links = Links.from_json(plan.links or {})
    except ConfigError:  # as above
        return None
    return plan if links.is_of_here else None


def keep_plan(plan: Plan, made_for: Mapping[str, Any]) -> None:
    """Keep a plan for the next such run; without a folder for it, nothing is kept."""
    path = plan_file(made_for)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(plan.to_json()) + "\n")
