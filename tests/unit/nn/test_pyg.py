"""Every layer equals the PyG convolution that its docstring names, forward and in all gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn.layers import GAT, GCN, GIN, SAGE, Layer, PygLayer
from partita.nn.layers.pyg import seeded

pyg = pytest.importorskip("torch_geometric.nn")

WIDTHS = [(5, 3), (3, 7), (13, 3)]  # project the state, project at the end, project the sources


def assert_equal_to(conv: nn.Module, layer: Layer, block: Block, call: Callable[[Tensor], Tensor]) -> None:
    """Same output, same gradient of every parameter and of the input."""
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in conv.named_parameters()]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    conv.load_state_dict(layer.state_dict())
    x = torch.randn(block.num_src, layer.in_width, dtype=torch.float64, generator=generator)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = layer(block, ours), call(theirs)
    assert out.shape == (block.num_dst, layer.out_width)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(out, expected, **close)
    cotangent = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    (out * cotangent).sum().backward()
    (expected * cotangent).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **close)
    for (name, mine), other in zip(layer.named_parameters(), conv.parameters()):
        torch.testing.assert_close(_grad(mine), _grad(other), **close, msg=lambda m, name=name: f"{name}: {m}")


def _grad(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("aggregator", ["mean", "sum", "max"])
def test_sage(block: Block, aggregator: str, bias: bool, widths: tuple[int, int]) -> None:
    layer = SAGE(*widths, aggregator=aggregator, bias=bias).double()
    conv = pyg.SAGEConv(*widths, aggr=aggregator, bias=bias).double()
    assert_equal_to(conv, layer, block, lambda x: conv((x, x[: block.num_dst]), block.edge_index()))


@pytest.mark.parametrize("widths", WIDTHS[:2])
def test_gin(block: Block, widths: tuple[int, int]) -> None:
    layer = GIN(*widths).double()
    mlp = nn.Sequential(nn.Linear(*widths), nn.ReLU(), nn.Linear(widths[1], widths[1]))
    conv = pyg.GINConv(mlp, train_eps=True).double()
    assert_equal_to(conv, layer, block, lambda x: conv((x, x[: block.num_dst]), block.edge_index()))


@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (3, False)])
def test_gat(block: Block, heads: int, concat: bool, bias: bool, add_self_loops: bool) -> None:
    layer = GAT(5, 4, heads, concat=concat, bias=bias, add_self_loops=add_self_loops).double()
    conv = pyg.GATConv(5, 4, heads, concat, bias=bias, add_self_loops=add_self_loops).double()
    # Attention parameters first or last: PyG registers its parameters in another order.
    ordered = dict(conv.named_parameters())
    assert set(ordered) == {name for name, _ in layer.named_parameters()}
    assert_equal_to(
        _Ordered(conv, [name for name, _ in layer.named_parameters()]),
        layer,
        block,
        lambda x: conv((x, x[: block.num_dst]), block.edge_index()),
    )


class _Ordered:
    """A module whose parameters are listed in a given order."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        self.module, self.names = module, names
        self.load_state_dict = module.load_state_dict

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        parameters = dict(self.module.named_parameters())
        return [(name, parameters[name]) for name in self.names]

    def parameters(self) -> list[Tensor]:
        return [parameter for _, parameter in self.named_parameters()]


def test_attention_logits_of_any_size_stay_finite(make_block: Callable[..., Block]) -> None:
    block = make_block(4, 6, [5, 0, 3, 2], torch.Generator().manual_seed(1))
    layer = GAT(5, 4, 2).double()
    conv = pyg.GATConv(5, 4, 2).double()
    conv.load_state_dict(layer.state_dict())
    x = 1e4 * torch.randn(6, 5, dtype=torch.float64)
    out = layer(block, x)
    assert out.isfinite().all()
    torch.testing.assert_close(out, conv((x, x[:4]), block.edge_index()), rtol=1e-9, atol=1e-9)


def full_graph(loops: bool) -> Block:
    """All in-edges of every node of a graph with multi-edges and nodes of in-degree zero, with GCN's coefficients."""
    generator = torch.Generator().manual_seed(11)
    n, edges = 9, 30
    dst = torch.randint(2, n, (edges,), generator=generator).sort().values
    src = torch.randint(n, (edges,), generator=generator)
    src = torch.where(src == dst, (src + 1) % n, src)
    if loops:
        src[::4] = dst[::4]
    loop = src == dst
    indptr = torch.zeros(n + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=n).cumsum(0)
    dhat = torch.bincount(dst[~loop], minlength=n).double() + 1
    weight = torch.where(loop, 0.0, 1.0 / torch.sqrt(dhat[src] * dhat[dst]))
    nodes = torch.arange(n)
    return Block(
        dst=nodes,
        src=nodes,
        indptr=indptr,
        indices=src.int(),
        dst_original=nodes,
        weight=weight,
        self_weight=1.0 / dhat,
    )


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loops", [True, False])
def test_gcn(loops: bool, bias: bool, widths: tuple[int, int]) -> None:
    block = full_graph(loops)
    layer = GCN(*widths, bias=bias).double()
    conv = pyg.GCNConv(*widths, bias=bias).double()
    names = [name for name, _ in layer.named_parameters()]
    assert_equal_to(_Ordered(conv, names), layer, block, lambda x: conv(x, block.edge_index()))


def test_gcn_refuses_a_block_without_coefficients(block: Block) -> None:
    with pytest.raises(ValueError, match="self_weight"):
        GCN(4, 2)(block, torch.ones(block.num_src, 4))


@pytest.mark.parametrize(
    ("conv", "out_width"),
    [(pyg.GATv2Conv(4, 3, heads=2, add_self_loops=False), 6), (pyg.GraphConv(4, 3), 3), (pyg.SAGEConv(4, 3), 3)],
    ids=["GATv2", "GraphConv", "SAGE"],
)
def test_adapter_calls_the_convolution(block: Block, conv: nn.Module, out_width: int) -> None:
    layer = PygLayer(conv, 4, out_width)
    x = torch.randn(block.num_src, 4)
    expected = conv((x, x[: block.num_dst]), block.edge_index())
    assert torch.equal(layer(block, x), expected)


def test_adapter_draws_dropout_from_its_key_and_leaves_the_global_generator_alone(
    make_block: Callable[..., Block],
) -> None:
    block = make_block(4, 6, [5, 4, 3, 2], torch.Generator().manual_seed(1))
    layer = PygLayer(pyg.GATConv(4, 3, dropout=0.5), 4, 3)
    x = torch.randn(6, 4)
    before = torch.get_rng_state()
    first = layer(block, x, 2**64 - 5)
    assert torch.equal(layer(block, x, 2**64 - 5), first)
    assert not torch.equal(layer(block, x, 6), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_that_draw_wait_for_each_other() -> None:
    def drawn(key: int) -> Tensor:
        with seeded(key):
            parts = []
            for _ in range(5):
                parts.append(torch.rand(3))
                time.sleep(0.002)  # others would draw meanwhile
            return torch.cat(parts)

    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(drawn, range(8)))
    assert torch.equal(torch.get_rng_state(), before)
    for key, values in enumerate(found):
        assert torch.equal(values, torch.rand(15, generator=torch.Generator().manual_seed(key)))


def test_adapter_says_what_it_cannot_do(block: Block) -> None:
    layer = PygLayer(pyg.SAGEConv(4, 3), 4, 3)
    assert layer.split is None
    assert layer.columns is None
    wrong = PygLayer(pyg.SAGEConv(4, 3), 4, 5)
    with pytest.raises(ConfigError, match="out_width"):
        wrong(block, torch.ones(block.num_src, 4))


def test_adapter_is_initialised_by_key() -> None:
    layers = [PygLayer(pyg.SAGEConv(4, 3), 4, 3) for _ in range(2)]
    for layer in layers:
        layer.reset(5)
    assert torch.equal(layers[0].conv.lin_l.weight, layers[1].conv.lin_l.weight)
    layers[1].reset(6)
    assert not torch.equal(layers[0].conv.lin_l.weight, layers[1].conv.lin_l.weight)
