"""Node-wise sampling in which the destinations of a layer share their draws, so that they pick the same sources."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from partita.comm.group import Group
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.core.protocols import Topology
from partita.core.records import Sampled
from partita.kernels.reference.shared_draws import SharedKey
from partita.sample.base import BaseSampler, SamplerSettings
from partita.sample.topology import ArrayTopology
from partita.sample.walks import expected_neighbors

_ALL_LAYERS = 0
"""In keys, in the place of a layer, which count from 1 on."""


@dataclass(frozen=True)
class SharedFanout:
    """A rule: of every node take those in-edges whose sources have the smallest draws.

    Attributes:
        key: of the draws.
        fanout: edges per node, and in typed graphs per relation; or those of each relation. -1 for all.
    """

    key: SharedKey
    fanout: int | tuple[int, ...]

    def __call__(self, held: ArrayTopology, ids: Int[Tensor, "n"]) -> Sampled:
        """Draw; see :attr:`partita.core.protocols.Rule`."""
        return held.sample_shared(ids, self.key, self.fanout)


class LaborWise(BaseSampler):
    """A number of in-edges for every node, of the same sources as far as possible.

    LABOR-0 of Balin and Catalyurek, "Layer-neighbor sampling: defusing neighborhood explosion in GNNs" (NeurIPS 2023),
    in its sequential Poisson form: every node has one random number in a layer of a step, and all destinations take
    those of their in-neighbors that have the smallest ones. Each in-edge of a node is drawn with the same probability,
    so a mean over the sample is one over all neighbors in expectation; the batch has fewer distinct sources than with
    draws of every destination's own.

    Args:
        fanouts: neighbors per layer, layer 1 (input side) first; -1 for all. In typed graphs they are per relation: the
            same for all, or a number for each.
        batch_dependency: steps in which the random numbers turn from those of one key to those of the next, so that
            batches that follow one another share sources; 1: they have nothing in common. See :meth:`key_of`.
        layer_dependency: all layers of a step have the same random numbers.
    """

    settings = ("fanout", "batch_dependency", "layer_dependency")
    counts_neighbors = True
    may_draw_nothing = True
    draws_relations = True
    numbers_by_relation = True

    def __init__(
        self, fanouts: Sequence[int | tuple[int, ...]], *, batch_dependency: int = 1, layer_dependency: bool = False
    ) -> None:
        self.fanouts = tuple(fanouts)
        self.batch_dependency, self.layer_dependency = batch_dependency, layer_dependency
        self._step: StepKey | None = None

    @classmethod
    def of(cls, settings: SamplerSettings, group: Group) -> LaborWise:
        """As the settings say."""
        return cls(
            settings.fanouts,
            batch_dependency=settings.batch_dependency,
            layer_dependency=settings.layer_dependency,
        )

    @classmethod
    def check(cls, settings: SamplerSettings) -> None:
        """Nothing of replacement; see :meth:`BaseSampler.check`."""
        if settings.replace:
            raise ConfigError(
                "replace is not for the sampler 'labor', which takes the in-edges of the smallest numbers, each once",
                where="replace",
                fix="Leave replace out, or use the sampler node",
            )

    def at_step(self, step: StepKey) -> LaborWise:
        """The same one, whose keys are those of a step: without it, it draws by the keys that it is given alone."""
        other = copy(self)
        other._step = step
        return other

    def key_of(self, step: StepKey, layer: int) -> SharedKey:
        """The key of a layer's draws in a step.

        With ``batch_dependency`` K they are, at step s, on the way from those of window w = floor(s / K) of the epoch
        to those of window w + 1, with c = (s mod K) / K and independent standard Gaussian numbers z_w of each window::

            r_t = Phi(cos(pi c / 2) z_w(t) + sin(pi c / 2) z_(w+1)(t))

        The smoothed dependency of Balin, LaSalle and Catalyurek, "Cooperative minibatching in graph neural networks"
        (2023), as DGL's GraphBolt has it. Within any one step the r_t are uniform and independent.
        """
        layer = _ALL_LAYERS if self.layer_dependency else layer
        window, passed = divmod(step.step, self.batch_dependency)
        key, after = (replace(step, step=number).at(Purpose.SAMPLE, layer) for number in (window, window + 1))
        return SharedKey.turning(key, after, passed / self.batch_dependency) if passed else SharedKey(key)

    def expected_edges(self, layer: int, destinations: int, degree: float, workers: int) -> float:
        """As many as the fanout allows."""
        return expected_neighbors(self.fanouts[layer - 1], destinations, degree)

    def draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, layer: int) -> Sampled:
        """See :class:`partita.core.protocols.Sampler`."""
        shared = SharedKey(key) if self._step is None else self.key_of(self._step, layer)
        return topology.at_owners(dst, SharedFanout(shared, self.fanouts[layer - 1]))
