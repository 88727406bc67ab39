"""Learnt rows as the settings of a run want them: of which node types, how wide, moved by what, kept where."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from partita.comm.axis import Workers
from partita.comm.device import free_bytes
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, fold
from partita.core.options import format_bytes
from partita.core.registry import Registry
from partita.features.learnt import LazyAdam, LearntRows, RowAdagrad, RowOwners, RowSGD
from partita.features.learnt_tables import STEPS_HELD, LearntTable, MemoryTable, RowOptimizer
from partita.graph.store import GraphStore
from partita.nn.initialize import name_key
from partita.nn.model import Model
from partita.sample.topology import as_tensor
from partita.setup.inputs import DTYPES, learnt_widths, node_type_names
from partita.setup.sampler import WHOLE
from partita.setup.tiers import looks_ahead

ROW_OPTIMIZERS: Registry[RowOptimizer] = Registry(
    "optimizer of learnt rows",
    {"adam": LazyAdam(), "adagrad": RowAdagrad(), "sgd": RowSGD()},
    setting="embed_optimizer",
)
"""By name: how learnt rows move."""

ON_DEVICE, DEVICE_SHARE = (LazyAdam, RowAdagrad, RowSGD), 0.25
"""Optimizers that move rows on any device; and the part of its free memory that all tables may take there."""

_FIX = "Free space there, set TMPDIR to another disk, or raise --embed-memory"


def make_learnt(
    config: Config, store: GraphStore, model: Model, context: Workers, device: torch.device,
    learnt: LearntRows | None = None,
) -> LearntRows | None:  # fmt: skip
    """The tables of this worker as they are before training, and the model's source of them; ``None`` without any.

    A single worker has them on its device, where they leave most of the device's memory to what is computed.

    Args:
        config, store, model, context: of the run.
        device: of this worker.
        learnt: tables that there are already, as they are now; ``None``: they are made.

    Raises:
        ResourceError: there is no space on the disk for what is not to be in memory.
    """
    encoder = model.encoder
    if encoder is None or not any(encoder.learnt):
        return None
    if learnt is not None:
        encoder.source = learnt
        return learnt
    types, owners = store.node_types, _owners(store, context.mesh.size)
    learnt = LearntRows(
        encoder.node_types, encoder.learnt, owners, context.group("all"), DTYPES[config.precision],
        ROW_OPTIMIZERS.find(config.embed_optimizer),
        _Tables.of(config, encoder.node_types, encoder.learnt, owners, device if context.mesh.size == 1 else None),
        context.group("all", "sample"),
    )  # fmt: skip
    learnt.initialize(
        partial(name_key, fold(fold(int(Purpose.INITIALISE), config.seed), 0)),
        lambda width: math.sqrt(3 / width) if config.embed_init is None else config.embed_init,
        lambda kind, rows: store.to_original(types.ids(kind, rows)),
    )
    encoder.source = learnt
    return learnt


def check_look_ahead_of_learnt(config: Config, store: GraphStore, model: Model, workers: int) -> None:
    """Refuse to look ahead where all learnt rows are in memory, and nothing else looks ahead.

    Raises:
        ConfigError: so it is.
    """
    if not config.look_ahead or looks_ahead(config):
        return
    encoder, tables = model.encoder, None
    if encoder is not None and any(encoder.learnt):
        tables = _Tables.of(config, encoder.node_types, encoder.learnt, _owners(store, workers))
    if tables is None or not tables.any_in_files:
        what = "there are no learnt rows" if tables is None else "all learnt rows fit into embed_memory"
        raise ConfigError(
            f"{what}, so nothing is looked ahead for", where="look_ahead", fix="Leave it out, or lower embed_memory"
        )


def table_bytes(config: Config, store: GraphStore, workers: int) -> int | None:
    """Bytes of memory that learnt rows take on the worker with most of them, with what their optimizer remembers.

    Returns:
        0 where none are learnt; ``None`` where some are in files.
    """
    widths = learnt_widths(store, config)
    tables = _Tables.of(config, node_type_names(store), widths, _owners(store, workers))
    return None if tables.any_in_files else tables.num_bytes


def check_learnt(config: Config, model: Model) -> None:
    """Refuse what learnt rows do not go with.

    Raises:
        ConfigError: views of isolated training, copies of checkpoints, or a model without an encoder.
    """
    if config.embed is None:
        return
    if model.whole:
        raise ConfigError(
            "a model that is computed as a whole takes features only, no learnt rows",
            where="embed",
            fix="Use one of Partita's layers, or make the model of layers: partita.Model.from_layers",
        )
    if config.views != WHOLE:
        raise ConfigError(
            "learnt rows lie with the workers that own them, and a view of isolated training sees its own part only",
            where=f"embed, views {config.views}",
            fix="Leave embed out, or train on the whole graph",
        )
    if config.copy_checkpoints:
        raise ConfigError(
            "checkpoints with learnt rows are written by the first host only",
            where="embed, copy_checkpoints",
            fix="Leave copy_checkpoints out, and write the run to a file system that all hosts see",
        )


def describe_learnt(config: Config, learnt: LearntRows) -> dict[str, Any]:
    """What ``run.json`` says of learnt rows: rows and columns by node type, and bytes with those of the optimizer."""
    types, total = {}, 0
    for kind, table in learnt.tables.items():
        types[table.name] = {"rows": learnt.size_of(kind), "columns": table.width}
        total += learnt.size_of(kind) * sum(table.held.widths.values()) * table.held.dtype.itemsize
    return {"types": types, "optimizer": config.embed_optimizer, "bytes": total}


def learnt_note(config: Config, learnt: LearntRows) -> str:
    """The same in words."""
    found = describe_learnt(config, learnt)
    types = ", ".join(f"{each['rows']:,} x {each['columns']} of '{name}'" for name, each in found["types"].items())
    paged = [table.name for table in learnt.tables.values() if table.held.window]
    where = f", those of {', '.join(map(repr, paged))} in files, with rows in memory that are used again soon"
    total = format_bytes(found["bytes"])
    return f"learnt rows: {types}; with what their optimizer remembers {total}{where if paged else ''}"


def step_bytes(learnt: LearntRows, rows: int) -> int:
    """Bytes of memory for rows of steps that are read before they are computed, or are to be written.

    Args:
        learnt: the tables.
        rows: of a step, at most.
    """
    found = 0
    for kind, table in learnt.tables.items():
        if table.held.window:
            record = sum(table.held.widths.values()) * table.held.dtype.itemsize
            found += STEPS_HELD * record * min(rows, learnt.size_of(kind))
    return found


def row_rate(config: Config, rate: float) -> float:
    """The learning rate of learnt rows where that of the model is ``rate``: the same schedule."""
    return rate if config.embed_lr is None else config.embed_lr * (rate / config.lr)


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float, learnt: LearntRows | None) -> float:
    """Scale the gradients of parameters so that the norm of all, with those of learnt rows, is at most ``norm``.

    All workers call this where rows are learnt.

    Returns:
        What the gradients of learnt rows are to be scaled with.
    """
    if learnt is None:
        nn.utils.clip_grad_norm_(parameters, norm)
        return 1.0
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    own = math.fsum(float(gradient.double().square().sum()) for gradient in gradients)
    factor = min(1.0, norm / (math.sqrt(own + learnt.squared_norm()) + 1e-6))  # as torch has it
    for gradient in gradients:
        gradient.mul_(factor)
    return factor


def _owners(store: GraphStore, workers: int) -> RowOwners:
    return RowOwners.of(store.node_types, as_tensor(store.part_offsets), workers)


class _Tables:
    """Makes tables in memory where they fit into a budget, else in files.

    What is left of the budget is shared equally by what is left of the tables, the smallest first: all workers keep the
    same tables in memory.

    Args:
        budget: bytes; ``None``: all are in memory.
        sizes: bytes of each table.
        device: that has all tables; ``None``: they are with the host.

    Attributes:
        num_bytes: of all tables, in memory and in files.
    """

    def __init__(self, budget: int | None, sizes: Mapping[str, int], device: torch.device | None = None) -> None:
        self._budget_of, self._device = dict[str, int | None](), device
        self.num_bytes = sum(sizes.values())
        left = budget
        for number, what in enumerate(sorted(sizes, key=lambda what: sizes[what])):
            if left is None:
                self._budget_of[what] = None
                continue
            share = left // (len(sizes) - number)
            self._budget_of[what] = None if sizes[what] <= share else share
            left -= min(sizes[what], share)

    @classmethod
    def of(
        cls, config: Config, names: Sequence[str], widths: Sequence[int], owners: RowOwners,
        device: torch.device | None = None,
    ) -> _Tables:  # fmt: skip
        """Of each type's table, that of the worker with most rows of it, with what the optimizer remembers.

        A device gets them where they leave most of its memory to what is computed.
        """
        optimizer, item, sizes = ROW_OPTIMIZERS.find(config.embed_optimizer), DTYPES[config.precision].itemsize, {}
        for name, width, bounds in zip(names, widths, owners.bounds, strict=True):
            if width:
                columns = width + sum(optimizer.slots(width).values())
                sizes[f"learnt rows of '{name}'"] = int(bounds.diff().max()) * columns * item
        fits = (
            device is not None
            and device.type != "cpu"
            and config.embed_memory is None
            and isinstance(optimizer, ON_DEVICE)
            and sum(sizes.values()) <= DEVICE_SHARE * free_bytes(device)
        )
        return cls(config.embed_memory, sizes, device if fits else None)

    @property
    def any_in_files(self) -> bool:
        """Whether a table does not fit."""
        return any(budget is not None for budget in self._budget_of.values())

    def __call__(self, what: str, rows: int, widths: Mapping[str, int], dtype: torch.dtype) -> LearntTable:
        budget = self._budget_of[what]
        if budget is None:
            return MemoryTable(rows, widths, dtype, self._device)
        from partita.features.paged_table import PagedTable  # imports numba

        return PagedTable(what, rows, widths, dtype, budget, fix=_FIX)
