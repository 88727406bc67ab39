"""What tiers must know of other workers to estimate what these will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from partita.core.errors import ConfigError
from partita.core.mesh import Mesh

_Tier = TypeVar("_Tier", bound="OfWorkers")


class OfWorkers:
    """Base of who estimates, for every worker, what the same tier of that worker will do."""

    _of_all: tuple[Any, ...] = ()

    def assume_workers(self: _Tier, tiers: Sequence[_Tier]) -> None:
        """Say which tier each worker has in the place of this one, by rank, for ``estimate``."""
        self._of_all = tuple(tiers)

    @property
    def knows_workers(self) -> bool:
        """Whether :meth:`assume_workers` was called."""
        return bool(self._of_all)

    def of_workers(self: _Tier, mesh: Mesh) -> tuple[_Tier, ...]:
        """The tier of each worker.

        Raises:
            ConfigError: those of the others are not known.
        """
        if not self._of_all and mesh.size == 1:
            return (self,)
        if len(self._of_all) != mesh.size:
            raise ConfigError(
                "which rows the other workers hold is not known here",
                where="feature tiers",
                fix="Plan with the whole store that the shards were made of",
            )
        return cast(tuple[_Tier, ...], self._of_all)
