"""Plans on machines that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.config import Config
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.parallel.strategies import Strategy
from partita.plan.candidates import candidates
from partita.plan.cost import Estimate
from partita.plan.dryrun import DryRun
from partita.plan.estimates import Estimates, make_estimates
from partita.plan.links import Curve, Links
from partita.plan.rates import PerBlock, PerRow, Rates

SETTINGS = {"workers": 2, "layers": 2, "fanout": "6,5", "batch_size": 64, "hidden": 16}


@dataclass
class Machine:
    """One that is made up.

    Attributes:
        send: seconds for a byte sent.
        compute: for a destination computed in any layer.
        latency: for a message.
        edge: for an edge drawn.
        row: for a source of layer 1, whose input row is read.
        far: for a byte sent to another host.
        handled_id, handled_byte: for an id, and for a byte of a row, on its way.
        file_byte: for a byte read from files, a read being so many bytes itself.
        busy: part of the time of messages and of reading files in which processors are busy.
    """

    send: float = 1e-9
    compute: float = 1e-7
    latency: float = 0.0
    edge: float = 1e-9
    row: float = 0.0
    far: float = 1e-9
    handled_id: float = 0.0
    handled_byte: float = 0.0
    file_byte: float = 0.0
    busy: float = 1.0

    def rates(self, types: int = 1) -> Rates:
        stages = (PerBlock(0.0, self.compute, self.row, 0.0), PerBlock(0.0, self.compute, 0.0, 0.0))
        kept = (PerBlock(0.0, 64.0, 0.0, 4.0), PerBlock(0.0, 32.0, 0.0, 4.0))
        return Rates(
            self.edge, (PerRow(self.row),) * types, self.handled_id, self.handled_byte, stages, kept, 1.0, 0.0, 1e5,
            file_byte=self.file_byte, file_idle=(1 - self.busy) * self.file_byte,
        )  # fmt: skip

    def links(self) -> Links:
        curves = {}
        for link, each in (("same_host", self.send), ("other_host", self.far)):
            seconds = (self.latency, self.latency + 1e6 * each)
            curves[link] = Curve((0.0, 1e6), seconds, tuple(self.busy * took for took in seconds))
        return Links(curves, curves, 2, 2, {}, "2026-01-01T00:00:00+00:00")


def require_counted(plan: Estimates, name: str, record: Mapping[str, Any]) -> Estimate:
    """See that a plan of all steps says of a strategy what the ``run.json`` of an epoch says; what it says."""
    found = next(found for each, found in plan.found.items() if each.name == name)
    assert found.counts.to_json() == record["counts"], name
    sent = {kind: record["traffic_bytes"][kind] for kind in ("ids", "features", "forward", "backward")}
    assert found.traffic.to_json() == sent, name
    assert found.gradient_bytes == record["traffic_bytes"]["gradients"], name
    return found


def planned(
    store: GraphStore, on: Machine, hosts: int = 1, *, shards: bool = False, precise: bool = False,
    few_steps: bool = False, **settings
) -> Estimates:  # fmt: skip
    config = Config.make({**SETTINGS, **settings}, where="test")
    mesh = Mesh.of(0, hosts * config.workers, config.workers)
    seconds = 0.0 if mesh.size > 8 or few_steps else 1e3  # as few steps as may be, or all
    dry_run = DryRun(store, config, mesh, candidates(config.layers, mesh), shards=shards)
    return make_estimates(
        dry_run, mesh, on.rates(store.node_types.count), on.links(), seconds=seconds, memory=config.memory_per_worker,
        precise=precise,
    )  # fmt: skip


def best(found: Estimates) -> Strategy:
    return next(iter(found.epochs()))


def seconds_of(plan: Estimates) -> dict[str, float]:
    return {each.name: plan.foreseen(each).total for each in plan.found}
