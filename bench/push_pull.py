"""Pushing ids to where the edges are, against pulling adjacency lists: biased sampling over a graph cut in parts.

    python bench/push_pull.py --out docs/push_pull_measured.csv --table push_pull_table.md

Needs root and iproute2 (see partita.testing.hosts). Two workers on two hosts draw neighbors in proportion to edge
weights, for batches of 1024 seeds each and three layers, on an R-MAT graph whose adjacency and weights are divided
between them. ``push`` is Partita's collective sampling: ids travel to the owners, picks travel back. ``pull`` is what
there is without it: whole adjacency and weight lists of remote nodes travel to who asks, who draws itself. Both draw
the same (it is checked). Seconds are medians over steps, of the slower worker; the ways take turns. Bytes are those
that left a host's interface.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from hosts import interface_bytes, run_on_hosts
from rows import append_row, read_rows

RATES = ("100mbit", "1gbit", "10gbit")
FANOUTS = ("10,10,10", "15,10,5", "5,5,5")
WAYS = ("push", "pull")
KEY = ("rate", "fanout", "way")
FIELDS = (*KEY, "steps", "seconds", "wire", "edges")
BATCH = 1024
Case = dict[str, Any]


def work(folder: Path) -> None:
    """What every worker does: all cases of a rate."""
    import torch

    import partita
    from partita import kernels
    from partita.comm.axis import make_axis
    from partita.comm.context import Context
    from partita.comm.routing import Route
    from partita.core.keys import fold
    from partita.core.records import Sampled
    from partita.sample.collective import CollectiveTopology
    from partita.sample.samplers import Fanout
    from partita.sample.topology import ArrayTopology, as_tensor
    from partita.train.team import PURPOSES

    plan = json.loads((folder / "plan.json").read_text())
    torch.set_num_threads(1)
    kernels.set_threads(1)
    store = partita.GraphStore.open(folder / "parts")
    weights = torch.from_numpy(np.load(folder / "weights.npy", mmap_mode="c"))
    local = ArrayTopology(
        as_tensor(store.indptr), as_tensor(np.asarray(store.indices)), original=as_tensor(store.original_index),
        weights=weights, weighted=True,
    )  # fmt: skip

    def pull(axis: Any, dst: torch.Tensor, key: int, fanout: int) -> Sampled:
        group = axis.sampling
        owner = axis.owner(dst)
        far = (owner != group.rank).nonzero().flatten()
        route, asked = Route.ask(group, owner[far], dst[far])
        begins, degrees = local._indptr[asked.long()], local.degrees(asked)
        counts = group.exchange(degrees.int(), route.receive, route.send, "ids").long()
        offsets = torch.repeat_interleave(begins - (degrees.cumsum(0) - degrees), degrees)
        edges = offsets + torch.arange(int(degrees.sum()))
        sending = [int(piece.sum()) for piece in degrees.split(list(route.receive))]
        receiving = [int(piece.sum()) for piece in counts.split(list(route.send))]
        lists = group.exchange(local._indices[edges], sending, receiving, "ids")
        bias = group.exchange(weights[edges], sending, receiving, "ids")
        # Rows as they came, by owner; then picks of all destinations in their order.
        came = torch.zeros(len(far) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=came[1:])
        back = torch.arange(len(far)) if route.back is None else route.back.index
        order = torch.empty_like(back)
        order[back] = torch.arange(len(far))
        near = (owner == group.rank).nonzero().flatten()
        mine = local.sample(dst[near], key, fanout)
        theirs = kernels.sample_neighbors(
            came, lists, torch.arange(len(far)), local.original(dst[far[order]]), key, fanout, weights=bias
        )
        place = torch.cat([near, far[order]])
        per = torch.cat([mine.indptr.diff(), theirs.indptr.diff()])
        starts = (per.cumsum(0) - per)[torch.argsort(place)]
        per = per[torch.argsort(place)]
        indptr = torch.zeros(len(dst) + 1, dtype=torch.int64)
        torch.cumsum(per, 0, out=indptr[1:])
        at = torch.repeat_interleave(starts - indptr[:-1], per) + torch.arange(int(indptr[-1]))
        indices = torch.cat([mine.indices, theirs.indices])[at]
        return Sampled(indptr, indices)

    with Context.from_environment(purposes=PURPOSES) as context:
        axis = make_axis(context, "all", as_tensor(store.part_offsets))
        collective = CollectiveTopology(local, axis)
        relabel = kernels.Relabeller(store.num_nodes)
        group = context.group()
        ways = {
            "push": lambda dst, key, fanout: collective.at_owners(dst, Fanout(key, fanout)),
            "pull": lambda dst, key, fanout: pull(axis, dst, key, fanout),
        }
        first, last = (int(store.part_offsets[group.rank + i]) for i in (0, 1))
        for fanout in plan["fanouts"]:
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            wires, edges = dict.fromkeys(WAYS, 0), 0
            for step in range(plan["steps"] + 1):
                seeds = np.random.default_rng([step, group.rank]).choice(last - first, BATCH, replace=False) + first
                found = {}
                for way in WAYS:
                    group.gather(0)
                    wire, begun = interface_bytes(), time.perf_counter()
                    dst = torch.from_numpy(seeds).to(local.id_dtype)
                    drawn = []
                    for layer, count in enumerate(map(int, fanout.split(","))):
                        drawn.append(ways[way](dst, fold(step, layer), count))
                        dst, _ = kernels.relabel(dst, drawn[-1].indices, relabel)
                    seconds = time.perf_counter() - begun
                    group.gather(0)
                    sent = group.gather([seconds, interface_bytes() - wire])
                    found[way] = drawn
                    if step:  # the first one warms up
                        taken[way].append(max(each[0] for each in sent))
                        wires[way] += sum(each[1] for each in sent)
                for one, other in zip(*found.values(), strict=True):
                    assert torch.equal(one.indptr, other.indptr)
                    assert torch.equal(one.src, other.src)
                    assert torch.equal(one.indices, other.indices)
                edges += sum(len(each.indices) for each in found["push"])
            if group.rank == 0:
                for way in WAYS:
                    row = {
                        "rate": plan["rate"], "fanout": fanout, "way": way, "steps": plan["steps"],
                        "seconds": round(statistics.median(taken[way]), 5), "wire": round(wires[way] / plan["steps"]),
                        "edges": round(edges / (plan["steps"] + 1)),
                    }  # fmt: skip
                    append_row(Path(plan["out"]), FIELDS, row)
                    print(row, flush=True)


def make_graph(folder: Path, scale: int, edge_factor: int) -> None:
    import partita

    partita.generate_rmat(folder / "whole", scale=scale, edge_factor=edge_factor, undirected=True)
    store = partita.GraphStore.open(partita.partition(folder / "whole", folder / "parts", parts=2).path)
    # Weights of DSP's kind: one for every node, written on its edges.
    of_node = np.random.default_rng(0).integers(1, 2**16, store.num_nodes, dtype=np.uint32)
    np.save(folder / "weights.npy", of_node[np.asarray(store.indices)])


def table(rows: list[dict[str, str]]) -> str:
    """One line for a link and a fanout."""
    lines = [
        "| link | fanout | push, ms | pull, ms | time saved | push, MB | pull, MB | bytes saved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rate, fanout in itertools.product(RATES, FANOUTS):
        found = {row["way"]: row for row in rows if (row["rate"], row["fanout"]) == (rate, fanout)}
        if len(found) < len(WAYS):
            continue
        (a, b), (m, n) = (
            [float(found[way][name]) * factor for way in WAYS] for name, factor in (("seconds", 1e3), ("wire", 1e-6))
        )
        lines.append(
            f"| {rate} | {fanout} | {a:.0f} | {b:.0f} | {1 - a / b:.0%} | {m:.2f} | {n:.2f} | {1 - m / n:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("push_pull_measured.csv"))
    parser.add_argument("--table", type=Path, help="Markdown file for the table; default: printed")
    parser.add_argument("--scale", type=int, default=18, help="of the R-MAT graph")
    parser.add_argument("--edge-factor", type=int, default=16)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    from partita.testing.hosts import available

    if available() is not None:
        sys.exit(f"hosts cannot be emulated: {available()}")
    done = {(row["rate"], row["fanout"]) for row in read_rows(options.out)}
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        folder = Path(name)
        made = False
        for rate in RATES:
            fanouts = [fanout for fanout in FANOUTS if (rate, fanout) not in done]
            if not fanouts:
                continue
            if not made:
                make_graph(folder, options.scale, options.edge_factor)
                made = True
            plan = {"rate": rate, "fanouts": fanouts, "steps": options.steps, "out": str(options.out.absolute())}
            (folder / "plan.json").write_text(json.dumps(plan))
            run_on_hosts(rate, 1, [__file__, "--worker", str(folder)])
    text = table(read_rows(options.out))
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
