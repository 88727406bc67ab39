"""Weighted means of models and optimizer states over parts and workers (SDT-GNN, section III-D)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from partita.comm.group import Group

OptimizerRule = Literal["keep", "reset", "average"]
"""What becomes of the optimizer state of every part when models are averaged.

``keep``: every part goes on with its own. ``reset``: all begin anew. ``average``: all go on with the mean.
"""

OPTIMIZER_RULES: tuple[OptimizerRule, ...] = get_args(OptimizerRule)


class RunningMean:
    """A weighted mean of named tensors, over what this worker adds and what the others do.

    Sums are in float64. All workers end with the same bits, and with the same bits again in a run that is repeated
    with this number of workers. Memory: 8 bytes an element, however many are added.

    A name that only some have is averaged over those; what has weight 0 says which names and shapes there are, and
    nothing else. The mean of integers is rounded to the nearest.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one member.

        Args:
            tensors: by name, for instance a ``state_dict``; they are not kept.
            weight: >= 0, for instance its number of training nodes. The sum over all members need not be 1.

        Raises:
            ValueError: a negative weight, or a tensor of another shape or dtype than under that name before.
        """
        if not weight >= 0:
            raise ValueError(f"a weight of {weight}")
        for name, tensor in tensors.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
                self._weights[name], self._dtypes[name] = 0.0, tensor.dtype
            total = self._sums[name]
            if (total.shape, self._dtypes[name]) != (tensor.shape, tensor.dtype):
                raise ValueError(
                    f"'{name}' is {tensor.dtype} {tuple(tensor.shape)} here and {self._dtypes[name]} "
                    f"{tuple(total.shape)} there"
                )
            if weight > 0:  # 0 times infinity would be no number
                total.add_(tensor.detach().cpu().double(), alpha=weight)
                self._weights[name] += weight

    def over(self, group: Group) -> dict[str, Tensor]:
        """The mean over all members of all workers; every worker of the group calls this, also with none to add.

        Sums travel in float64 and count as gradients; names and shapes as metadata.

        Returns:
            By name, sorted, on the CPU: the mean in the tensor's dtype.

        Raises:
            ValueError: on all workers: a name has different shapes or dtypes, or no member with a weight above 0.
        """
        mine = {name: [str(self._dtypes[name]), list(total.shape)] for name, total in self._sums.items()}
        known: dict[str, Any] = {}
        for theirs in group.gather(mine):
            for name, layout in theirs.items():
                if known.setdefault(name, layout) != layout:
                    raise ValueError(f"'{name}' is {' '.join(map(str, layout))} on one worker, {known[name]} elsewhere")
        names = sorted(known)
        sums = [self._sums.get(name, torch.zeros(known[name][1], dtype=torch.float64)).clone() for name in names]
        weights = torch.tensor([self._weights.get(name, 0.0) for name in names], dtype=torch.float64)
        group.sum_([weights, *sums])
        found = {}
        for name, total, weight in zip(names, sums, weights.tolist()):
            if weight == 0:
                raise ValueError(f"'{name}' has no member with a weight above 0")
            dtype = getattr(torch, known[name][0].removeprefix("torch."))
            mean = total / weight
            found[name] = (mean if dtype.is_floating_point else mean.round()).to(dtype)
        return found


def optimizer_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors in the ``state_dict()`` of an optimizer: ``"3/exp_avg"`` is slot ``exp_avg`` of parameter 3."""
    return {
        f"{parameter}/{slot}": torch.as_tensor(value)
        for parameter, slots in state["state"].items()
        for slot, value in slots.items()
        if value is not None
    }


def with_tensors(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A ``state_dict()`` of an optimizer whose tensors are replaced: the inverse of :func:`optimizer_tensors`.

    Args:
        state: gives everything but the tensors: learning rates and the like.
        tensors: by name; none at all for an optimizer that has not stepped yet.
    """
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, slot = name.partition("/")
        slots.setdefault(int(parameter), {})[slot] = tensor
    return {**state, "state": slots}
