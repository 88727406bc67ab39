"""One model and one optimizer state per view, where models are averaged now and then (SDT-GNN, section III-D)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from partita.comm.group import Group
from partita.isolated.averaging import optimizer_tensors, with_tensors
from partita.isolated.syncs import Replica, Sync
from partita.runs.checkpoint_files import check_slots, damaged, require_forms, stepped

Layout = tuple[tuple[tuple[str, int], ...], ...]
"""For each worker the names of its views in an epoch, and their numbers of training nodes."""

_MEAN = "mean"
"""Stands for the name of a view in a checkpoint."""


class _State(NamedTuple):
    model: dict[str, Tensor]
    optimizer: dict[str, Any]


class ViewReplicas:
    """What the views of this worker have learned since models were joined.

    The model and the optimizer are those of the view that was entered; between views, those of the last mean.

    Args:
        model: whose parameters are trained, the same on all workers.
        optimizer: over them.
        sync: joins models.
        group: of all workers.

    Attributes:
        is_mean: what is in the model now is the mean of all views.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, sync: Sync, group: Group) -> None:
        self._model, self._optimizer, self._sync, self._group = model, optimizer, sync, group
        self._start = _State(_copied(model.state_dict()), with_tensors(optimizer.state_dict(), {}))
        self._states: dict[str, _State] = {}
        self._layout: Layout | None = None
        self._entered: str | None = None
        self.is_mean = True
        self._restored: Mapping[str, Tensor] | None = None

    def begin(self, layout: Layout) -> None:
        """Say which views there are from now on. All workers call this before an epoch, with the same layout.

        Where views are not those of the epoch before, models are joined, and optimizers begin anew.
        """
        if layout == self._layout:
            return
        if self._restored is not None:
            self._take_restored(layout)
        elif self._layout is not None:
            self.join(for_good=True)
            self._states = {}
        self._layout, self._restored = layout, None

    def enter(self, name: str) -> None:
        """Put the state of a view into the model and the optimizer."""
        state = self._states.get(name, self._start)
        self._model.load_state_dict(state.model)
        self._optimizer.load_state_dict(_with_copies(state.optimizer))
        self._entered, self.is_mean = name, False

    def leave(self) -> None:
        """Keep what the entered view has learned; nothing where none was entered."""
        if self._entered is not None:
            optimizer = _with_copies(self._optimizer.state_dict())
            self._states[self._entered] = _State(_copied(self._model.state_dict()), optimizer)
        self._entered = None

    def join(self, *, for_good: bool) -> None:
        """Put the mean of all views' models into the model. All workers call this, between views.

        Args:
            for_good: all views go on from the mean, and with the optimizer state that the sync gives them.
        """
        assert self._layout is not None
        views = self._layout[self._group.rank]
        states = [self._states.get(name, self._start) for name, _ in views]
        replicas = [Replica(state.model, state.optimizer, seeds) for state, (_, seeds) in zip(states, views)]
        joined, optimizers = self._sync.join_models(replicas, self._group)
        self._model.load_state_dict(joined)
        self.is_mean = True
        if for_good:
            self._start = self._start._replace(model=joined)
            self._states = {
                name: _State(joined, dict(optimizer)) for (name, _), optimizer in zip(views, optimizers, strict=True)
            }

    def tensors(self) -> dict[str, Tensor]:
        """All states of this worker's views by name, for a checkpoint; the last mean only on the first worker."""
        mean = self._start.model if self._group.rank == 0 else {}
        found = {f"{_MEAN}/model/{key}": tensor for key, tensor in mean.items()}
        for name, state in self._states.items():
            if state.model is not self._start.model:
                found |= {f"{name}/model/{key}": tensor for key, tensor in state.model.items()}
            tensors = optimizer_tensors(state.optimizer)
            found |= {f"{name}/optimizer/{key}": tensor.clone() for key, tensor in tensors.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint, whose mean is in the model already.

        Args:
            tensors: what :meth:`tensors` gave on every worker, together.

        Raises:
            RunError: a tensor is not one of this model, or of its optimizer.
        """
        self._check(tensors)
        self._restored = tensors
        self._start = self._start._replace(model=_copied(self._model.state_dict()))

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        """See that kernels can be given what a checkpoint holds."""
        found: dict[tuple[str, str], dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, rest = key.partition("/")
            kind, _, rest = rest.partition("/")
            found.setdefault((name, kind), {})[rest] = tensor
        slots = optimizer_tensors(stepped(self._model, self._optimizer)[1].state_dict())
        for (name, kind), each in found.items():
            where = Path("members.safetensors", name)
            if kind == "optimizer":
                check_slots(each, slots, where)
            else:
                require_forms(each, self._model.state_dict(), "the model", where)
        if (_MEAN, "model") not in found:
            raise damaged(Path("members.safetensors"), "the mean of the models is missing")

    def _take_restored(self, layout: Layout) -> None:
        """Take this worker's share of a checkpoint, if it has the states of the same views."""
        assert self._restored is not None
        models: dict[str, dict[str, Tensor]] = {}
        optimizers: dict[str, dict[str, Tensor]] = {}
        for key, tensor in self._restored.items():
            name, kind, rest = key.split("/", 2)
            (models if kind == "model" else optimizers).setdefault(name, {})[rest] = tensor
        start = models.pop(_MEAN)
        names = {name for views in layout for name, _ in views}
        if not models.keys() | optimizers.keys() <= names:
            return  # of other views: all go on from their mean
        self._start = self._start._replace(model=start)
        for name, _ in layout[self._group.rank]:
            if name in models or name in optimizers:
                optimizer = with_tensors(self._start.optimizer, optimizers.get(name, {}))
                self._states[name] = _State(models.get(name, start), optimizer)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _with_copies(state: Mapping[str, Any]) -> dict[str, Any]:
    """A ``state_dict()`` of an optimizer that shares no tensor with the given one."""
    return with_tensors(state, _copied(optimizer_tensors(state)))
