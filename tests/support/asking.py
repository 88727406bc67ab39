"""Who asks whom for what, worked out by brute force with Python sets: no code of the engine but the draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from steps import KEY, Step

from partita.core.keys import Purpose
from partita.core.records import LayerRows


@dataclass
class Expected:
    """What a step should cost.

    Attributes:
        rows: over all workers, of level 0 and each layer, layer 1 first.
        computed: rows computed, per layer and worker.
        edges: edges drawn, per layer, over all workers.
        read: distinct input rows per worker.
    """

    rows: list[LayerRows]
    computed: list[list[int]]
    edges: list[int]
    read: list[int]


def neighbors(step: Step, layer: int) -> dict[int, list[int]]:
    """The draws of every node of the graph, as if all were asked for."""
    topology = step.topology()
    nodes = torch.arange(step.store.num_nodes).to(topology.id_dtype)
    found = topology.sample(nodes, KEY.at(Purpose.SAMPLE, layer), step.fanouts[layer - 1])
    bounds, indices = found.indptr.tolist(), found.indices.tolist()
    return {v: indices[bounds[v] : bounds[v + 1]] for v in range(step.store.num_nodes)}


def by_sources(step: Step, layer: int, count: LayerRows, sources: int) -> bool:
    """Whether projected sources are fewer bytes than states of attention, written out for float64."""
    last = layer == len(step.fanouts)
    heads = 2 if last else 3
    columns = step.classes if last else step.hidden // heads
    states = heads * (columns + 2) * count.remote_pairs
    queries = heads * (count.remote_destinations + count.remote_pairs)
    by_states = 8 * (2 * count.remote_pairs + count.remote_edges) + 2 * 8 * (states + queries)
    return 8 * sources + 2 * 8 * heads * columns * sources < by_states


def expected(step: Step, placements: tuple[str, ...], inputs: str, shares: list[list[int]]) -> Expected:
    """Follow the requests of all workers from the seeds down.

    Args:
        step: the step.
        placements: layer 1 first.
        inputs: level 0.
        shares: seeds of each worker; a worker owns the part of its number.
    """
    offsets = step.part_offsets().tolist()
    parts = range(len(offsets) - 1)
    owner = {v: part for part in parts for v in range(offsets[part], offsets[part + 1])}
    workers = range(len(shares))
    asked = [set(share) for share in shares]
    rows, computed, edges = [], [], []
    for layer in range(len(step.fanouts), 0, -1):
        drawn, placement = neighbors(step, layer), placements[layer - 1]
        remote = sum(owner[v] != w for w in workers for v in asked[w])
        count = LayerRows(destinations=sum(map(len, asked)))
        if placement == "destination":
            count = LayerRows(destinations=count.destinations, remote_destinations=remote)
            asked = [{v for share in asked for v in share if owner[v] == w} for w in workers]
        work = asked
        edges.append(sum(len(drawn[v]) for share in asked for v in share))
        if placement in ("data", "feature"):
            below = [share | {u for v in share for u in drawn[v]} for share in asked]
            sources = sum(map(len, below)) if placement == "feature" else 0
            count = LayerRows(destinations=count.destinations, edges=edges[-1], sources=sources)
        elif placement == "destination":
            below = [share | {u for v in share for u in drawn[v]} for share in asked]
        else:
            pairs = {(w, v, o) for w in workers for v in asked[w] for o in {owner[u] for u in [v, *drawn[v]]}}
            far = sum(owner[u] != w for w in workers for v in asked[w] for u in drawn[v])
            count = LayerRows(
                destinations=count.destinations,
                edges=edges[-1],
                remote_destinations=remote,
                remote_pairs=sum(w != o for w, _, o in pairs),
                remote_edges=far,
            )
            everything = {u for share in asked for v in share for u in [v, *drawn[v]]}
            below = [{u for u in everything if owner[u] == w} for w in workers]
            sources = sum(len({u for v in asked[w] for u in [v, *drawn[v]] if owner[u] != w}) for w in workers)
            if step.kind.startswith("gat") and by_sources(step, layer, count, sources):
                count = LayerRows(destinations=count.destinations, edges=count.edges, remote_sources=sources)
        if step.split_topology:
            away = [v for w in workers for v in work[w] if owner[v] != w]
            count += LayerRows(drawn_destinations=len(away), drawn_edges=sum(len(drawn[v]) for v in away))
        rows.append(count)
        computed.append([len(share) for share in work])
        asked = below
    if inputs == "by-owner":
        remote = sum(owner[v] != w for w in workers for v in asked[w])
        rows.append(LayerRows(destinations=sum(map(len, asked)), remote_destinations=remote))
        asked = [{v for share in asked for v in share if owner[v] == w} for w in workers]
    elif inputs == "columns":
        everything = {v for share in asked for v in share}
        asked = [everything for _ in workers]
        rows.append(LayerRows(destinations=sum(map(len, asked))))
    else:
        rows.append(LayerRows())
    return Expected(rows[::-1], computed[::-1], edges[::-1], [len(share) for share in asked])
