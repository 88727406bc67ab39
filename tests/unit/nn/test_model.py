from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.core.records import Block
from partita.nn.layers import GAT, GCN, GIN, LAYERS, SAGE, PygLayer
from partita.nn.layers.residual import Residual
from partita.nn.model import Model, build_model
from partita.nn.stage import ACTIVATIONS, NORMS, Stage

OPTIONS: dict[str, Any] = {"in_width": 5, "hidden": 8, "out_width": 3, "layers": 3}
STEP = StepKey(seed=1, epoch=2, step=3)


@pytest.fixture
def blocks(make_block: Callable[..., Block]) -> list[Block]:
    """Three layers: 12 -> 7 -> 4 -> 2 rows, with coefficients on the edges."""
    generator = torch.Generator().manual_seed(2)
    chain = []
    for num_dst, num_src in [(7, 12), (4, 7), (2, 4)]:
        counts = torch.randint(5, (num_dst,), generator=generator).tolist()
        block = make_block(num_dst, num_src, counts, generator)
        chain.append(block.with_(weight=torch.rand(block.num_edges), self_weight=torch.rand(num_dst)))
    return chain


@pytest.mark.parametrize("name", list(LAYERS))
def test_builds_and_runs_every_layer(name: str, blocks: list[Block]) -> None:
    model = build_model(name, **OPTIONS, dropout=0.5)
    assert model.widths == (5, 8, 8, 3)
    out = model(blocks, torch.randn(12, 5), STEP)
    assert out.shape == (2, 3)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_heads_are_concatenated_and_averaged_at_the_end() -> None:
    model = build_model("gat", **OPTIONS, heads=4, attn_dropout=0.1)
    assert [(layer.heads, layer.out_per_head, layer.concat) for layer in model.layers] == [  # type: ignore[union-attr]
        (4, 2, True),
        (4, 2, True),
        (4, 3, False),
    ]


def test_nothing_follows_the_last_layer() -> None:
    model = build_model("sage", **OPTIONS, dropout=0.5)
    assert [(s.norm_name, s.activation, s.dropout) for s in model.stages] == [  # type: ignore[union-attr]
        ("layer", "relu", 0.5),
        ("layer", "relu", 0.5),
        ("none", "none", 0.0),
    ]


def test_stage_is_layer_norm_activation_dropout(make_block: Callable[..., Block]) -> None:
    block = make_block(4, 6, [5, 0, 3, 2], torch.Generator().manual_seed(1))
    stage = Stage(SAGE(5, 8), norm="layer", activation="elu", dropout=0.5)
    x = torch.randn(6, 5)
    undropped = nn.functional.elu(nn.functional.layer_norm(stage.layer(block, x), (8,)))
    torch.testing.assert_close(stage(block, x, None, 1), undropped)
    dropped = stage(block, x, STEP, 1)
    assert torch.equal(dropped, stage(block, x, STEP, 1))
    torch.testing.assert_close(dropped[dropped != 0], 2 * undropped[dropped != 0])
    assert not torch.equal(dropped, stage(block, x, STEP, 2))
    assert not torch.equal(dropped, stage(block, x, StepKey(1, 2, 4), 1))


def test_stage_hands_its_layer_the_key_of_attention_dropout(make_block: Callable[..., Block]) -> None:
    block = make_block(4, 6, [5, 0, 3, 2], torch.Generator().manual_seed(1))
    stage = Stage(GAT(5, 8, attn_dropout=0.5))
    x = torch.randn(6, 5)
    for number in (1, 2):
        expected = stage.layer(block, x, STEP.at(Purpose.ATTENTION_DROPOUT, number))
        assert torch.equal(stage(block, x, STEP, number), expected)
    assert torch.equal(stage(block, x, None, 1), stage.layer(block, x))


def test_dropout_follows_the_row_not_its_position(make_block: Callable[..., Block]) -> None:
    block = make_block(4, 6, [5, 0, 3, 2], torch.Generator().manual_seed(1))
    stage = Stage(SAGE(5, 8), dropout=0.5)
    rows = torch.randn(4, 8)
    whole = stage.post(rows, block.dst_original, STEP, 1)
    order = torch.tensor([2, 0])
    assert torch.equal(stage.post(rows[order], block.dst_original[order], STEP, 1), whole[order])


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_norms_take_any_number_of_rows(norm: str, rows: int) -> None:
    stage = Stage(SAGE(5, 8), norm=norm)
    h = torch.randn(rows, 8, requires_grad=True)
    out = stage.post(h, torch.arange(rows), STEP, 1)
    assert out.shape == (rows, 8)
    assert out.isfinite().all()
    out.sum().backward()
    assert h.grad is not None
    assert stage.row_wise == (norm != "batch")


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations_are_row_wise(activation: str) -> None:
    rows = torch.randn(4, 3)
    assert torch.equal(ACTIVATIONS.find(activation)(rows)[1], ACTIVATIONS.find(activation)(rows[1]))


@pytest.mark.parametrize("name", list(LAYERS))
def test_initialisation_depends_on_the_seed_only(name: str) -> None:
    first = build_model(name, **OPTIONS, seed=4)
    torch.manual_seed(0)
    torch.rand(3)
    other = build_model(name, **OPTIONS, seed=5)
    again = build_model(name, **OPTIONS, seed=4)
    for parameter, same in zip(first.parameters(), again.parameters()):
        assert torch.equal(parameter, same)
    drawn = [p.dim() >= 2 and bool((p != p.flatten()[0]).any()) for p in first.parameters()]  # the others are constants
    matrices = [(p, q) for p, q, is_drawn in zip(first.parameters(), other.parameters(), drawn) if is_drawn]
    assert len(matrices) >= 3 or not list(first.layers[0].parameters())
    assert all(not torch.equal(p, q) for p, q in matrices)
    other.reset(4)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), other.parameters()))


def test_initialisation_is_the_same_in_both_precisions_and_differs_between_layers() -> None:
    single, double = build_model("gin", **OPTIONS), build_model("gin", **OPTIONS).double()
    double.reset(0)
    for p, q in zip(single.parameters(), double.parameters()):
        assert torch.equal(p, q.float())
    layers = Model([SAGE(6, 6), SAGE(6, 6)])
    layers.reset(0)
    first, second = layers.layers
    assert not torch.equal(first.lin_l.weight, second.lin_l.weight)  # type: ignore[union-attr]
    assert not torch.equal(first.lin_l.weight, first.lin_r.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("layer", "bound", "bias"),
    [
        (SAGE, 300**-0.5, 300**-0.5),
        (GIN, 300**-0.5, 300**-0.5),
        (GCN, (6 / 500) ** 0.5, 0.0),
        (GAT, (6 / 500) ** 0.5, 0.0),
    ],
)
def test_initial_values_are_spread_as_those_of_pyg(layer, bound, bias) -> None:
    made = layer(300, 200)
    parameters = dict(made.named_parameters())
    weight = next(parameters[name] for name in ("lin_l.weight", "nn.0.weight", "lin.weight") if name in parameters)
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert abs(weight.mean()) < 0.01 * bound
    assert abs(weight.std() / (bound / 3**0.5) - 1) < 0.02
    offset = next(parameters[name] for name in ("lin_l.bias", "nn.0.bias", "bias") if name in parameters)
    assert offset.abs().max() <= bias
    assert offset.abs().max() >= 0.9 * bias


def test_eps_starts_where_it_was_told() -> None:
    assert GIN(3, 4, eps=0.5).eps.item() == 0.5


def test_standalone_layers_start_from_torchs_global_generator() -> None:
    torch.manual_seed(8)
    first, second = SAGE(4, 4), SAGE(4, 4)
    torch.manual_seed(8)
    assert torch.equal(SAGE(4, 4).lin_l.weight, first.lin_l.weight)
    assert not torch.equal(second.lin_l.weight, first.lin_l.weight)


@pytest.mark.parametrize("name", list(LAYERS))
def test_description_builds_the_same_model(name: str) -> None:
    heads = {"heads": 2, "attn_dropout": 0.25} if name == "gat" else {}
    model = build_model(name, **OPTIONS, norm="batch", activation="gelu", dropout=0.25, **heads)
    description = json.loads(json.dumps(model.describe()))
    again = Model.from_description(description)
    assert again.describe() == model.describe()
    again.load_state_dict(model.state_dict())


def test_mixed_models_and_foreign_layers(blocks: list[Block]) -> None:
    class Conv(nn.Module):
        def forward(self, x: tuple[torch.Tensor, torch.Tensor], edge_index: torch.Tensor) -> torch.Tensor:
            return x[1].index_add(0, edge_index[1], x[0][edge_index[0]])

    model = Model.from_layers([SAGE(5, 6), PygLayer(Conv(), 6, 6), GAT(6, 3)], dropout=0.2)
    assert model(blocks, torch.randn(12, 5), STEP).shape == (2, 3)
    with pytest.raises(ConfigError, match="pyg"):
        Model.from_description(model.describe())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "sagee"}, "Did you mean 'sage'"),
        ({"norm": "layers"}, "Did you mean 'layer'"),
        ({"activation": "rely"}, "Did you mean 'relu'"),
        ({"aggregator": "maximum"}, "no aggregator .maximum"),
        ({"dropout": 1.0}, "dropout: a probability"),
        ({"layers": 0}, "at least one layer"),
        ({"hidden": 0}, "at least 1"),
        ({"heads": 2}, "no option 'heads'"),
        ({"name": "gat", "heads": 3}, "multiple of 3"),
        ({"name": "gat", "heads": 0}, "at least one head"),
        ({"name": "gat", "attn_dropout": -0.1}, "attn_dropout: a probability"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], message: str) -> None:
    settings = {"name": "sage", **OPTIONS, **changes}
    with pytest.raises(ConfigError, match=message):
        build_model(settings.pop("name"), **settings)


def test_wrong_chains_are_named(blocks: list[Block]) -> None:
    with pytest.raises(ConfigError, match="layer 1 returns 6 columns, but layer 2 takes 7"):
        Model([SAGE(5, 6), SAGE(7, 3)])
    with pytest.raises(ConfigError, match="at least one layer"):
        Model([])
    with pytest.raises(ValueError, match="3 blocks are needed"):
        build_model("gin", **OPTIONS)(blocks[:2], torch.ones(12, 5))


def test_an_mlp_is_that_of_torch(blocks: list[Block]) -> None:
    model = build_model("mlp", **OPTIONS)
    own = nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)
    )
    own.load_state_dict(dict(zip(own.state_dict(), model.state_dict().values(), strict=True)))
    x = torch.randn(12, 5)
    torch.testing.assert_close(model(blocks, x), own(x[:2]))


@pytest.mark.parametrize("name", list(LAYERS))
def test_residual_connections_add_the_input(name: str, blocks: list[Block]) -> None:
    plain, model = build_model(name, **OPTIONS), build_model(name, **OPTIONS, residual=True)
    assert [type(layer) is Residual for layer in model.layers] == [True, True, False]
    x = torch.randn(12, 5)
    first, second = model.layers[:2]
    assert isinstance(first, Residual)
    assert isinstance(second, Residual)
    assert first.lin_res is not None
    assert second.lin_res is None
    h = plain.layers[0](blocks[0], x) + x[:7] @ first.lin_res.weight.T
    torch.testing.assert_close(first(blocks[0], x), h)
    torch.testing.assert_close(second(blocks[1], h), plain.layers[1](blocks[1], h) + h[:4])
    again = Model.from_description(json.loads(json.dumps(model.describe())))
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(blocks, x), model(blocks, x))
    model.reset(3)
    again.reset(3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))


@pytest.mark.parametrize(
    "change",
    [
        lambda stage: stage.pop("layer"),
        lambda stage: stage["layer"].update(in_width=[3]),
        lambda stage: stage["layer"].update(width=3),
        lambda stage: stage["layer"].pop("name"),
        lambda stage: stage.update(dropout="much"),
        lambda stage: stage.update(output_scale=[1]),
    ],
)
def test_a_description_of_something_else(change) -> None:
    description = build_model("sage", in_width=3, hidden=4, out_width=2, layers=2).describe()
    change(description["stages"][0])
    with pytest.raises(ConfigError, match=r"(?s)model: what it says does not fit together .*run\.json is damaged"):
        Model.from_description(description)
