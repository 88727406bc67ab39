"""Layers that compose the encoder with their own maps: what they compute is what they compute of encoded rows."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from partita.core.node_types import NodeTypes
from partita.core.records import Block, RowsByType
from partita.nn.encoder import EncodedRows, Encoder
from partita.nn.layers import HGT, RGAT, RGCN, HeteroSAGE, Layer

WIDTHS = (6, 3, 0, 2)
RELATIONS = ((0, 0), (1, 0), (0, 1), (2, 1), (3, 0), (1, 3))
ENDS = {"num_types": 4, "relations": RELATIONS}
HEAD, SOURCES = 9, 30
LAYERS = {
    "rgcn": lambda: RGCN(5, 4, **ENDS),
    "bases": lambda: RGCN(5, 4, bases=2, bias=False, **ENDS),
    "hetero-sage mean": lambda: HeteroSAGE(5, 4, **ENDS),
    "hetero-sage sum": lambda: HeteroSAGE(5, 4, aggregator="sum", **ENDS),
    "rgat": lambda: RGAT(5, 2, heads=2, **ENDS),
    "hgt": lambda: HGT(5, 4, heads=2, **ENDS),
    "hgt of one width": lambda: HGT(5, 5, heads=1, **ENDS),
}


def a_block(seed: int, *, weighted: bool, edges: bool = True) -> tuple[Block, RowsByType]:
    """Some destinations without edges, sources in any order within the head and sorted by type behind it."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(3, (SOURCES,), generator=generator)
    kinds[HEAD:] = kinds[HEAD:].sort().values
    rows = []
    for dst in range(HEAD):
        for relation, (source, target) in enumerate(RELATIONS):
            (sources,) = torch.nonzero(kinds == source, as_tuple=True)
            if kinds[dst] == target and edges and (dst + relation) % 4 and len(sources):
                count = int(torch.randint(1, 4, (1,), generator=generator))
                picks = torch.randint(len(sources), (count,), generator=generator)
                rows += [(dst, relation, int(sources[at])) for at in picks]
    dst, relation, src = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(kinds, minlength=4).cumsum(0)])
    nodes = torch.empty(SOURCES, dtype=torch.int64)  # their ids: a range for each type
    nodes[kinds.argsort(stable=True)] = torch.arange(SOURCES)
    weight = torch.rand(len(src), generator=generator, dtype=torch.float64) if weighted else None
    indptr = torch.searchsorted(dst.contiguous(), torch.arange(HEAD + 1))
    block = Block(
        nodes[:HEAD], nodes, indptr, src.int(), nodes[:HEAD], weight=weight, edge_type=relation.int(),
        node_types=NodeTypes(bounds.numpy(), 4),
    )  # fmt: skip
    at = tuple(torch.nonzero(kinds == kind).flatten() for kind in range(4))
    raw = tuple(torch.randn(len(w), n, generator=generator, dtype=torch.float64) for w, n in zip(at, WIDTHS))
    return block, RowsByType(at, raw, HEAD)


def made(name: str) -> tuple[Layer, Encoder]:
    layer, encoder = LAYERS[name]().double(), Encoder(WIDTHS, 5, "abcd").double()
    layer.reset(7)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in (*layer.parameters(), *encoder.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layer, encoder


def gradients(layer: Layer, encoder: Encoder, out: Tensor) -> list[Tensor]:
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    return list(torch.autograd.grad((out * cotangent).sum(), [*layer.parameters(), *encoder.parameters()]))


@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pays", [True, False, None])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_and_gradients_are_those_of_encoded_rows(monkeypatch, name, pays, weighted, edges) -> None:
    """Also those of the encoder's maps of types that the block has no node of, which are 0."""
    if pays is not None and edges:
        monkeypatch.setattr(EncodedRows, "composing_pays", lambda *_: pays)
    block, inputs = a_block(3, weighted=weighted, edges=edges)
    layer, encoder = made(name)
    assert layer.composes_encoder
    expected = layer(block, encoder(inputs))
    found = layer(block, encoder.over(inputs).rows(block))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    pairs = zip(gradients(layer, encoder, found), gradients(layer, encoder, expected), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_autocast_composes_in_the_precision_of_the_parameters(name) -> None:
    """What is rounded to 16 bits is the product of the weights, so results are as near as those of encoded rows."""
    ratios = []
    for seed in range(3, 14):
        block, inputs = a_block(seed, weighted=False)
        layer, encoder = made(name)
        exact = layer(block, encoder(inputs)).detach()
        inputs = RowsByType(inputs.at, tuple(rows.float() for rows in inputs.rows), inputs.head)
        layer, encoder = layer.float(), encoder.float()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            one, other = layer(block, encoder.over(inputs).rows(block)), layer(block, encoder(inputs))
        assert one.dtype == other.dtype
        near, far = (float((rows.double() - exact).norm()) for rows in (one, other))
        ratios.append(near / far)
    assert statistics.median(ratios) < 1.1


def test_encoding_first_is_chosen_where_it_multiplies_less() -> None:
    """Few products of a group save encoding all rows; many, of rows far wider than encoded ones, do not."""
    block, inputs = a_block(3, weighted=False)
    rows = Encoder(WIDTHS, 5, "abcd").double().over(inputs).rows(block)
    assert rows.composing_pays([0, 1], [3, 2], 4)
    wide = RowsByType(inputs.at, (torch.randn(len(inputs.at[0]), 600), *inputs.rows[1:]), HEAD)
    rows = Encoder((600, *WIDTHS[1:]), 5, "abcd").over(wide).rows(block)
    assert rows.composing_pays([0], [len(inputs.at[0])], 5)
    assert not rows.composing_pays([0], [3 * len(inputs.at[0])], 5)
    assert not rows.composing_pays([0], [0], 5)
