"""Layers: what a model is made of, and what a layer may be able to do besides being computed whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.protocols import EdgeCoefficients
from partita.core.records import Block, Reduce
from partita.nn import initialize, ops
from partita.nn.layers.reductions import Reduction
from partita.nn.ops import Rows
from partita.nn.work import LayerWork, Product

PROJECT_SOURCES_FROM = 4
"""Messages are rows that are projected when the input is wider than this many times the output.

What travels between workers is so much narrower then, and in inference, where a message is computed once and read by
all neighbors. The rule looks at widths only, so that all workers agree on it.
"""
SHARED_FROM = 10
"""Such rows are projected before they are summed at one place, too, where a block has so many edges for each source.

A sampled block has several times as many sources as destinations, and not many more edges than sources: to project D
sums is up to 2.5 times as fast there as to project S rows (``bench/sums.py``). From some 10 edges a source on, the sums
of wide rows take longer than that saves.
"""


class Split:
    """A layer's partial-aggregation form: a monoid over edges. A layer that is one can be split over its edges.

    The row of a destination v is ``finish(merge(partials over its edges), self_term(x_v))``. Its edges can be dealt out
    to any number of parts, in any way, and the result stays exact; a part without an edge of v is neutral. All states
    are tensors (D, state_width), so that they can travel as rows.

    Attributes:
        state_width: columns of a state.
        message_width: columns of :meth:`message` where it maps a source's row, which is then worth doing once per
            source and not once per block; ``None`` where the message is the row itself.
        sums_messages: :meth:`partial` only sums messages, so it takes messages that are read on demand.
        self_joins_state: :meth:`self_term` has the form of a state, so that it may be merged with the states, and
            :meth:`finish` be given ``None`` in its place.
        self_width: columns of :meth:`self_term` where it exists and does not join the states, else 0.
        query_width: columns of :meth:`query`, 0 where it gives ``None``.
        columns_per_edge: columns of what :meth:`partial` computes for every edge, so that memory can be told.
        state_is_trained: states depend on parameters; otherwise states over input rows need no gradient.
    """

    state_width: int
    message_width: int | None = None
    sums_messages: bool = False
    self_joins_state: bool = False
    self_width: int = 0
    query_width: int = 0
    columns_per_edge: int = 0
    state_is_trained: bool = True

    @property
    def draws_by_edge(self) -> bool:
        """Whether training draws something for each edge, keyed by its position among all of its destination's."""
        return False

    def divisible(self, block: Block) -> Block:
        """The block with every coefficient written on its edges, so that its edges may be dealt out to parts."""
        return block

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S payload"]:
        """What a source contributes to each of its edges; linear in ``x_src``."""
        raise NotImplementedError

    def query(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D q"] | None:
        """What a partial aggregate must know of its destinations, those of the block; ``None`` for nothing."""
        return None

    def partial(self, payload: Rows, q: Float[Tensor, "D q"] | None, block: Block) -> Tensor:
        """The state (D, state_width) over the block's edges.

        Args:
            payload: :meth:`message` of the block's sources; rows that are read on demand where
                :attr:`Layer.starts_with_sum` says so.
            q: :meth:`query` of the block's destinations.
            block: all edges of its destinations or some of them. The destinations need not be among its sources,
                and a destination may be listed more than once.
        """
        raise NotImplementedError

    def self_term(self, x_dst: Float[Tensor, "D in"], block: Block) -> Tensor | None:
        """The destination's own term; ``None`` where the layer has none."""
        return None

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """States of destinations without an edge: merging one changes nothing. Dtype and device as ``like``."""
        return like.new_zeros(rows, self.state_width)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """Merge states of the same destinations over disjoint sets of edges: associative and commutative."""
        raise NotImplementedError

    def finish(self, state: Float[Tensor, "D state"], self_term: Tensor | None, block: Block) -> Float[Tensor, "D out"]:
        """The layer's result for the destinations of a block."""
        raise NotImplementedError


class ColumnSplit:
    """A layer that is a sum over slices of its input columns, of rows from which it is finished.

    Attributes:
        sums_over_columns: ``"rows"``: the sum of :meth:`from_columns` over the slices has a row per destination;
            ``"sources"``: one per source.
        column_width: columns of :meth:`from_columns`.
    """

    sums_over_columns: Literal["rows", "sources"]
    column_width: int

    def from_columns(
        self, columns: slice, x_src: Float[Tensor, "S slice"], x_dst: Float[Tensor, "D slice"], block: Block
    ) -> Float[Tensor, "n columns"]:
        """What some of the input columns contribute: a summand, without bias, of what :meth:`finish_columns` takes.

        Parameters are whole on every worker and sliced here, so the sum of the workers' gradients is the gradient.

        Args:
            columns: which of the input columns, possibly none.
            x_src: these columns of the block's sources.
            x_dst: these columns of its destinations; empty where :attr:`sums_over_columns` is ``"sources"``.
            block: whole rows. The destinations need not be the first of its sources, nor distinct.
        """
        raise NotImplementedError

    def finish_columns(self, total: Float[Tensor, "n columns"], block: Block, key: int | None) -> Tensor:
        """The layer's result (D, out) from the sum of :meth:`from_columns` over all columns.

        Args:
            total: a row per destination of the block, or per source, as :attr:`sums_over_columns` says.
            block: the sampled edges.
            key: as for :meth:`Layer.forward`.
        """
        raise NotImplementedError


class Layer(nn.Module):
    """Base of all layers.

    Attributes:
        name: by which the layer is found again: that of its table, or ``package.module:Name``.
        options: the options of :func:`~partita.nn.model.build_model` that the layer understands.
        coefficients: what weights the edges of its blocks must have; ``None`` for none.
        sums: the layer joins its neighbors by a ``"sum"`` or ``"mean"``, which ``block.weight`` may make a weighted
            sum, where the sampler draws some edges more readily than others; ``None``: it is neither, and looks at no
            weight.
        reads_relations: the layer looks at the relations of its edges, where the graph has some.
        composes_encoder: as the first layer of a typed graph it may be given
            :class:`~partita.nn.encoder.EncodedRows`, and itself chooses when to encode them.
        relations: where it does, the numbers of the node types that each of them comes from and leads to.
        edge_columns: what it reads of its edges besides, which the sampler puts on its blocks: ``"edge_weight"``, which
            multiplies the neighbors' rows (in ``block.weight``), and ``"edge_attr"``.
        needs_edge_features: it is of no use without them.
        fills_loops: the loops that it adds have features too, those of ``block.loop_attr``.
        edge_width: columns of ``block.edge_attr``; 0 where it is not read.
        reads_neighbors: the layer looks at its neighbors' rows; where none of a model does, none are sampled.
        initial_values: fills the parameters from a key, see :mod:`partita.nn.initialize`.
        in_width, out_width: columns of a source's row and of the result.
        starts_with_sum: the layer only sums its sources' rows, so it takes rows that are read on demand
            (:class:`~partita.core.records.LazyRows`) without the block's sources being de-duplicated.
    """

    name: str = ""
    options: ClassVar[frozenset[str]] = frozenset()
    coefficients: ClassVar[EdgeCoefficients | None] = None
    reads_neighbors: ClassVar[bool] = True
    reads_relations: bool = False
    composes_encoder: ClassVar[bool] = False
    relations: Sequence[Sequence[int]] = ()
    needs_edge_features: ClassVar[bool] = False
    edge_columns: Sequence[str] = ()
    edge_width: int = 0
    fills_loops: bool = False
    initial_values: ClassVar[Callable[[nn.Module, int], None]] = staticmethod(initialize.glorot)

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        for what, width in (("input", in_width), ("output", out_width)):
            if width < 1:
                raise ConfigError(f"a layer's {what} width must be at least 1, not {width}", where=type(self).__name__)
        self.in_width = in_width
        self.out_width = out_width
        self.sums: Reduce | None = None
        self.starts_with_sum = False

    @property
    def split(self) -> Split | None:
        """How the layer is computed from parts of a destination's edges; ``None``: it cannot be."""
        return self if isinstance(self, Split) else None

    @property
    def columns(self) -> ColumnSplit | None:
        """How the layer is computed from slices of its input columns; ``None``: it cannot be."""
        return self if isinstance(self, ColumnSplit) else None

    def sums_by_id(self, takes_all: bool) -> bool:
        """Whether sums over whole blocks read input rows one by one, so that distinct sources need not be known.

        Args:
            takes_all: blocks have all neighbors, so that many edges share each source, which is worth projecting once
                where its message is narrower than its row.
        """
        return self.starts_with_sum and not (takes_all and self.sends_messages)

    @property
    def sends_messages(self) -> bool:
        """Whether parts of the layer map the rows of sources before they join them."""
        return self.split is not None and self.split.message_width is not None

    @property
    def draws_by_call(self) -> bool:
        """Whether training draws something that depends on which rows are computed together."""
        return False

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> Layer:
        """The layer of a model at one place.

        Args:
            in_width: columns of the input.
            out_width: columns of the result.
            last: whether it is the seed layer.
            options: those named in :attr:`options`.
        """
        return cls(in_width, out_width, **options)

    def work(self) -> LayerWork | None:
        """What the layer computes; ``None``: that is not known, so plans for machines that are not here refuse it."""
        return None

    def known_work(self) -> LayerWork | None:
        """:meth:`work`, if the layer's own class says it: a class derived from it may compute something else."""
        return self.work() if "work" in vars(type(self)) else None

    def reset(self, key: int | None = None) -> None:
        """Initialize every parameter from a 64-bit key.

        Without a key, one is drawn from torch's global generator, as the constructors of torch's own modules do.
        """
        type(self).initial_values(self, global_key() if key is None else key)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {"in_width": self.in_width, "out_width": self.out_width}

    def pyg_code(self) -> str | None:
        """A call of a class of ``torch_geometric.nn`` that makes the same layer, in an exported model.

        On full neighborhoods it computes the same rows, and its parameters have the same names. ``None``: there is no
        such class.
        """
        return None

    def pyg_call(self, conv: str) -> str:
        """How an exported model calls what :meth:`pyg_code` made.

        Args:
            conv: an expression for it. There are ``x``, ``edge_index``, what the layer reads of edges under its names
                (:attr:`edge_columns`), and where it reads relations ``edge_type`` and ``node_type``.
        """
        return f"{conv}({', '.join(['x', 'edge_index', *self.edge_columns])})"

    def pyg_state(self) -> dict[str, Tensor]:
        """The parameters under the names that they have in what :meth:`pyg_code` makes."""
        return dict(self.state_dict())

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """The layer's result over a block that holds every sampled edge of its destinations.

        Args:
            block: the sampled edges.
            h: rows of its sources.
            key: key of the layer's own random choices (attention dropout); ``None`` makes none.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The constructor's arguments, for ``print``."""
        return ", ".join(f"{name}={value}" for name, value in self.arguments().items())


class ReducedLayer(Split, ColumnSplit, Layer):
    """A layer that reduces its neighbors' rows with a fixed monoid and then maps the result.

    Where the reduction commutes with the layer's linear map, the map is applied where it is cheapest: in parts to the
    sources (``in > 4 out``: narrower messages), to the state (``out < in``: a narrower state travels), or at the end;
    in a whole block to the sums, unless many edges share each source.
    """

    def __init__(self, in_width: int, out_width: int, reduction: Reduction, *, commutes: bool) -> None:
        super().__init__(in_width, out_width)
        self.reduction = reduction
        self.sums = reduction.sums
        self.projects_sources = commutes and in_width > PROJECT_SOURCES_FROM * out_width
        self.projects_state = commutes and out_width < in_width
        self.state_width = out_width if self.projects_state else in_width
        self.starts_with_sum = reduction.is_sum
        self.message_width = out_width if self.projects_sources else None
        self.sums_messages = reduction.is_sum
        self.state_is_trained = self.projects_state
        self.sums_over_columns: Literal["rows", "sources"] = "rows"
        self.column_width = out_width

    def project(self, rows: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """The linear map, without bias, that commutes with the reduction."""
        raise NotImplementedError

    def _reducing(self, *more: Product) -> LayerWork:
        """The sum over the edges of a sampled block, the map of it, and more products."""
        return LayerWork((Product("destination", self.in_width, self.out_width), *more), self.in_width)

    def divisible(self, block: Block) -> Block:
        """See :meth:`Split.divisible`: a mean over k edges becomes a sum with weights 1/k."""
        return self.reduction.divisible(block, next(self.parameters()).dtype)

    def message(self, x_src: Float[Tensor, "S in"]) -> Float[Tensor, "S payload"]:
        """See :meth:`Split.message`."""
        return self.project(x_src) if self.projects_sources else x_src

    def partial(self, payload: Rows, q: Tensor | None, block: Block) -> Float[Tensor, "D state"]:
        """See :meth:`Split.partial`."""
        state = self.reduction.over(block, payload)
        return self.project(state) if self.projects_state and not self.projects_sources else state

    def neutral(self, rows: int, like: Tensor) -> Float[Tensor, "rows state"]:
        """See :meth:`Split.neutral`."""
        return like.new_full((rows, self.state_width), self.reduction.neutral)

    def merge(self, states: Sequence[Float[Tensor, "D state"]]) -> Float[Tensor, "D state"]:
        """See :meth:`Split.merge`."""
        return self.reduction.merge(states)

    def join(
        self, reduced: Float[Tensor, "D in"], x_dst: Float[Tensor, "D in"], block: Block
    ) -> Float[Tensor, "D out"]:
        """The layer's result from the rows reduced over all edges and the destinations' own rows."""
        state = self.project(reduced) if self.projects_state else reduced
        return self.finish(state, self.self_term(x_dst, block), block)

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`."""
        if self.projects_sources and block.src is not None and block.num_edges > SHARED_FROM * block.num_src:
            x_dst = ops.own_rows(block, h)
            state = self.partial(self.message(ops.all_rows(h)), None, block)
            return self.finish(state, self.self_term(x_dst, block), block)
        if self.sums is not None and isinstance(h, Tensor):
            return self.join(*ops.aggregate_with_own(block, h, self.sums), block)
        return self.join(self.reduction.over(block, h), ops.own_rows(block, h), block)


def global_key() -> int:
    """A 63-bit key from torch's global generator."""
    return int(torch.randint(2**63 - 1, (), device="cpu").item())
