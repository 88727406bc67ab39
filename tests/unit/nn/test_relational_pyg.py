"""Layers of typed graphs beside those of PyG: rows and gradients, with the same parameters."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.core.records import Block, RowsByType
from partita.nn.encoder import Encoder
from partita.nn.layers import HGT, LAYERS, RGAT, RGCN, HeteroLayer, HeteroSAGE
from partita.nn.model import Model

pyg = pytest.importorskip("torch_geometric.nn")

NAMES = ("a", "b", "c")
SIZES = (7, 5, 6)
RELATIONS = ((0, 0), (1, 0), (0, 1), (0, 0), (2, 1), (1, 2))
ENDS = {"num_types": 3, "relations": RELATIONS}
TRIPLES = [(NAMES[source], f"r{at}", NAMES[target]) for at, (source, target) in enumerate(RELATIONS)]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
BOUNDS = [0, *accumulate(SIZES)]


@pytest.fixture
def edges() -> dict[tuple[str, str, str], Tensor]:
    """Of every relation; some nodes have none, some several between the same ends."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for triple, (source, target) in zip(TRIPLES, RELATIONS, strict=True):
        ends = [torch.randint(SIZES[kind] - 1, (12,), generator=generator) for kind in (source, target)]
        found[triple] = torch.stack(ends)
    return found


@pytest.fixture
def block(edges: dict[tuple[str, str, str], Tensor]) -> Block:
    """All nodes, with all their in-edges."""
    rows = [
        (BOUNDS[target] + int(v), at, BOUNDS[source] + int(u))
        for at, (source, target) in enumerate(RELATIONS)
        for u, v in edges[TRIPLES[at]].T
    ]
    dst, kinds, src = torch.tensor(sorted(rows)).T
    nodes = torch.arange(BOUNDS[-1])
    indptr = torch.searchsorted(dst.contiguous(), torch.arange(BOUNDS[-1] + 1))
    types = NodeTypes(np.array(BOUNDS), 3)
    return Block(nodes, nodes, indptr, src.int(), nodes, edge_type=kinds.int(), node_types=types)


@pytest.fixture
def x() -> Tensor:
    rows = torch.randn(BOUNDS[-1], 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return rows.requires_grad_()


def by_type(x: Tensor) -> dict[str, Tensor]:
    return {name: x[first:last] for name, (first, last) in zip(NAMES, pairwise(BOUNDS), strict=True)}


def compare(ours: Tensor, theirs: Tensor, x: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, **CLOSE)
    cotangent = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=ours.dtype)
    grads = [torch.autograd.grad((out * cotangent).sum(), x, retain_graph=True)[0] for out in (ours, theirs)]
    torch.testing.assert_close(*grads, **CLOSE)


@pytest.mark.parametrize("bases", [0, 2])
def test_rgcn_is_that_of_pyg_with_the_mean_of_each_relation(block, edges, x, bases: int) -> None:
    theirs = pyg.RGCNConv(8, 5, len(RELATIONS), num_bases=bases or None).double()
    ours = RGCN(8, 5, bases=bases, **ENDS).double()
    ours.load_state_dict(theirs.state_dict())
    index = torch.stack([block.indices.long(), block.edge_dst()])
    compare(ours(block, x), theirs(x, index, block.edge_type.long()), x)


@pytest.mark.parametrize("aggregator", ["mean", "sum"])
def test_hetero_sage_is_a_hetero_conv_of_sage(block, edges, x, aggregator: str) -> None:
    theirs = pyg.HeteroConv({triple: pyg.SAGEConv(8, 5, aggr=aggregator) for triple in TRIPLES}).double()
    ours = HeteroSAGE(8, 5, aggregator=aggregator, **ENDS).double()
    with torch.no_grad():
        ours.root.zero_()
        ours.bias.zero_()
        for at, triple in enumerate(TRIPLES):
            conv, target = theirs.convs[triple], RELATIONS[at][1]
            ours.weight[at] = conv.lin_l.weight
            ours.root[target] += conv.lin_r.weight
            ours.bias[target] += conv.lin_l.bias
    compare(ours(block, x), torch.cat(list(theirs(by_type(x), edges).values())), x)


@pytest.mark.parametrize(("heads", "concat"), [(1, True), (2, True), (2, False)])
def test_rgat_is_a_hetero_conv_of_gat(block, edges, x, heads: int, concat: bool) -> None:
    convs = {triple: pyg.GATConv(8, 3, heads, concat=concat, add_self_loops=False) for triple in TRIPLES}
    theirs, ours = pyg.HeteroConv(convs).double(), RGAT(8, 3, heads, concat=concat, **ENDS).double()
    with torch.no_grad():
        ours.bias.zero_()
        for at, triple in enumerate(TRIPLES):
            conv = theirs.convs[triple]
            conv.bias.uniform_()
            ours.weight[at], ours.att_src[at], ours.att_dst[at] = conv.lin.weight, conv.att_src[0], conv.att_dst[0]
            ours.bias[RELATIONS[at][1]] += conv.bias
    compare(ours(block, x), torch.cat(list(theirs(by_type(x), edges).values())), x)


CONVS = {
    "sage": lambda width: pyg.SAGEConv((-1, -1), width),
    "gat": lambda width: pyg.GATConv(8, width, add_self_loops=False),
    "graph": lambda width: pyg.GraphConv((8, 8), width, aggr="max"),
}


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "cat"])
def test_a_layer_of_hetero_conv_is_that_of_pyg(block, edges, x, aggr: str) -> None:
    """Of another convolution for every relation; lazy ones are filled in."""
    kinds = list(CONVS)
    chosen = TRIPLES if aggr != "cat" else [TRIPLES[at] for at in (0, 1, 2, 4, 5, 5)]
    convs = {triple: CONVS[kinds[at % 3]](4) for at, triple in enumerate(dict.fromkeys(chosen))}
    if aggr == "cat":  # as wide for every type
        convs[TRIPLES[5]] = CONVS["sage"](8)
    theirs = pyg.HeteroConv(convs, aggr=aggr)
    ours = HeteroLayer(theirs, 8, 8 if aggr == "cat" else 4, (NAMES, TRIPLES)).double()
    there = {triple: edges[triple] for triple in convs}
    compare(ours(block, x), torch.cat([theirs(by_type(x), there)[name] for name in NAMES]), x)


@pytest.mark.parametrize(("kind", "options"), [("SAGEConv", {}), ("GATv2Conv", {"heads": 2}), ("TransformerConv", {})])
def test_a_convolution_by_name_is_a_hetero_conv_of_it(block, edges, x, kind: str, options: dict) -> None:
    metadata = [list(NAMES), [list(triple) for triple in TRIPLES]]
    ours = LAYERS.find(f"pyg:{kind}").for_model(8, 4, last=True, metadata=metadata, **options).double()
    compare(ours(block, x), torch.cat([ours.conv(by_type(x), edges)[name] for name in NAMES]), x)
    again = LAYERS.find(f"pyg:{kind}")(**ours.arguments()).double()
    for layer in (again, ours):
        layer.reset(5)
    assert torch.equal(again(block, x), ours(block, x))
    assert not any(getattr(each, "add_self_loops", False) for each in ours.modules())


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_relations_have_names_that_pyg_does_not_give_back(block, x) -> None:
    """It makes dots of hash signs."""
    iris = [(source, f"http://a.org/v.1#{name}", target) for source, name, target in TRIPLES]
    rows = []
    for triples in (TRIPLES, iris):
        torch.manual_seed(2)
        convs = {each: pyg.SAGEConv(8, 4) for each in triples[::-1]}
        rows.append(HeteroLayer(pyg.HeteroConv(convs), 8, 4, (NAMES, triples)).double()(block, x))
    torch.testing.assert_close(rows[1], rows[0], rtol=0, atol=0)
    with pytest.raises(ConfigError, match=r"for the relation a:http://a.org/v.r9:b, which the graph has not"):
        HeteroLayer(pyg.HeteroConv({("a", "http://a.org/v#r9", "b"): pyg.SAGEConv(8, 4)}), 8, 4, (NAMES, iris))


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_a_type_that_no_convolution_leads_to_has_rows_of_zeros(block, x) -> None:
    ours = HeteroLayer(pyg.HeteroConv({TRIPLES[1]: pyg.SAGEConv((8, 8), 4)}), 8, 4, (NAMES, TRIPLES)).double()
    rows = by_type(ours(block, x))
    assert rows["a"].any()
    assert not rows["b"].any()
    with pytest.raises(ConfigError, match="relation a:r9:b, which the graph has not"):
        HeteroLayer(pyg.HeteroConv({("a", "r9", "b"): pyg.SAGEConv(8, 4)}), 8, 4, (NAMES, TRIPLES))


@pytest.mark.parametrize(("heads", "width"), [(1, 8), (2, 8), (2, 6)])
def test_hgt_is_that_of_pyg(block, edges, x, heads: int, width: int) -> None:
    """With an input as wide as the result the own row skips the layer."""
    theirs = pyg.HGTConv(8, width, (list(NAMES), TRIPLES), heads).double()
    ours = HGT(8, width, heads, **ENDS).double()
    count = len(RELATIONS)
    with torch.no_grad():
        for at, name in enumerate(NAMES):
            lin = theirs.kqv_lin.lins[name]
            lin.bias.uniform_()
            for part, target in enumerate(("key", "query", "value")):
                getattr(ours, f"{target}_weight")[at] = lin.weight.chunk(3)[part]
                getattr(ours, f"{target}_bias")[at] = lin.bias.chunk(3)[part]
            ours.out_weight[at] = theirs.out_lin.lins[name].weight
            ours.out_bias[at] = theirs.out_lin.lins[name].bias.uniform_()
            if ours.skip is not None:
                ours.skip[at] = theirs.skip[name].uniform_()[0]
        for at, triple in enumerate(TRIPLES):
            numbers = [head * count + theirs.edge_types_map[triple] for head in range(heads)]
            ours.attention[at], ours.messages[at] = theirs.k_rel.weight[numbers], theirs.v_rel.weight[numbers]
            ours.prior[at] = theirs.p_rel["__".join(triple)].uniform_()[0]
    compare(ours(block, x), torch.cat(list(theirs(by_type(x), edges).values())), x)


def test_a_model_of_two_layers_takes_the_rows_of_all_types(block, x) -> None:
    """The encoder, then the layers; a type without features has one row for all of its nodes."""
    layers = [RGCN(8, 4, **ENDS), HGT(4, 2, **ENDS)]
    encoder = Encoder([8, 8, 0], 8, NAMES)
    model = Model.from_layers(layers, norm="none", encoder=encoder).double().eval()
    at = tuple(torch.arange(first, last) for first, last in pairwise(BOUNDS))
    inputs = RowsByType(at, (x[at[0]], x[at[1]], x[at[2], :0]), 0)
    encoded = torch.cat([encoder.lins[0](x[at[0]]), encoder.lins[1](x[at[1]])])
    encoded = torch.cat([encoded, encoder.lins[2].weight.T.expand(SIZES[2], -1)])
    expected = layers[1](block, layers[0](block, encoded).relu())
    torch.testing.assert_close(model([block, block], inputs), expected, **CLOSE)
    again = Model.from_description(model.describe()).double().eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again([block, block], inputs), model([block, block], inputs))
    with pytest.raises(ValueError, match="need an encoder"):
        Model.from_layers([RGCN(8, 4, **ENDS)]).double()([block], inputs)


@pytest.mark.parametrize("head", [0, 4, 18])
def test_rows_behind_the_head_need_not_be_put_in_order(head: int) -> None:
    """Whatever part of the nodes is sorted by type, rows and gradients are those of all nodes one by one."""
    generator = torch.Generator().manual_seed(5)
    kinds = torch.randint(3, (18,), generator=generator)
    kinds[head:] = kinds[head:].sort().values
    encoder = Encoder([4, 3, 0], 5, NAMES).double()
    rows = [
        torch.randn(int((kinds == at).sum()), width, generator=generator).double() for at, width in enumerate((4, 3, 0))
    ]
    at = tuple(torch.nonzero(kinds == kind).flatten() for kind in range(3))
    out = encoder(RowsByType(at, tuple(rows), head))
    wanted = torch.empty(18, 5, dtype=torch.float64)
    for where, lin, mine in zip(at, encoder.lins, rows):
        wanted[where] = lin(mine if mine.shape[1] else mine.new_ones(len(mine), 1))
    torch.testing.assert_close(out, wanted)
    cotangent = torch.randn(18, 5, generator=generator).double()
    parameters = list(encoder.parameters())
    found = torch.autograd.grad((out * cotangent).sum(), parameters, retain_graph=True)
    for mine, other in zip(found, torch.autograd.grad((wanted * cotangent).sum(), parameters), strict=True):
        torch.testing.assert_close(mine, other)
