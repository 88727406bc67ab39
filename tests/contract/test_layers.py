"""What must be true of every layer of the table, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from partita.core.node_types import NodeTypes
from partita.core.records import Block
from partita.nn import ops
from partita.nn.layers import LAYERS, Layer
from partita.nn.layers.base import Split
from partita.nn.layers.reductions import REDUCTIONS

CLOSE = {"rtol": 1e-9, "atol": 1e-9}

WIDTHS = [(6, 4), (4, 6), (11, 2)]

TYPES = NodeTypes(np.array([0, 25, 1000]), 2)
"""Of the nodes of all blocks here: ids below 25 have type 0, others 1."""
RELATIONS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0))
TYPED = {"num_types": 2, "relations": RELATIONS}


EDGES = 3
"""Columns of the features of edges."""


def variants(able: Callable[[Layer], object] = lambda layer: True) -> list[Any]:
    """Every layer with every combination of widths and of the few arguments that change its form; those that can."""
    extra: dict[str, list[dict[str, Any]]] = {
        "sage": [{"aggregator": name} for name in REDUCTIONS],
        "gat": [
            {"heads": heads, "concat": concat, "add_self_loops": loops}
            for heads, concat, loops in [(1, True, True), (2, True, False), (2, False, True)]
        ],
        "gatv2": [
            {"edge_width": width, "heads": heads, "concat": concat, "add_self_loops": loops}
            for width, heads, concat, loops in [(EDGES, 2, True, True), (EDGES, 2, False, False), (0, 1, True, True)]
        ],
        "transformer": [
            {"edge_width": width, "heads": 2, "concat": concat} for width, concat in [(EDGES, True), (0, False)]
        ],
        "gine": [{"edge_width": EDGES}],
        "rgcn": [{}, TYPED, {**TYPED, "bases": 2}],
        "hetero-sage": [{}, *({**TYPED, "aggregator": name} for name in ("mean", "sum"))],
        "rgat": [{}, *({**TYPED, "heads": 2, "concat": concat} for concat in (True, False))],
        "hgt": [{}, TYPED, {**TYPED, "heads": 2, "inner_width": 8}],
    }
    return [
        pytest.param(name, {**arguments}, widths, id=f"{name}-{'-'.join(map(str, arguments.values()))}-{widths}")
        for name in LAYERS
        for arguments in extra.get(name, [{}])
        for widths in WIDTHS
        if able(LAYERS.find(name)(*widths, **arguments))
    ]


ARGUMENTS = ("name", "arguments", "widths")
every_layer = pytest.mark.parametrize(ARGUMENTS, variants())
every_split = pytest.mark.parametrize(ARGUMENTS, variants(lambda layer: layer.split))
every_column_split = pytest.mark.parametrize(ARGUMENTS, variants(lambda layer: layer.columns))


def build(name: str, arguments: dict[str, Any], widths: tuple[int, int]) -> Layer:
    layer = LAYERS.find(name)(*widths, **arguments)
    layer.reset(17)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() < 2:  # biases and eps: not 0
                parameter.copy_(torch.linspace(0.3, 0.9, parameter.numel()))
    return layer.double()


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Blocks with multi-edges, loops, destinations without edges, or nothing at all; coefficients on every edge."""
    num_dst = draw(st.integers(0, 4))
    num_src = num_dst + draw(st.integers(0 if num_dst == 0 else 1, 4))
    counts = [draw(st.integers(0, 6 if num_src else 0)) for _ in range(num_dst)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    indices = torch.randint(max(num_src, 1), (sum(counts),), generator=generator, dtype=torch.int32)
    ids = torch.randperm(50, generator=generator)[:num_src]
    return typed_block(
        dst=ids[:num_dst],
        src=ids,
        indptr=torch.tensor([0, *counts]).cumsum(0),
        indices=indices,
        dst_original=ids[:num_dst] * 5,
        self_weight=torch.rand(num_dst, generator=generator, dtype=torch.float64),
        edge_attr=torch.randn(sum(counts), EDGES, generator=generator, dtype=torch.float64),
        loop_attr=torch.randn(num_dst, EDGES, generator=generator, dtype=torch.float64),
    )


def typed_block(**fields: Any) -> Block:
    """A block whose edges have relations that fit the types of their ends, sorted for every destination."""
    block, relations = Block(**fields), torch.tensor(RELATIONS)
    kinds, dst = torch.from_numpy(TYPES.of(block.src.numpy())), block.edge_dst()
    ends = torch.stack([kinds[block.indices.long()], kinds[dst]], dim=1)
    fitting = (ends.unsqueeze(1) == relations).all(2).double()  # there may be several
    found = torch.multinomial(fitting, 1, generator=torch.Generator().manual_seed(3)).flatten() if len(dst) else dst
    order = torch.argsort(dst * len(relations) + found, stable=True)
    return block.with_(edge_type=found[order].int(), indices=block.indices[order], node_types=TYPES)


def of_graph(layer: Layer, block: Block) -> Block:
    """Without types for layers of untyped graphs."""
    return block if getattr(layer, "num_types", 1) > 1 else block.with_(edge_type=None, node_types=None)


def weighted_for(layer: Layer, block: Block) -> Block:
    """The block as the sampler would hand it to the layer."""
    block = of_graph(layer, block)
    if layer.coefficients is None:
        return block.with_(self_weight=None)
    weight = torch.rand(block.num_edges, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return block.with_(weight=weight)


def some_edges(block: Block, chosen: Tensor, *, own_sources: bool) -> Block:
    """The block with the chosen edges only; with ``own_sources``, a table of just the sources they need."""
    kept = torch.nonzero(chosen).flatten()
    dst = block.edge_dst()[kept]
    indptr = torch.zeros(block.num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=block.num_dst).cumsum(0)
    weight = None if block.weight is None else block.weight[kept]
    part = block.with_(
        indptr=indptr,
        indices=block.indices[kept],
        weight=weight,
        edge_type=None if block.edge_type is None else block.edge_type[kept],
        edge_attr=None if block.edge_attr is None else block.edge_attr[kept],
        transposed=None,
    )
    if own_sources:
        needed, local = torch.unique(part.indices.long(), return_inverse=True)
        part = part.with_(src=block.src[needed], indices=local.int())
    return part


def rows_of(block: Block, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(23)
    return torch.randn(block.num_src, width, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(layer: Layer, out: Tensor, x: Tensor) -> list[Tensor]:
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=out.dtype)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad((out * cotangent).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found)]


def in_one_part(split: Split, block: Block, x: Tensor) -> Tensor:
    """The result from a single state."""
    x_dst = x[: block.num_dst]
    state = split.partial(split.message(x), split.query(x_dst, block), split.divisible(block))
    return split.finish(split.merge([state]), split.self_term(x_dst, block), block)


def in_parts(split: Split, block: Block, x: Tensor, dealt: Tensor, parts: int, own_sources: bool) -> list[Tensor]:
    """One state per part, computed as the owners of the sources would."""
    divided = split.divisible(block)
    q = split.query(x[: block.num_dst], block)
    states = []
    for part in range(parts):
        piece = some_edges(divided, dealt == part, own_sources=own_sources)
        x_src = x[_where(block, piece)]
        states.append(split.partial(split.message(x_src), q, piece))
    return states


def _where(block: Block, piece: Block) -> Tensor:
    position = {int(node): i for i, node in enumerate(block.src)}
    return torch.tensor([position[int(node)] for node in piece.src], dtype=torch.int64)


@every_split
@settings(max_examples=10, deadline=None)
@given(block=blocks(), data=st.data())
def test_any_split_of_the_edges_gives_the_same_result(
    name: str, arguments: dict[str, Any], widths: tuple[int, int], block: Block, data: st.DataObject
) -> None:
    layer = build(name, arguments, widths)
    split = layer.split
    block = weighted_for(layer, block)
    x = rows_of(block, widths[0])
    parts = data.draw(st.integers(1, 4))
    dealt = torch.tensor(
        data.draw(st.lists(st.integers(0, parts - 1), min_size=block.num_edges, max_size=block.num_edges))
    )
    own_sources = data.draw(st.booleans())
    states = in_parts(split, block, x, dealt, parts, own_sources)
    assert all(state.shape == (block.num_dst, split.state_width) for state in states)
    order = data.draw(st.permutations(range(parts)))
    merged = split.merge([states[i] for i in order])
    own = split.self_term(x[: block.num_dst], block)
    out = split.finish(merged, own, block)

    expected = layer(block, x)
    torch.testing.assert_close(out, expected, **CLOSE)
    for found, wanted in zip(gradients(layer, out, x), gradients(layer, expected, x)):
        torch.testing.assert_close(found, wanted, **CLOSE)
    if split.self_joins_state and own is not None:
        torch.testing.assert_close(split.finish(split.merge([*states, own]), None, block), expected, **CLOSE)


@every_split
@settings(max_examples=6, deadline=None)
@given(block=blocks(), seed=st.integers(0, 1000))
def test_states_are_a_commutative_monoid(
    name: str, arguments: dict[str, Any], widths: tuple[int, int], block: Block, seed: int
) -> None:
    layer = build(name, arguments, widths)
    split = layer.split
    block = weighted_for(layer, block)
    x = rows_of(block, widths[0]).detach()
    dealt = torch.randint(3, (block.num_edges,), generator=torch.Generator().manual_seed(seed))
    a, b, c = in_parts(split, block, x, dealt, 3, own_sources=True)
    torch.testing.assert_close(split.merge([split.merge([a, b]), c]), split.merge([a, split.merge([b, c])]), **CLOSE)
    torch.testing.assert_close(split.merge([a, b]), split.merge([b, a]), **CLOSE)
    neutral = split.neutral(block.num_dst, a)
    torch.testing.assert_close(split.merge([a, neutral]), a, **CLOSE)
    torch.testing.assert_close(split.merge([neutral, neutral]), neutral, **CLOSE)
    nothing = some_edges(split.divisible(block), torch.zeros(block.num_edges, dtype=torch.bool), own_sources=True)
    empty = split.partial(split.message(x[:0]), split.query(x[: block.num_dst], block), nothing)
    torch.testing.assert_close(empty, neutral, **CLOSE)


@every_layer
@settings(max_examples=6, deadline=None)
@given(block=blocks(), data=st.data())
def test_a_row_depends_on_its_own_edges_only(
    name: str, arguments: dict[str, Any], widths: tuple[int, int], block: Block, data: st.DataObject
) -> None:
    layer = build(name, arguments, widths)
    block = weighted_for(layer, block)
    x = rows_of(block, widths[0]).detach()
    expected = layer(block, x)
    chosen = data.draw(st.permutations(range(block.num_dst)))
    chosen = torch.tensor(chosen[: data.draw(st.integers(0, block.num_dst))], dtype=torch.int64)
    others = torch.tensor([i for i in range(block.num_src) if i not in chosen.tolist()], dtype=torch.int64)
    order = torch.cat([chosen, others])
    place = torch.empty_like(order).scatter_(0, order, torch.arange(block.num_src))
    edges = [torch.arange(int(block.indptr[i]), int(block.indptr[i + 1])) for i in chosen]
    kept = torch.cat([torch.empty(0, dtype=torch.int64), *edges])
    smaller = Block(
        dst=block.dst[chosen],
        src=block.src[order],
        indptr=torch.tensor([0, *map(len, edges)]).cumsum(0),
        indices=place[block.indices[kept].long()].int(),
        dst_original=block.dst_original[chosen],
        weight=None if block.weight is None else block.weight[kept],
        self_weight=None if block.self_weight is None else block.self_weight[chosen],
        edge_type=None if block.edge_type is None else block.edge_type[kept],
        node_types=block.node_types,
        edge_attr=None if block.edge_attr is None else block.edge_attr[kept],
        loop_attr=None if block.loop_attr is None else block.loop_attr[chosen],
    )
    torch.testing.assert_close(layer(smaller, x[order]), expected[chosen], **CLOSE)


@every_column_split
@settings(max_examples=6, deadline=None)
@given(block=blocks(), data=st.data())
def test_any_slices_of_the_columns_give_the_same_result(
    name: str, arguments: dict[str, Any], widths: tuple[int, int], block: Block, data: st.DataObject
) -> None:
    """Also empty slices, and with parameters that are whole everywhere: each gradient is the sum over the slices."""
    layer = build(name, arguments, widths)
    block = weighted_for(layer, block)
    x = rows_of(block, widths[0])  # of a layer without parameters there is a gradient of rows only
    cuts = sorted(data.draw(st.lists(st.integers(0, widths[0]), min_size=1, max_size=3)))
    slices = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, widths[0]])]
    columns = layer.columns
    by_row = columns.sums_over_columns == "rows"
    summands = [
        columns.from_columns(c, x[:, c], x[: block.num_dst if by_row else 0, c], block.with_(transposed=None))
        for c in slices
    ]
    height = block.num_dst if by_row else block.num_src
    assert all(summand.shape == (height, columns.column_width) for summand in summands)
    out = columns.finish_columns(torch.stack(summands).sum(0), block, None)
    expected = layer(block, x)
    torch.testing.assert_close(out, expected, **CLOSE)
    for found, wanted in zip(gradients(layer, out, x), gradients(layer, expected, x)):
        torch.testing.assert_close(found, wanted, **CLOSE)


@every_split
def test_a_layer_says_what_travels(name: str, arguments: dict[str, Any], widths: tuple[int, int]) -> None:
    layer = build(name, arguments, widths)
    split = layer.split
    block = fixed_for(layer)
    x = torch.randn(5, widths[0], dtype=torch.float64)
    q, own = split.query(x[:3], block), split.self_term(x[:3], block)
    assert split.query_width == (0 if q is None else q.shape[1])
    assert split.self_width == (0 if own is None or split.self_joins_state else own.shape[1])
    state = split.partial(split.message(x), q, split.divisible(block))
    if own is not None and split.self_joins_state:
        state = split.merge([state, own])
    assert split.state_is_trained == state.requires_grad


class Lazy:
    """Rows of the input as a feature reader offers them."""

    def __init__(self, block: Block, x: Tensor) -> None:
        self.block, self.x, self.read_all = block, x, False

    @property
    def width(self) -> int:
        return self.x.shape[1]

    def all(self) -> Tensor:
        self.read_all = True
        return self.x

    def of_destinations(self) -> Tensor:
        return self.x[: self.block.num_dst]

    def aggregate(self, reduce: str) -> Tensor:
        return ops.aggregate(self.block, self.x, reduce)


@every_layer
@settings(max_examples=4, deadline=None)
@given(block=blocks())
def test_rows_read_on_demand_give_the_same_result(
    name: str, arguments: dict[str, Any], widths: tuple[int, int], block: Block
) -> None:
    layer = build(name, arguments, widths)
    block = weighted_for(layer, block)
    x = rows_of(block, widths[0]).detach()
    lazy = Lazy(block, x)
    seen = block.with_(src=None) if layer.starts_with_sum else block
    assert torch.equal(layer(seen, lazy), layer(block, x))
    assert lazy.read_all != layer.starts_with_sum


FIXED = typed_block(
    dst=torch.tensor([4, 39, 2]),
    src=torch.tensor([4, 39, 2, 37, 1]),
    indptr=torch.tensor([0, 4, 4, 6]),
    indices=torch.tensor([0, 3, 3, 4, 1, 4], dtype=torch.int32),
    dst_original=torch.tensor([40, 90, 20]),
    weight=torch.tensor([0.0, 0.5, 0.5, 0.2, 0.4, 0.1], dtype=torch.float64),
    self_weight=torch.tensor([0.3, 1.0, 0.5], dtype=torch.float64),
    edge_attr=torch.linspace(-1, 1, 6 * EDGES, dtype=torch.float64).reshape(6, EDGES),
    loop_attr=torch.linspace(0, 1, 3 * EDGES, dtype=torch.float64).reshape(3, EDGES),
)


def fixed_for(layer: Layer) -> Block:
    block = of_graph(layer, FIXED)
    return block if layer.coefficients is not None else block.with_(weight=None, self_weight=None)


@every_layer
def test_every_precision(name: str, arguments: dict[str, Any], widths: tuple[int, int]) -> None:
    layer = build(name, arguments, widths)
    block = fixed_for(layer)
    x = torch.randn(5, widths[0], dtype=torch.float64)
    exact = layer(block, x)
    single = layer.float()(block, x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, exact.float(), rtol=1e-4, atol=1e-5)
    leaf = x.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(block, leaf)
        joined = half if layer.split is None else in_one_part(layer.split, block, leaf)
    torch.testing.assert_close(half.float(), single, rtol=0.1, atol=0.1)
    torch.testing.assert_close(joined.float(), single, rtol=0.1, atol=0.1)
    half.float().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


@every_layer
def test_parameters_survive_a_file(
    name: str, arguments: dict[str, Any], widths: tuple[int, int], tmp_path: Path
) -> None:
    layer = build(name, arguments, widths)
    block = fixed_for(layer)
    x = torch.randn(5, widths[0], dtype=torch.float64)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other = type(layer)(**layer.arguments()).double()
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(other(block, x), layer(block, x))


@every_layer
def test_no_edge_and_no_row_still_give_gradients(name: str, arguments: dict[str, Any], widths: tuple[int, int]) -> None:
    """A worker that owns nothing takes part in every backward pass."""
    layer = build(name, arguments, widths)
    none = torch.empty(0, dtype=torch.int64)
    empty = torch.empty(0, dtype=torch.float64)
    block = Block(
        none, none, torch.zeros(1, dtype=torch.int64), none.int(), none, weight=empty, self_weight=empty,
        edge_attr=empty.reshape(0, EDGES), loop_attr=empty.reshape(0, EDGES),
    )  # fmt: skip
    x = torch.empty(0, widths[0], dtype=torch.float64, requires_grad=True)
    out = layer(block, x)
    assert out.shape == (0, layer.out_width)
    out.sum().backward()
    assert x.grad is not None


KEYED: dict[str, Callable[[], Layer]] = {"gat": lambda: LAYERS.find("gat")(6, 3, heads=2, attn_dropout=0.5)}


@pytest.mark.parametrize("name", list(KEYED))
def test_a_keys_mask_does_not_depend_on_the_rows_computed(name: str) -> None:
    layer = KEYED[name]().double()
    x = torch.randn(5, 6, dtype=torch.float64)
    block = fixed_for(layer)
    whole = layer(block, x, 12)
    assert torch.equal(layer(block, x, 12), whole)
    assert not torch.equal(layer(block, x, 13), whole)
    assert not torch.equal(layer(block, x), whole)
    rows = [2, *block.indices[4:].tolist()]
    alone = Block(
        dst=block.dst[2:],
        src=block.src[rows],
        indptr=torch.tensor([0, 2]),
        indices=torch.tensor([1, 2], dtype=torch.int32),
        dst_original=block.dst_original[2:],
    )
    torch.testing.assert_close(layer(alone, x[rows], 12), whole[2:], **CLOSE)


def star(n: int) -> Block:
    """n destinations, each with one edge from the same source, number n."""
    nodes = torch.arange(n + 1)
    indices = torch.full((n,), n, dtype=torch.int32)
    return Block(dst=nodes[:n], src=nodes, indptr=nodes, indices=indices, dst_original=nodes[:n])


def test_the_own_loop_is_dropped_apart_from_the_first_edge() -> None:
    layer = LAYERS.find("gat")(1, 1, attn_dropout=0.5).double()
    with torch.no_grad():
        layer.lin.weight.fill_(1.0)
        layer.att_src.zero_()
        layer.att_dst.zero_()
    x = torch.ones(401, 1, dtype=torch.float64)
    x[400] = 10.0
    out = layer(star(400), x, 7).flatten()  # half of twice what was kept: 0, 1 (own), 10 (edge) or 11 (both)
    share = torch.stack([torch.isclose(out, torch.tensor(value).double()) for value in (0, 1, 10, 11)]).double().mean(1)
    assert (share - 0.25).abs().max() < 0.1


def test_dropped_attention_is_unbiased_and_has_its_gradient() -> None:
    layer = LAYERS.find("gat")(6, 3, heads=2, attn_dropout=0.3).double()
    x = torch.randn(2, 6, dtype=torch.float64)[[0] * 4000 + [1]]
    whole, dropped = layer(star(4000), x), layer(star(4000), x, 8)
    torch.testing.assert_close(dropped.mean(0), whole.mean(0), rtol=0.1, atol=0.1)
    leaf = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: layer(fixed_for(layer), h, 3), leaf)
