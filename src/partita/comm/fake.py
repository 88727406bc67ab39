"""Workers that are not there: engines can be made for them, to estimate what they would do, but nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Shaped
from torch import Tensor

from partita.comm.group import Group
from partita.comm.meter import Meter
from partita.core.mesh import Mesh


class FakeGroup(Group):
    """A group of which nobody is there."""

    def _swap(
        self, rows: Shaped[Tensor, "n ..."], send: Sequence[int], receive: Sequence[int]
    ) -> Shaped[Tensor, "m ..."]:
        raise RuntimeError("the workers of this group are imagined: nothing can be exchanged")

    def _all_reduce(self, flat: Tensor) -> None:
        raise RuntimeError("the workers of this group are imagined: nothing can be summed")


@dataclass
class FakeContext:
    """What a worker knows, as :class:`partita.comm.context.Context` has it.

    Attributes:
        mesh: who this worker would be.
        meter: stays empty.
    """

    mesh: Mesh
    meter: Meter = field(default_factory=Meter)
    _groups: dict[str, Group] = field(default_factory=dict, init=False, repr=False)

    def group(self, axis: str = "all", purpose: str = "train") -> Group:
        """The group of this worker along an axis."""
        if axis not in self._groups:
            self._groups[axis] = FakeGroup(self.mesh, axis, self.meter)
        return self._groups[axis]
