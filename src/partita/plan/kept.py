"""What was measured on this machine before, so that nothing is measured twice: links and plans, in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from partita.core.errors import ConfigError
from partita.core.files import write_text
from partita.core.mesh import Mesh
from partita.core.plan import Plan
from partita.plan.links import Links, links_file


def kept_links(mesh: Mesh) -> Links | None:
    """What ``partita measure`` has measured here, with as many workers, not too long ago."""
    path = links_file(mesh.hosts, mesh.workers)
    if mesh.size == 1 or not path.exists():
        return None
    try:
        found = Links.load(path)
    except ConfigError:  # nobody has named the file, so it is not the user's to mend
        return None
    return found if found.is_of_here else None


def plan_file(made_for: Mapping[str, Any]) -> Path:
    """Where a plan for such runs is kept.

    Args:
        made_for: all that a plan depends on, beside the machine.
    """
    said = json.dumps(made_for, sort_keys=True, default=str)
    return links_file(1, 1).with_name("plans") / f"{xxhash.xxh3_64_hexdigest(said.encode())}.json"


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
