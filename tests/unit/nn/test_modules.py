"""Models of users: their outputs are those of the same module in plain PyG, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import own_models
import pytest
import torch
from torch import nn

import partita
from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.infer.run import inference_of
from partita.nn.layers import LAYERS
from partita.nn.model import Model, build_model
from partita.nn.modules import ModuleModel, ModuleType, as_model, can_be_made_again, find_model, layers_of, model_from
from partita.setup.check import check_names
from partita.setup.model import named_model
from partita.testing.graphs import small_random_store

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 120, 700)


def outputs(model: Model, store: GraphStore, **settings: Any) -> torch.Tensor:
    config = Config.make({"layers": len(model.stages), **settings})
    inference = inference_of(model, store, config, Context.alone())
    return torch.cat([rows.output for rows in inference.collect()]).clone()


MODULES = {
    "sage": lambda: pyg.GraphSAGE(8, 16, 3, 4, dropout=0.5),
    "gcn": lambda: pyg.GCN(8, 16, 2, 4),
    "gat": lambda: pyg.GAT(8, 16, 2, 4, heads=4),
    "gin": lambda: pyg.GIN(8, 16, 2, 4),
    "conv": lambda: own_models.ConvNet(8, 16, 4),
    "gcn_net": lambda: own_models.GcnNet(8, 4),
    "lazy": lambda: pyg.GraphSAGE(-1, 16, 2, 4),
}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("limit", [None, 2**20])
def test_outputs_are_those_of_the_module_on_the_whole_graph(store, kind, limit) -> None:
    torch.manual_seed(3)
    module = MODULES[kind]()
    layers = layers_of(module)
    assert layers is not None
    model = as_model(module, layers, 8, 4)
    data = partita.to_pyg(store)
    with torch.no_grad():
        wanted = module.eval()(data.x, data.edge_index)
    torch.testing.assert_close(outputs(model, store, memory_limit=limit), wanted, rtol=1e-4, atol=1e-5)
    assert not hasattr(module, "normalize")
    assert all(each.normalize for each in module.modules() if isinstance(each, pyg.GCNConv))


def test_a_model_over_blocks(store) -> None:
    torch.manual_seed(3)
    module = own_models.BlocksNet(8, 16, 4)
    model = as_model(module, 2, 8, 4)
    data = partita.to_pyg(store)
    with torch.no_grad():
        h = module.first(data.x, data.edge_index).relu()
        wanted = module.out(h + module.second(h, data.edge_index))
    torch.testing.assert_close(outputs(model, store), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "layers", "message"),
    [
        (own_models.Whole(), 2, r"forward takes \(graph\).*forward\(self, blocks, x\)"),
        (own_models.ConvNet(8, 16, 4), 3, "calls 2 convolutions, but layers is 3. Set layers=2"),
        (own_models.ConvNet(8, 16, 4), 1, "calls more convolutions than layers=1"),
        (own_models.ConvNet(8, 16, 5), 2, r"returned \(2, 5\) for 2 seeds and 4 outputs"),
        (own_models.ConvNet(7, 16, 4), 2, "cannot be computed on sampled blocks"),
        (own_models.Residual(8, 4), 2, r"fewer rows after it.*x\[: len\(h\)\]"),
        (pyg.GCN(8, 16, 2, 4, improved=True), 2, "improved=True"),
        (pyg.GraphSAGE(8, 16, 2, 4, jk="cat"), 2, "cannot be computed on sampled blocks"),
        (object(), 2, "a object is no model"),
    ],
)
def test_what_cannot_be_computed_is_refused(module, layers, message) -> None:
    with pytest.raises(ConfigError, match=message):
        as_model(module, layers, 8, 4)


def test_what_a_module_draws_and_mixes_is_found_out() -> None:
    def found(module: nn.Module) -> tuple[bool, bool]:
        model = as_model(module, 2, 8, 4)
        assert isinstance(model, ModuleModel)
        return model.draws, model.mixes_rows

    assert found(own_models.ConvNet(8, 16, 4)) == (False, False)
    assert found(own_models.ConvNet(8, 16, 4, dropout=0.5)) == (True, False)
    assert found(own_models.BatchNormNet(8, 16, 4)) == (False, True)
    assert found(pyg.GraphSAGE(8, 16, 2, 4, dropout=0.5, norm="batch")) == (True, True)


def test_making_one_leaves_torchs_generator_as_it_was() -> None:
    module = own_models.ConvNet(8, 16, 4, dropout=0.5)
    before = torch.random.get_rng_state()
    as_model(module, 2, 8, 4)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "options", "make"),
    [
        ("pyg:GATv2Conv", {"heads": 4}, lambda i, o, last: pyg.GATv2Conv(i, o if last else o // 4, 4, concat=not last)),
        ("pyg:GATv2Conv", {"heads": 2, "concat": False}, lambda i, o, last: pyg.GATv2Conv(i, o, 2, concat=False)),
        ("torch_geometric.nn:GATConv", {}, lambda i, o, last: pyg.GATConv(i, o)),
        ("pyg:SAGEConv", {"aggr": "max"}, lambda i, o, last: pyg.SAGEConv(i, o, aggr="max")),
        (
            "pyg:TransformerConv",
            {"heads": 2},
            lambda i, o, last: pyg.TransformerConv(i, o if last else o // 2, 2, concat=not last),
        ),
        ("own_models:MyConv", {}, lambda i, o, last: own_models.MyConv(i, o)),
    ],
)
def test_a_convolution_by_name_is_that_of_pyg(store, name, options, make) -> None:
    model = build_model(name, in_width=8, hidden=16, out_width=4, layers=2, norm="none", seed=1, options=options)
    plain = [make(8, 16, False), make(16, 4, True)]
    for conv, layer in zip(plain, model.layers, strict=True):
        conv.load_state_dict(layer.conv.state_dict())  # the same names and shapes
    data = partita.to_pyg(store)
    with torch.no_grad():
        wanted = plain[1](plain[0](data.x, data.edge_index).relu(), data.edge_index)
    torch.testing.assert_close(outputs(model, store), wanted, rtol=1e-4, atol=1e-5)
    again = model_from(model.describe())
    assert again.describe() == model.describe()
    again.load_state_dict(model.state_dict())
    assert can_be_made_again(model)
    assert torch.equal(outputs(again, store), outputs(model, store))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pyg:GATv2", {}, "Did you mean 'GATv2Conv'"),
        ("pyg:GCNConv", {}, "cannot compute the rows of a sampled block.*pyg:SAGEConv.*gcn"),
        ("pyg:GINConv", {}, "does not take in_channels and out_channels"),
        ("pyg:GATv2Conv", {"heads": 3}, "3 heads do not divide the width 16"),
        ("torch.nn:ReLU", {}, "forward takes|cannot be made"),
        ("math:pi", {}, "neither a layer nor a convolution"),
        ("own_models:BlocksNet", {"in_feats": "x"}, "cannot be made"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(store, name, options, message) -> None:
    config = Config.make({"model": name, "layers": 2, "hidden": 16, "model_options": options})

    def make() -> None:
        check_names(config)
        named_model(config, store, 4)

    with pytest.raises(ConfigError, match=message):
        make()


def test_a_convolution_is_registered_by_its_name(store) -> None:
    partita.register("layer", "attention", "pyg:GATv2Conv")
    try:
        model = named_model(Config.make({"model": "attention", "model_options": "heads=2", "layers": 2}), store, 4)
    finally:
        LAYERS.remove("attention")
    found = [module for module in model.modules() if isinstance(module, pyg.GATv2Conv)]
    assert [each.heads for each in found] == [2, 2]


def test_options_of_a_model_are_looked_up() -> None:
    with pytest.raises(ConfigError, match=r"takes no 'head'. Did you mean 'heads'"):
        check_names(Config.make({"model": "pyg:GATv2Conv", "model_options": {"head": 2}}))
    with pytest.raises(ConfigError, match=r"takes no 'scal'. Did you mean 'scale'"):
        check_names(Config.make({"model": "own_models:BlocksNet", "model_options": {"scal": 2}}))


def test_model_options_as_text_and_as_yaml() -> None:
    assert Config.make({"model_options": "heads=4,concat=false"}).model_options == {"heads": 4, "concat": False}
    assert Config.make({"model_options": ["heads=4,aggr=[a,b]", "x=1"]}).model_options == {
        "heads": 4,
        "aggr": ["a", "b"],
        "x": 1,
    }
    assert Config.make({"model_options": {"heads": 4}}).model_options == {"heads": 4}


def test_models_by_name_are_made_of_the_settings(store) -> None:
    kind = find_model("own_models:BlocksNet")
    assert isinstance(kind, ModuleType)
    settings = {"layers": 2, "hidden": 12, "model": "own_models:BlocksNet", "model_options": {"scale": 0.5}}
    first, second = (named_model(Config.make(settings), store, 4) for _ in range(2))
    assert first.describe() == {
        "module": "own_models:BlocksNet",
        "arguments": {"in_feats": 8, "hidden": 12, "num_classes": 4, "scale": 0.5},
        "layers": 2,
        "widths": [8, 4],
    }
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    again = model_from(first.describe())
    again.load_state_dict(first.state_dict())
    assert torch.equal(outputs(again, store), outputs(first, store))
    assert isinstance(find_model("own_models:make_net"), ModuleType)
    named_model(Config.make({**settings, "model": "own_models:make_net", "model_options": {}}), store, 4)
    basic = Config.make({"layers": 3, "hidden": 12, "model": "pyg:GraphSAGE", "dropout": 0.25})
    assert named_model(basic, store, 4).describe()["arguments"]["num_layers"] == 3
    assert LAYERS.find("sage") is find_model("sage")
