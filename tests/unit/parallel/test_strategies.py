"""Names of strategies, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.nn import GATConv, GraphConv

from partita.comm.threads import ThreadContext, ThreadGroups
from partita.core.errors import ConfigError
from partita.features.rows import FeatureColumn
from partita.nn import ops
from partita.nn.layers import GAT, SAGE, Layer, PygLayer
from partita.nn.model import Model
from partita.parallel.engine import Engine
from partita.parallel.strategies import STRATEGIES, Strategy, build_engine, parse_strategy
from partita.sample.topology import LocalTopology, as_tensor
from partita.testing.graphs import formula_store


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gdp", Strategy("direct", ("data", "data", "data"))),
        ("nfp", Strategy("columns", ("feature", "data", "data"))),
        ("snp", Strategy("direct", ("source", "data", "data"))),
        ("dnp", Strategy("direct", ("destination", "data", "data"))),
        ("gsplit", Strategy("by-owner", ("destination",) * 3)),
        ("source, destination, data", Strategy("direct", ("source", "destination", "data"))),
        ("feature,data,destination", Strategy("columns", ("feature", "data", "destination"))),
        ("by-owner,data,data,data", Strategy("by-owner", ("data",) * 3)),
        ("data@hosts+gsplit@workers", Strategy("by-owner", ("destination",) * 3, "workers")),
        ("nfp@hosts+gdp@workers", Strategy("columns", ("feature", "data", "data"), "hosts")),
        ("data@hosts+data@workers", Strategy("direct", ("data",) * 3)),
        ("snp@workers", Strategy("direct", ("source", "data", "data"), "workers")),
    ],
)
def test_what_a_strategy_stands_for(text: str, wanted: Strategy) -> None:
    assert parse_strategy(text, 3) == wanted


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_can_be_written_out_and_read_again(name: str) -> None:
    strategy = parse_strategy(name, 2)
    assert parse_strategy(str(strategy), 2) == strategy
    assert parse_strategy(name, 1).placements == strategy.placements[:1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gsplt", "unknown strategy or placement 'gsplt'. Did you mean 'gsplit'"),
        ("auto", "must be resolved before training"),
        ("sorce,data,data", "'sorce'. Did you mean 'source'"),
        ("source,data", "2 placements for 3 layers.*layer 1"),
        ("data,by-owner,data,data", "'by-owner' is for input rows"),
        ("by-owner,feature,data,data", "input placement 'by-owner' does not go with 'feature'"),
        ("columns,data,data,data", "input placement 'columns' does not go with 'data'"),
        ("gsplit@rack+data@hosts", "unknown axis 'rack'"),
        ("gsplit+data@hosts", "'gsplit' is for no axis"),
        ("gsplit@hosts+snp@workers", "both axes"),
        ("data@hosts+gsplit@hosts", "given twice"),
        ("", "unknown strategy"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_strategy(text, 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return formula_store(tmp_path_factory.mktemp("strategies") / "g", num_parts=2)


def build(store: Any, layers: list[Layer], strategy: str, workers: int, norm: str = "none") -> list[Engine]:
    """The engines of all workers."""
    parsed = parse_strategy(strategy, len(layers))

    def work(context: ThreadContext) -> Engine:
        model = Model.from_layers(layers, norm=norm)
        column = FeatureColumn(as_tensor(store.x))
        topology, offsets = LocalTopology(store), as_tensor(store.part_offsets)
        return build_engine(parsed, model, topology, column, [2] * len(layers), torch.float32, context, offsets)

    return ThreadGroups(workers).run(work)


def pyg(width: int, out: int) -> PygLayer:
    return PygLayer(GraphConv(width, out), width, out)


class Plain(Layer):
    """Nothing but ``forward``."""

    name = "plain"

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out)
        self.lin = torch.nn.Linear(width, out)

    def forward(self, block: Any, h: Any, key: int | None = None) -> torch.Tensor:
        return self.lin(ops.aggregate(block, ops.all_rows(h), "sum"))


REFUSED = [
    ([Plain(4, 5), SAGE(5, 3)], "snp", r"layer 1 \(plain\).*'source'.*'data' or 'destination'"),
    ([Plain(4, 5), SAGE(5, 3)], "nfp", r"layer 1 \(plain\).*'feature'.*'data' or 'destination'"),
    ([pyg(4, 5), SAGE(5, 3)], "snp", r"layer 1 \(pyg\).*'source'.*'data' or 'destination'"),
    ([SAGE(4, 5), pyg(5, 3)], "data,source", r"layer 2 \(pyg\).*'source'"),
    ([pyg(4, 5), SAGE(5, 3)], "nfp", r"layer 1 \(pyg\).*'feature'.*'data' or 'destination'"),
    ([SAGE(4, 5), SAGE(5, 3)], "feature,feature", r"layer 2 \(sage\).*'feature'.*layer 1"),
    ([GAT(4, 5, attn_dropout=0.2), GAT(5, 3)], "snp", r"layer 1 \(gat\).*attention dropout.*attn_dropout to 0"),
    ([PygLayer(GATConv(4, 5, dropout=0.1), 4, 5), SAGE(5, 3)], "gdp", r"layer 1 \(pyg\).*dropout depends on"),
]


@pytest.mark.parametrize(("layers", "strategy", "message"), REFUSED)
def test_what_a_placement_cannot_compute_is_refused(store, layers, strategy, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build(store, layers, strategy, 2)


def test_batch_norm_is_for_one_worker(store) -> None:
    layers = [SAGE(4, 5), SAGE(5, 3)]
    with pytest.raises(ConfigError, match=r"norm, layer 1.*one worker"):
        build(store, layers, "gdp", 2, norm="batch")
    build(store, layers, "gsplit", 1, norm="batch")


def test_a_convolution_with_dropout_is_for_one_worker(store) -> None:
    layers = [PygLayer(GATConv(4, 5, dropout=0.1), 4, 5), PygLayer(GATConv(5, 3), 5, 3)]
    assert [layer.draws_by_call for layer in layers] == [True, False]
    build(store, layers, "gsplit", 1)
    wrapped = PygLayer(torch.nn.Sequential(torch.nn.Dropout(0.5)), 4, 4)
    assert wrapped.draws_by_call


def test_owners_need_a_part_for_every_worker(store) -> None:
    layers = [SAGE(4, 5), SAGE(5, 3)]
    for strategy in ("gsplit", "snp", "dnp"):
        with pytest.raises(ConfigError, match=r"3 workers.*2 parts.*--parts 3"):
            build(store, layers, strategy, 3)
    for strategy in ("gdp", "nfp"):
        build(store, layers, strategy, 3)
    build(store, layers, "gsplit", 1)


def test_layers_that_are_placed_alike_share_their_placement(store) -> None:
    (engine,) = build(store, [SAGE(4, 5), SAGE(5, 5), SAGE(5, 3)], "gsplit", 1)
    assert len({id(placement) for placement in engine.placements}) == 1


def test_all_placements_of_an_engine_share_their_scratch(store) -> None:
    (engine,) = build(store, [SAGE(4, 5), SAGE(5, 5), SAGE(5, 3)], "source,destination,data", 1)
    assert {id(placement.worker) for placement in engine.placements} == {id(engine.worker)}  # type: ignore[attr-defined]
