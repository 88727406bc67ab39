"""One training step of every strategy on a small graph, as the pages under docs/strategies show it.

It runs the engine on workers that are threads. ``python docs/strategy_example.py gsplit`` prints what it counted;
``python docs/strategy_example.py`` fills the marked blocks of the pages.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partita.comm.threads import ThreadContext, ThreadGroups
from partita.core.errors import PartitaError
from partita.core.keys import StepKey
from partita.core.records import Block, Counts, Traffic
from partita.features.rows import FeatureColumn
from partita.graph.build import TopologyBuilder
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.nn.layers import LAYERS, PygLayer
from partita.nn.model import Model
from partita.parallel.engine import MiniBatch
from partita.parallel.forecast import messages
from partita.parallel.inputs import TieredReads
from partita.parallel.placements.destination import DestinationWork
from partita.parallel.placements.feature import FeatureWork
from partita.parallel.placements.source_rows import RowsWork
from partita.parallel.placements.source_states import StatesWork
from partita.parallel.seed_split import share_of
from partita.parallel.strategies import build_engine, parse_strategy
from partita.sample.topology import LocalTopology

PAGES = Path(__file__).with_name("strategies")
_MARK = re.compile(r"(<!-- (example|refusal): (.+?) -->\n```text\n).*?(\n```\n<!-- end -->)", re.DOTALL)

KINDS = ("ids", "features", "forward", "backward")
"""What placements move; gradients of parameters are the same under every strategy."""

NODES = "abcdefghijkl"
NEIGHBORS = {"a": "cd", "b": "di", "c": "ef", "d": "ek", "g": "ij", "h": "jd", "i": "kl", "j": "kl"}
SEEDS = "agbh"
OWNED = 6
"""Worker 0 owns the first six nodes, worker 1 the others."""
FEATURES, HIDDEN, CLASSES, FANOUTS = 64, 16, 4, (2, 2)

NUMBERS = (
    "destinations", "sources", "edges", "remote_destinations", "remote_pairs", "remote_edges", "remote_sources",
)  # fmt: skip
"""What bytes follow from, as the pages name it."""

Pair = tuple[int, int]


@dataclass
class Level:
    """What a worker has at one level: 0 are input rows, l the rows of layer l.

    Attributes:
        made: nodes whose row is read or computed here.
        got: nodes whose row comes from another worker, and which.
        parts: nodes of which a partial row is computed here for another worker, and which.
        edges: from a node's row at the level below to a row (or, where marked, to a partial row) of this level.
    """

    made: list[int] = field(default_factory=list)
    got: list[Pair] = field(default_factory=list)
    parts: list[Pair] = field(default_factory=list)
    edges: set[tuple[int, int, bool]] = field(default_factory=set)


@dataclass
class Share:
    """One worker's part of the step.

    Attributes:
        levels: input rows first.
        counts: edges and rows.
        numbers: of each level, by name (:data:`NUMBERS`): what bytes follow from.
        traffic: bytes, as the placements say.
        sent: bytes that were counted on the way, by kind.
        columns: which part of every input row is read.
    """

    levels: list[Level]
    counts: Counts
    numbers: list[dict[str, int]]
    traffic: Traffic
    sent: dict[str, int]
    columns: slice


def make_store(path: Path) -> GraphStore:
    """The graph of all pictures, in two parts."""
    pairs = [(NODES.index(u), NODES.index(v)) for v, found in NEIGHBORS.items() for u in found]
    src, dst = (np.array(ends, dtype=np.int64) for ends in zip(*pairs))
    with StoreWriter(path) as writer:
        builder = TopologyBuilder(writer, memory_limit=1 << 20)
        builder.add(src, dst, None)
        summary = builder.finish(len(NODES))
        writer.write("x", np.ones((len(NODES), FEATURES), dtype=np.float32))
        writer.write("part_offsets", np.array([0, OWNED, len(NODES)]))
        writer.finish(num_nodes=len(NODES), num_edges=summary.num_edges, source="drawn")
    return GraphStore.open(path)


def make_model(kind: str = "sage") -> Model:
    """Two layers; also such that some placements refuse."""
    widths = ((FEATURES, HIDDEN), (HIDDEN, CLASSES))
    if kind == "pyg":
        from torch_geometric.nn import SAGEConv

        return Model.from_layers([PygLayer(SAGEConv(*pair), *pair) for pair in widths])
    name, _, option = kind.partition(" with ")
    options = {"attn_dropout": 0.1} if option == "attention dropout" else {}
    layers = [LAYERS.find(name).for_model(*pair, last=pair is widths[1], **options) for pair in widths]
    return Model.from_layers(layers, norm="batch" if option == "batch normalization" else "none")


def run(strategy: str, workers: int, hosts: int = 1, kind: str = "sage") -> list[Share]:
    """One step, forward and backward; returns every worker's share."""
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "graph")
        groups = ThreadGroups(workers, hosts)
        models = [make_model(kind) for _ in range(workers)]
        return groups.run(lambda context: _run_worker(context, store, strategy, models[context.mesh.rank]))


def _run_worker(context: ThreadContext, store: GraphStore, strategy: str, model: Model) -> Share:
    mesh, topology = context.mesh, LocalTopology(store)
    column = FeatureColumn(torch.from_numpy(np.array(store.x)), dtype=torch.float32)
    offsets = torch.from_numpy(np.array(store.part_offsets))
    parsed = parse_strategy(strategy, len(FANOUTS))
    engine = build_engine(parsed, model, topology, column, FANOUTS, torch.float32, context, offsets)
    seeds = torch.tensor([NODES.index(seed) for seed in SEEDS], dtype=topology.id_dtype)
    mine = share_of(seeds, mesh, "owner" if mesh.size > 1 else "even", offsets)
    batch = engine.sample(mine, StepKey(seed=1, epoch=0, step=0))
    engine.forward(batch).sum().backward()
    sent = {kind: sum(links.values()) for kind, links in context.meter.snapshot().items()}
    columns = getattr(engine.placements[0], "columns", slice(0, FEATURES))
    traffic = sum(messages(engine, batch), Traffic())
    found = levels(batch, mesh.rank, parsed.inputs == "by-owner")
    return Share(found, batch.counts, numbers(batch, mesh.rank % 2), traffic, sent, columns)


def levels(batch: MiniBatch, rank: int, by_owner: bool) -> list[Level]:
    """What a worker has at each level, from its works. Worker r owns what worker r mod 2 owns in the store."""
    host, me = rank - rank % 2, rank % 2
    requests, found = batch.seeds, []
    for work in reversed(batch.works):
        found.append(_level(work, requests, me, host))
        requests = _below(work)
    inputs = Level(made=_distinct(batch.inputs.reads))
    if by_owner:
        inputs.got = [(v, host + owner(v)) for v in _distinct(requests) if owner(v) != me]
    return [inputs, *reversed(found)]


def numbers(batch: MiniBatch, me: int) -> list[dict[str, int]]:
    """What a worker's bytes at each level follow from."""
    requests, found = batch.seeds, []
    for work in reversed(batch.works):
        found.append({"destinations": len(_distinct(requests)), **_numbers(work, me)})
        requests = _below(work)
    inputs = {}
    if isinstance(batch.inputs, TieredReads):
        inputs = {"destinations": len(_distinct(requests)), "remote_destinations": batch.inputs.tier.remote}
    return [inputs, *reversed(found)]


def _numbers(work: object, me: int) -> dict[str, int]:
    if isinstance(work, DestinationWork):
        return {"remote_destinations": work.route.remote(me)}
    found = {"edges": work.num_edges}  # type: ignore[attr-defined]
    if isinstance(work, FeatureWork):
        found["sources"] = work.block.num_src
    if isinstance(work, RowsWork):
        found["remote_sources"] = work.route.remote(me)
    if isinstance(work, StatesWork):
        shuffle = work.shuffle
        sizes = {"destinations": shuffle.own_send, "pairs": shuffle.virtual_send, "edges": shuffle.edge_send}
        found |= {f"remote_{name}": sum(of) - of[me] for name, of in sizes.items()}
    return found


def _level(work: object, requests: Tensor, me: int, host: int) -> Level:
    if isinstance(work, StatesWork):
        asker = [who for who, count in enumerate(work.virtual_receive) for _ in range(count)]
        level = _divided(work.virtual, asker, me, host)
        level.made = requests.tolist()
        return level
    if isinstance(work, FeatureWork):
        asker = [who for who, count in enumerate(work.num_dst) for _ in range(count)]
        return _divided(work.merged, asker, me, host, own=True)
    block: Block = work.block  # type: ignore[attr-defined]
    level = Level(made=block.dst.tolist(), edges={(u, v, False) for u, v, _ in _edges(block, own=True)})
    level.got = [(v, host + owner(v)) for v in requests.tolist() if v not in level.made]
    return level


def _divided(block: Block, asker: Sequence[int], me: int, host: int, *, own: bool = False) -> Level:
    """Where a row is put together from what several workers compute for it."""
    level = Level()
    for position, node in enumerate(block.dst.tolist()):
        if asker[position] == me:
            level.made.append(node)
        else:
            level.parts.append((node, host + asker[position]))
    for u, v, position in _edges(block, own=own):
        level.edges.add((u, v, asker[position] != me))
    if not own:  # the destination's own term is computed by its owner
        for position, v in enumerate(block.dst.tolist()):
            if owner(v) == me:
                level.edges.add((v, v, asker[position] != me))
    return level


def _edges(block: Block, *, own: bool) -> Iterator[tuple[int, int, int]]:
    """Source, destination, and the position of the destination; with the destinations' own rows as sources."""
    dst = block.dst.tolist()
    sources = block.indices if block.src is None else block.src[block.indices.long()]
    for u, position in zip(sources.tolist(), block.edge_dst().tolist()):
        yield u, dst[position], position
    if own:
        for position, v in enumerate(dst):
            yield v, v, position


def _below(work: object) -> Tensor:
    """The nodes whose rows of the level below a worker needs."""
    if isinstance(work, FeatureWork):
        return work.merged.src  # type: ignore[return-value]
    by_states = isinstance(work, StatesWork)
    block: Block = work.virtual if by_states else work.block  # type: ignore[attr-defined]
    own = work.own_block.dst if by_states else block.dst  # type: ignore[attr-defined]
    return torch.cat([own, block.indices if block.src is None else block.src])


def _distinct(ids: Tensor) -> list[int]:
    return sorted(set(ids.tolist()))


def owner(node: int) -> int:
    """Position of the worker that owns a node."""
    return int(node >= OWNED)


def check_traffic(shares: Sequence[Share]) -> Traffic:
    """Bytes of all workers by kind, as the placements say; an error where others were counted on the way."""
    traffic = sum((share.traffic for share in shares), Traffic())
    for kind, said in traffic.to_json().items():
        counted = sum(share.sent[kind] for share in shares)
        if said != counted:
            raise RuntimeError(f"{kind}: {said} bytes by the placements, {counted} counted on the way")
    return traffic


def example(strategy: str, workers: int = 2, hosts: int = 1) -> str:
    """What a page shows: counts summed over the workers by level, and the bytes that follow from them."""
    shares = run(strategy, workers, hosts)
    found = [
        {name: sum(each.get(name, 0) for each in level) for name in NUMBERS}
        for level in zip(*(share.numbers for share in shares))
    ]
    names = [name for name in NUMBERS if any(each[name] for each in found)]
    table = [("", "input rows", *(f"layer {level}" for level in range(1, len(found))))]
    table += [(name, *(str(each[name]) for each in found)) for name in names]
    lines = [f"{row[0]:<20}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in table]
    total = sum((share.counts for share in shares), Counts.zero(len(FANOUTS)))
    first, second = total.computed_destinations
    sent = ", ".join(f"{kind} {count:,}" for kind, count in check_traffic(shares).to_json().items())
    lines += [
        "",
        f"computed: {first} rows in layer 1, {second} in layer 2; {total.sampled_edges} edges drawn; "
        f"{total.input_rows_read} input rows read",
        f"bytes, as traffic() says and as counted on the way: {sent}",
    ]
    return "\n".join(lines)


def refusal(what: str) -> str:
    """The message with which ``STRATEGY, MODEL`` is refused on two workers."""
    strategy, _, kind = what.partition("; ")
    try:
        run(strategy, 2, kind=kind)
    except PartitaError as error:
        return textwrap.fill(f"partita: {error}", 110, break_on_hyphens=False)
    raise RuntimeError(f"{what} is not refused")


def filled(page: str) -> str:
    """The page with every marked block up to date."""

    def fill(match: re.Match[str]) -> str:
        words = match[3].split()
        made = refusal(match[3]) if match[2] == "refusal" else example(words[0], *map(int, words[1:]))
        return match[1] + made + match[4]

    return _MARK.sub(fill, page)


def main() -> None:
    """Print one example, or fill the pages."""
    if sys.argv[1:]:
        print(example(sys.argv[1], *map(int, sys.argv[2:])))
        return
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
