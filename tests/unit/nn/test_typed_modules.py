"""Modules of PyG for typed graphs: losses, gradients and outputs are those of the same module in plain PyG."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from steps import Outcome, difference, distributed
from torch import Tensor, nn
from typed_graphs import TypedStep, typed_store

from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.graph.store import GraphStore
from partita.infer.run import inference_of
from partita.nn.model import Model
from partita.nn.modules import ModuleModel, as_model, layers_of, model_from
from partita.setup.model import graph_types, named_model

pytest.importorskip("torch_geometric")


MODULES = ("hetero_sage", "hetero_gat", "hetero_basic", "hetero_edges", "Mixed", "EdgeConvs", "Hgt")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, GraphStore]:
    folder = tmp_path_factory.mktemp("typed")
    return {parts: typed_store(folder / f"g{parts}", parts=parts) for parts in (1, 2, 3)}


def made(store: GraphStore, name: str, **options: Any) -> ModuleModel:
    settings = {"layers": 2, "hidden": 6, "seed": 3, "dropout": 0.0, "model_options": options}
    model = named_model(Config.make({"model": f"typed_modules:{name}", **settings}), store, 2)
    assert isinstance(model, ModuleModel)
    return model


@dataclass(frozen=True)
class ModuleStep(TypedStep):
    """A step with a module; the seeds are papers."""

    def model(self) -> Model:
        return made(self.store, self.kind).to(self.dtype).train()


def step_of(store: GraphStore, kind: str, **changes: Any) -> ModuleStep:
    seeds = store.to_original(store.nodes_of("paper"))[::3]
    return ModuleStep(store, kind, **{"fanouts": (3, 2), "seeds": tuple(seeds.tolist()), **changes})


def in_dicts(step: ModuleStep, block: Block, nodes: Tensor) -> tuple[dict, dict, dict]:
    """A block as PyG takes it, edge by edge: numbers are places among the nodes of the type."""
    store, column = step.store, step.column()
    schema = store.schema
    kinds = store.types(nodes.numpy()).tolist()
    place, count = [], [0] * len(schema.node_types)
    for kind in kinds:
        place.append(count[kind])
        count[kind] += 1
    x = {}
    for number, name in enumerate(schema.node_types):
        ids = [node for node, kind in zip(nodes.tolist(), kinds) if kind == number]
        rows = torch.tensor(store.type_rows(torch.tensor(ids, dtype=torch.int64).numpy()))
        features = column.columns[number]
        x[name] = torch.ones(len(ids), 1, dtype=step.dtype) if features is None else features.read(rows)
    edges = {(each.source, each.name, each.target): [] for each in schema.relations}
    attr = {name: [] for name in edges}
    for edge, (source, target) in enumerate(zip(block.indices.tolist(), block.edge_dst().tolist())):
        name = list(edges)[int(block.edge_type[edge])]
        edges[name].append((place[source], place[target]))
        if block.edge_attr is not None:
            attr[name].append(block.edge_attr[edge])
    index = {name: torch.tensor(each, dtype=torch.int64).reshape(-1, 2).T for name, each in edges.items()}
    width = store.num_edge_features
    features = {
        name: torch.stack(each).to(step.dtype) if each else torch.empty(0, width, dtype=step.dtype)
        for name, each in attr.items()
    }
    return x, index, features


def plain(step: ModuleStep, found: Outcome, run: Any) -> Outcome:
    """The loss and the gradients of ``run(module, blocks in dictionaries)``, which returns the rows of papers."""
    model = step.model()
    (batch,) = found.batches
    blocks = [work.block for work in batch.works]
    nodes = blocks[0].src.long()
    out = run(model.module, [in_dicts(step, block, nodes) for block in blocks])[: len(batch.requests)]
    labels = step.original()[batch.requests.long()] % step.classes
    loss = nn.functional.cross_entropy(out, labels, reduction="sum") / len(step.seeds)
    loss.backward()
    gradients = {
        name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()
    }
    return Outcome(loss.detach(), gradients, {}, [])


def of_papers(found: Any) -> Tensor:
    return found if isinstance(found, Tensor) else found["paper"]


@pytest.mark.parametrize("kind", MODULES)
def test_a_step_with_all_neighbors_is_that_of_plain_pyg_on_the_subgraph(stores, kind) -> None:
    """The edges of the first layer are all that a batch of PyG's ``NeighborLoader`` has."""
    step = step_of(stores[1], kind, fanouts=(-1, -1))
    found = distributed(step, "data,data", 1)

    def run(module: nn.Module, blocks: list) -> Tensor:
        x, index, attr = blocks[0]
        return of_papers(module(x, index, attr) if "dges" in kind or kind == "EdgeConvs" else module(x, index))

    assert difference(found, plain(step, found, run)) < 1e-9


@pytest.mark.parametrize("kind", ["Mixed", "EdgeConvs", "Hgt"])
def test_a_step_on_a_sample_is_that_of_plain_pyg_layer_by_layer(stores, kind) -> None:
    step = step_of(stores[1], kind)
    found = distributed(step, "data,data", 1)

    def run(module: nn.Module, blocks: list) -> Tensor:
        x = blocks[0][0]
        if kind == "Hgt":
            x = {name: module.lins[name](each).relu() for name, each in x.items()}
        for conv, (_, index, attr) in zip(module.convs, blocks, strict=True):
            x = conv(x, index, edge_attr_dict=attr) if kind == "EdgeConvs" else conv(x, index)
            x = {name: each.relu() for name, each in x.items()} if kind == "Mixed" else x
        return {"Mixed": lambda: module.lin(x["paper"]), "Hgt": lambda: module.out(x["paper"])}.get(
            kind, lambda: x["paper"]
        )()

    assert difference(found, plain(step, found, run)) < 1e-9


@pytest.mark.parametrize("kind", MODULES)
def test_workers_together_compute_what_one_does(stores, kind) -> None:
    steps = {workers: step_of(stores[1], kind) for workers in (1, 2, 3)}
    one = distributed(steps[1], "data,data", 1, seed_split="even")
    for workers in (2, 3):
        found = distributed(replace(steps[workers], parts=None), "data,data", workers, seed_split="even")
        assert difference(found, one) < 1e-9


@pytest.mark.parametrize("kind", MODULES)
def test_types_without_edges_and_workers_without_seeds_have_gradients_of_zero(stores, kind) -> None:
    """Papers and those that they cite, on two workers of which one has no seed."""
    step = step_of(stores[1], kind, fanouts=((2, 0, 0, 0, 0), (2, 0, 0, 0, 0)))
    found = distributed(replace(step, seeds=step.seeds[:1]), "data,data", 2, seed_split="even")
    assert all(bool(each.isfinite().all()) for each in found.gradients.values())
    one = distributed(replace(step, seeds=step.seeds[:1]), "data,data", 1)
    assert difference(found, one) < 1e-9


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("limit", [None, 2**20])
def test_outputs_are_those_of_the_module_on_the_whole_graph(stores, kind, limit) -> None:
    store = stores[2]
    model = made(store, kind).double()
    config = Config.make({"layers": 2, "precision": "float64", "memory_limit": limit})
    ids = torch.from_numpy(store.nodes_of("paper"))
    inference = inference_of(model, store, config, Context.alone())
    found = torch.cat([rows.output for rows in inference.collect(ids)])
    step = ModuleStep(store, kind, fanouts=(-1, -1))
    nodes = torch.arange(store.num_nodes)
    block = inference.neighbors.block(nodes, model.layers[0], 1, inference._relabeller, torch.float64)
    x, index, attr = in_dicts(step, block, block.src.long())
    with torch.no_grad():
        module = model.module.eval()
        wanted = of_papers(module(x, index, attr) if model._typed.reads_edges else module(x, index))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_rows_are_computed_in_the_dtype_of_the_module_whatever_the_store_holds(stores) -> None:
    """Features of typed graphs are read as they are stored."""
    model = made(stores[1], "Mixed").double()
    blocks, rows, _ = model._typed.small(2, 2, torch.float16)
    widened = replace(rows, rows=tuple(each.double() for each in rows.rows))
    assert torch.equal(model(blocks, rows), model(blocks, widened))


def test_lazy_widths_are_filled_in_by_the_seed_and_the_model_is_made_again_by_name(stores) -> None:
    first, second = made(stores[1], "Mixed"), made(stores[1], "Mixed")
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    again = model_from(first.describe())
    again.load_state_dict(first.state_dict())
    assert again.describe() == first.describe()
    assert first.describe()["types"]["widths"] == (5, 3, 0)


def test_layers_are_counted(stores) -> None:
    assert [layers_of(made(stores[1], kind).module) for kind in MODULES] == [2] * len(MODULES)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("Mean", {}, "the row of a seed depends on which other seeds"),
        ("Degrees", {}, "depends on more than its in-edges.*not GCNConv"),
        ("OwnEdges", {}, "not given edges of edge_index_dict as they are"),
        ("Mixed", {"layers": 3}, "more layers of convolutions than layers=2.*Set layers=3"),
        ("Mixed", {"layers": 1}, "has 1 layers of convolutions, but layers is 2"),
        ("Sage", {"out": 2}, r"takes \(x, edge_index\), as models of untyped graphs do.*to_hetero"),
    ],
)
def test_what_cannot_be_computed_is_refused(stores, kind, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        made(stores[1], kind, **options)


def test_strategies_that_place_layers_are_refused(stores) -> None:
    with pytest.raises(ConfigError, match=r"layers of a torch.nn.Module are not known"):
        distributed(step_of(stores[2], "Mixed"), "data,destination", 2)


def test_dropout_is_refused_on_several_workers(stores) -> None:
    model = made(stores[1], "Mixed", dropout=0.5)
    assert (model.draws, model.mixes_rows) == (True, False)
    assert as_model(model.module, 2, 0, 2, graph_types(stores[1])).draws
