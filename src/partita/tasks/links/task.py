"""The task whose seeds are edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from partita.config import NO_LAYERS, Config
from partita.core.errors import ConfigError, StoreError
from partita.core.keys import Purpose, StepKey, fold
from partita.core.records import TargetEdges
from partita.graph.store import GraphStore
from partita.nn import ops
from partita.nn.decoders import Decoder, Side, build_decoder
from partita.nn.model import Model
from partita.sample.targets import LinkPositions, TargetSide, target_edges
from partita.sample.temporal import draws_by_time
from partita.tasks.links.candidates import Group
from partita.tasks.links.edges import (
    RELATION,
    SOURCE,
    TIME,
    ends_of,
    held_out_edges,
    is_symmetric,
    message_edges,
    target_sides,
)
from partita.tasks.links.edges import target_relations as numbers_of
from partita.tasks.links.in_time import InTime, TimedEdges, split_times
from partita.tasks.links.loops import LoopNegatives
from partita.tasks.links.losses import LINK_LOSSES, OF_ROWS, LinkLoss
from partita.tasks.links.message_share import supervision_edges
from partita.tasks.links.metrics import LINK_METRICS, MAP, TIMED_METRICS
from partita.tasks.links.negatives import NEGATIVES, Negatives
from partita.tasks.links.reverse_times import require_late_reverses
from partita.tasks.links.settings import check_link_settings, check_link_settings_in_time
from partita.tasks.links.true_edges import require_negatives
from partita.tasks.links.wanted import Wanted
from partita.tasks.task import Answers, ClassCounts, refuse_setting

TRAIN = "train"
SHARED, EACH = 512, 1
"""Negatives of an edge and side where the settings leave that open: of those that a batch shares, and of others."""
MANY_TIMES = 200
"""At which the links of a split are asked about: above that, evaluation among all nodes takes a word."""
PENALTY, FACTORS = 0.1, ("distmult", "complex")
"""The penalty where the settings leave it open. It and loops are for these decoders, of learnt rows alone."""
_SIDES: dict[str, tuple[Side, ...]] = {"tail": ("tail",), "head": ("head",), "both": ("tail", "head")}


class LinkTask:
    """Predicts edges: a model gives every node a row, and a decoder the ends of an edge a score.

    A seed is an edge ``[source, destination]``, in a typed graph ``[source, destination, relation]``. In a step the
    task puts negatives behind it, for each side that is replaced: nodes in place of the edge's own. Outputs are scores
    (B, 1 + K): that of the edge, and those of its negatives, which are -inf where they are left out; and one column
    more where there is a penalty.

    Seeds of training are the edges of the graph, or with the setting ``message_share`` those of them that never carry
    messages; those of other splits are held out, so no messages go along them.

    Where neighbors are sampled by time, a seed is ``[source, destination, relation, time]``, with 0 for the relation in
    an untyped graph. Seeds of all splits are edges of the graph then, and what is drawn for them is there at that time:
    see :mod:`partita.tasks.links.in_time`.

    Args:
        store: the whole graph.

    Attributes:
        sides: the ends of an edge that are replaced.
        in_time: what is known of times; ``None``: edges are asked about at no time in particular.

    Raises:
        StoreError: the store is the shard of a host.
    """

    metrics: tuple[str, ...] = (*LINK_METRICS, MAP)
    class_names: ClassVar[list[str]] = []

    def __init__(self, store: GraphStore) -> None:
        self.store = store
        self.target_scale: tuple[float, float] | None = None
        self._take(Config.make({}), timed=False)

    def adjust(self, config: Config) -> dict[str, Any]:
        """See :meth:`partita.tasks.task.AdjustableTask.adjust`; names in place of "auto"."""
        for setting in ("class_weights", "label_smoothing", "target_scaling"):
            refuse_setting(config, setting, "the task predicts links")
        return self._take(config, timed=draws_by_time(config.temporal_strategy, self.store))

    def _take(self, config: Config, *, timed: bool) -> dict[str, Any]:
        schema, alone = self.store.schema, config.model == NO_LAYERS
        self._seeds = dict[str, Tensor]()
        self._kept: Any = WeakTensorKeyDictionary()
        chosen = {
            "decoder": ("dot" if schema is None else "distmult", config.decoder),
            "loss": ("softmax" if alone else "cross_entropy", config.loss),
            "negative_sampler": ("joint" if alone and not timed else "uniform", config.negative_sampler),
            "corrupt": ("both" if alone else "tail", config.corrupt),
        }
        found: dict[str, Any] = {name: usual if given == "auto" else given for name, (usual, given) in chosen.items()}
        kind = NEGATIVES.find(found["negative_sampler"])
        if config.penalty is None:
            found["penalty"] = PENALTY if alone and found["decoder"] in FACTORS else 0.0
        if config.loop_negatives is None:
            found["loop_negatives"] = alone and found["decoder"] in FACTORS and not timed
        if kind.counted:
            found["negatives"] = config.negatives or (SHARED if kind.shared else EACH)
        self.config = config.model_copy(update=found)
        check_link_settings(self.config)
        self.in_time: InTime | None = None
        reported = TIMED_METRICS if timed else LINK_METRICS
        self.metrics = (*reported, *(name for name in self.metrics if ":" in name))
        if timed:
            check_link_settings_in_time(self.config, self.store)
            self._split_times = split_times(config.split_times, self.store)
            self.in_time = InTime(self.store, self._split_times[0])
        elif config.split_times:
            raise ConfigError(
                "links are split by time only where times of edges count", where="split_times", fix="Leave it out"
            )
        self.relations = None if schema is None else numbers_of(schema, config.target_relations)
        if schema is None and config.target_relations:
            raise ConfigError(
                "relations are named, and the graph has none", where="target_relations", fix="Leave them out"
            )
        self.negatives: Negatives = kind.of(self.store, self.config.negatives or EACH, self.relations, self.in_time)
        if not config.known_negatives:
            require_negatives(self.store, self.relations)
        self._loops = LoopNegatives(self.store) if self.config.loop_negatives else None
        self.sides = _SIDES[found["corrupt"]]
        self.loss: LinkLoss = LINK_LOSSES.find(found["loss"])
        number = 1 if schema is None else len(schema.relations)
        self.decoder: Decoder = build_decoder(found["decoder"], self.width, number, reciprocal=config.reciprocal)
        self.decoder.reset(fold(fold(int(Purpose.INITIALISE), config.seed), config.layers + 1))
        return found

    @property
    def width(self) -> int:
        """Columns of a node's row."""
        return self.config.hidden

    @property
    def columns_of_edges(self) -> int:
        """Of a seed, before its negatives."""
        if self.in_time is not None:
            return TIME + 1
        return 2 if self.store.schema is None else 3

    @cached_property
    def undirected(self) -> bool:
        """Whether every edge of an untyped graph has its reverse, so that a link goes both ways."""
        return self.store.schema is None and is_symmetric(*ends_of(self.store), self.store.num_nodes)

    def attach(self, model: Model) -> None:
        """Make the decoder the model's; or take the one that the model has."""
        if model.decoder is None:
            model.decoder = self.decoder
        self.decoder = model.decoder

    def shared_candidates(self, batch: int) -> list[int]:
        """See :class:`partita.tasks.task.EdgeTask`."""
        return [self.negatives.width(batch)] * len(self.sides) if self.negatives.shared else []

    @property
    def eval_negatives(self) -> int:
        """See :class:`partita.tasks.task.EdgeTask`."""
        return self.config.eval_negatives

    @property
    def supervision(self) -> TargetEdges | None:
        """With the setting ``message_share``, all edges that are learned; see :class:`partita.tasks.task.EdgeTask`."""
        return None if self.config.message_share is None else target_edges(self.seeds(TRAIN), self._target_sides)

    @property
    def splits(self) -> list[str]:
        """Those that have edges held out, or asked about in their time."""
        return list(self.store.held_out) if self.in_time is None else list(self._timed_splits)

    def seeds(self, split: str) -> Int64[Tensor, "S columns"]:
        """Edges, see :func:`~partita.tasks.links.edges.message_edges`; of other splits than "train" those held out.

        Raises:
            ConfigError: edges are asked about at times, and none is for training, or their reverses would tell them.
            StoreError: there is no such split.
        """
        if self.in_time is not None:
            if split not in self._timed_splits:
                raise StoreError(
                    f"no edge is asked about in the time of the split '{split}'",
                    where=str(self.store.path),
                    fix=f"Use one of {', '.join(self._timed_splits)}, or set other split_times",
                )
            found = self._timed_splits[split]
            if not self._seeds:  # the first time that some are asked for
                require_late_reverses(self.store, self._timed_edges.edges.numpy(), undirected=self.undirected)
                self._seeds = dict(self._timed_splits)
            if split == TRAIN and not len(found):
                why = "; ".join(self._timed_edges.notes())
                raise ConfigError(
                    "no edge is asked about before validation begins" + (f" ({why})" if why else ""),
                    where=str(self.store.path),
                    fix="Give edges times, or their sources a seed_time before them; or set other split_times",
                )
            return found
        if split not in self._seeds:
            if split != TRAIN:
                found = held_out_edges(self.store, split, self.relations)
            else:
                found = message_edges(self.store, self.relations, undirected=self.undirected)
                if (share := self.config.message_share) is not None:
                    found = supervision_edges(self.store, found, share, self.config.seed)
            self._seeds[split] = found
        return self._seeds[split]

    @cached_property
    def _timed_edges(self) -> TimedEdges:
        return TimedEdges.of(self.store, self.relations, undirected=self.undirected)

    @cached_property
    def _timed_splits(self) -> dict[str, Int64[Tensor, "n 4"]]:
        return self._timed_edges.splits(*self._split_times)

    def time_notes(self) -> list[str]:
        """See :class:`partita.tasks.times.TimedTask`."""
        notes = self._timed_edges.notes()
        for split, links in {} if self.eval_negatives else self._timed_splits.items():
            if split != TRAIN and (times := len(links[:, TIME].unique())) > MANY_TIMES:
                notes.append(
                    f"links of the split '{split}' are asked about at {times:,} times, and evaluation computes rows of "
                    "all nodes of their type at each of these: --eval-negatives takes some"
                )
        return notes

    def times(self, seeds: Int[Tensor, "B wide"]) -> Int64[Tensor, "B"]:
        """When edges are asked about."""
        return seeds[:, TIME]

    def request_times(self, seeds: Int[Tensor, "B wide"]) -> Int64[Tensor, "R"]:
        """Of :meth:`requests`, which are distinct at each time.

        Raises:
            ValueError: seeds have no times.
        """
        if (found := self._wanted(seeds).times) is None:
            raise ValueError("edges are asked about at no time in particular")
        return found

    def examples(self, batch: Int[Tensor, "B columns"], key: StepKey) -> Int64[Tensor, "B wide"]:
        """Edges with their negatives, or what these follow from: a function of the key and the whole batch."""
        batch = batch.long()
        drawn = self.negatives.drawn(batch, key, self.sides)
        if self.in_time is not None and self.config.time_cutoff != "seed" and len(batch):
            batch = batch.clone()  # negatives are there at the time of their own edge, as its ends are
            batch[:, TIME] = batch[:, TIME].min()
        return torch.cat([batch, drawn], dim=1)

    def excluded(
        self, batch: Int[Tensor, "B columns"], numbers: Int64[Tensor, "B"] | None = None
    ) -> TargetEdges | None:
        """What carries no messages in the step of a batch; where none are sent, nothing is looked for."""
        if not self.config.exclude_targets or self.config.model == NO_LAYERS or self.config.message_share is not None:
            return None
        if self.in_time is not None:  # they are later than what carries messages
            return None
        known = None if numbers is None else self._positions.of(numbers)
        return target_edges(batch.long(), self._target_sides, known)

    @cached_property
    def _target_sides(self) -> list[TargetSide]:
        return target_sides(self.store.schema)

    @cached_property
    def _positions(self) -> LinkPositions:
        """Where the edges of training are, and their reverses."""
        return LinkPositions(self.store, self.seeds(TRAIN), self._target_sides)

    def requests(self, seeds: Int[Tensor, "B wide"]) -> Int[Tensor, "R"]:
        """The ends of edges, and their negatives, each once, ascending; at times, once at each."""
        return self._wanted(seeds).nodes

    def _wanted(self, seeds: Int[Tensor, "B wide"]) -> Wanted:
        """What the rows of seeds are for; of a step it is kept from when they are requested, as long as the seeds."""
        found: Wanted | None = self._kept.get(seeds)
        if found is None:
            # Views would keep what they are of, by which they are found, and with it themselves.
            at = seeds.storage_offset(), seeds.shape, seeds.stride()
            same = seeds.new_empty(0).set_(seeds.untyped_storage(), *at)
            edges, drawn = same.split([self.columns_of_edges, seeds.shape[1] - self.columns_of_edges], dim=1)
            true_of = None if self.config.known_negatives else self.store
            found = Wanted.of(edges, drawn, self.sides, self.negatives, true_of, self._loops)
            if drawn.shape[1]:
                self._kept[seeds] = found
        return found

    def outputs(self, rows: Float[Tensor, "R C"], seeds: Int[Tensor, "B wide"]) -> Float[Tensor, "B K_1"]:
        """Scores of the edges, then those of their negatives; -inf of one that is the edge itself.

        Where an edge has a score for each end that is asked for, all these are there for each of the ends.
        """
        wanted = self._wanted(seeds).on(rows.device)
        # All rows are picked together, so that backward sums the gradients of a row once.
        heads, tails, *candidates = ops.pick_rows(rows, wanted.places).split(wanted.sizes)
        edges = wanted.edges
        kinds = edges[:, RELATION] if edges.shape[1] > RELATION else torch.zeros_like(edges[:, SOURCE])
        penalty = self.decoder.penalty(heads, tails, kinds) if self.config.penalty else None
        ends, rows_of, sides = (heads, tails, kinds), iter(candidates), list(zip(self.sides, wanted.sides))
        if self.decoder.one_score or not sides:
            scores, columns_of_side = self._scores(*ends, wanted, sides, rows_of, penalty), wanted.width
        else:
            found = [self._scores(*ends, wanted, [side], rows_of, penalty) for side in sides]
            scores, columns_of_side = torch.cat(found, dim=1), found[0].shape[1]
        at, side, negative = wanted.left_out
        with torch.no_grad():  # no pass in backward: what is left out has no gradient, as no loss counts it
            scores[at, 1 + side * columns_of_side + negative] = -torch.inf
        return scores

    def _scores(
        self,
        heads: Float[Tensor, "B C"],
        tails: Float[Tensor, "B C"],
        kinds: Int64[Tensor, "B"],
        wanted: Wanted,
        sides: Sequence[tuple[Side, list[Group]]],
        candidates: Iterator[Float[Tensor, "_ C"]],
        last: Float[Tensor, "B"] | None,
    ) -> Float[Tensor, "B K_1"]:
        """Of edges and of candidates for some ends, whose rows come group by group; and a last column."""
        if all(len(groups) == 1 and groups[0][0] is None for _, groups in sides):
            given = zip(sides, candidates)
            shaped = {side: some.view(*groups[0][1].shape, some.shape[1]) for (side, groups), some in given}
            return self.decoder.scores(heads, tails, kinds, shaped, last, loops=wanted.loops)
        found = [self.decoder.toward(sides[0][0], heads, tails, kinds).unsqueeze(1)]
        for side, groups in sides:
            known = tails if side == "head" else heads
            pieces, order = [found[0].new_empty(0, wanted.width - wanted.loops)], [kinds[:0]]
            for (places, nodes_of), some in zip(groups, candidates):
                assert places is not None
                some = some.view(*nodes_of.shape, some.shape[1])
                pieces.append(self.decoder.against(side, known[places], kinds[places], some))
                order.append(places)
            found.append(torch.cat(pieces)[torch.cat(order).argsort()])
            if wanted.loops:
                found.append(self.decoder.toward(side, known, known, kinds).unsqueeze(1))
        return torch.cat(found if last is None else [*found, last.unsqueeze(1)], dim=1)

    def targets(self, seeds: Int[Tensor, "B wide"]) -> Int64[Tensor, "B"]:
        """Which of the scores is that of the edge."""
        return seeds.new_zeros(len(seeds), dtype=torch.int64)

    def labeled(self, targets: Int64[Tensor, "B"]) -> Bool[Tensor, "B"]:
        """All."""
        return torch.ones(len(targets), dtype=torch.bool)

    def loss_sum(self, output: Float[Tensor, "B K_1"], targets: Int64[Tensor, "B"]) -> Float[Tensor, ""]:
        """The losses of all edges, summed, with their penalties; that of an edge is the mean over its sides."""
        config, of_rows, sides = self.config, OF_ROWS.get(self.loss), len(self.sides)
        weight = config.penalty or 0.0
        if not self.decoder.one_score and sides > 1:
            output, sides = output.view(sides * len(output), output.shape[1] // sides), 1
        rows_of_an_edge = len(self.sides) // sides
        if of_rows is not None:
            return of_rows(output, config.temperature, sides, weight).sum() / rows_of_an_edge
        # The gradient of a split is a copy, that of slices takes a pass more for each.
        scores, *penalty = output.split([output.shape[1] - 1, 1], dim=1) if weight else [output]
        positive, negative = scores.split([1, scores.shape[1] - 1], dim=1)
        negative = negative.reshape(len(scores) * sides, negative.shape[1] // sides)
        allowed = negative > -torch.inf
        found = self.loss(
            positive.expand(-1, sides).reshape(-1), torch.where(allowed, negative, 0.0), allowed,
            margin=config.margin, temperature=config.temperature,
        )  # fmt: skip
        each = found.view(len(scores), sides).mean(1)
        return sum((weight * more.squeeze(1) for more in penalty), start=each).sum() / rows_of_an_edge

    def scores(self, output: Float[Tensor, "R K_1"]) -> Float[Tensor, "R K_1"]:
        """As they are."""
        return output

    def predicted(self, output: Float[Tensor, "R K_1"]) -> Int64[Tensor, "R"]:
        """The best of the scores."""
        return output.argmax(dim=1)

    def class_counts(self, answers: Answers) -> ClassCounts | None:
        """There are no classes."""
        return None

    def columns(self, output: Float[Tensor, "R K_1"], *, flat: bool) -> dict[str, Any]:
        """``score`` of the edge, and its probability."""
        return {"score": output[:, 0].numpy(), "probability": functional.sigmoid(output[:, 0]).numpy()}

    def seed_weights(self, targets: Int64[Tensor, "B"]) -> None:
        """All alike."""

    def baseline(self) -> None:
        """There is none."""
