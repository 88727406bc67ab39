"""Reciprocal relations: the loss of a step is that of every edge and of its reverse, which is of another relation."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from typed_graphs import typed_store

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.tasks.links.loops import LoopNegatives
from partita.tasks.links.losses import link_losses
from partita.tasks.links.negatives import NEGATIVES
from partita.tasks.links.task import LinkTask
from partita.tasks.task import adjusted_task
from partita.testing.graphs import formula_store

PENALTY = 0.3


def candidates_of(task: LinkTask, seeds: Tensor, number: int, edge: int) -> Tensor:
    """The negatives of an edge on a side."""
    for which, nodes in task._wanted(seeds).sides[number]:
        if which is None or edge in which.tolist():
            place = edge if which is None else which.tolist().index(edge)
            return nodes if nodes.ndim == 1 else nodes[place]
    raise AssertionError(edge)


@pytest.mark.parametrize(
    ("decoder", "sampler", "loss", "loops"),
    list(product(("distmult", "rotate"), ("joint", "uniform"), ("softmax", "cross_entropy"), (False, True))),
)
def test_the_loss_is_that_of_edges_and_their_reverses(tmp_path, decoder, sampler, loss, loops) -> None:
    store = typed_store(tmp_path / "g")
    settings = {"hidden": 8, "reciprocal": True, "loss": loss, "loop_negatives": loops, "penalty": PENALTY}
    settings |= {"decoder": decoder, "negative_sampler": sampler, "negatives": 4, "corrupt": "both", "task": "links"}
    task, _ = adjusted_task(Config.make(settings), store)
    seeds = task.examples(task.seeds("train")[::9], StepKey(0, 0, 0))
    every = torch.randn(store.num_nodes, 8, generator=torch.Generator().manual_seed(2))
    found = task.loss_sum(task.outputs(every[task.requests(seeds)], seeds), task.targets(seeds))

    relations, total = len(store.schema.relations), torch.zeros(())
    for edge, (source, target, kind) in enumerate(seeds[:, :3].tolist()):
        for number, side in enumerate(("tail", "head")):
            given, true = (source, target) if side == "tail" else (target, source)
            relation = torch.tensor([kind if side == "tail" else kind + relations])
            others = candidates_of(task, seeds, number, edge)
            others = others[others != true]
            if loops and bool(LoopNegatives(store).count(seeds[edge : edge + 1, :3], side)):
                others = torch.cat([others, torch.tensor([given])])
            row = every[[given]]
            scores = [task.decoder.inner(row, every[[each]], relation) for each in (true, *others.tolist())]
            scores = torch.stack(scores, dim=1)
            allowed = torch.ones(1, len(others), dtype=torch.bool)
            one = link_losses(loss, scores[:, 0], scores[:, 1:], allowed)
            penalty = task.decoder.inner.penalty(row, every[[true]], relation)
            total = total + (one + PENALTY * penalty).sum() / 2
    torch.testing.assert_close(found, total)
    assert len(seeds) > 10


@pytest.mark.parametrize("loss", ["softmax", "cross_entropy"])
@pytest.mark.parametrize("sampler", list(NEGATIVES))
def test_a_worker_without_edges_has_a_loss_of_zero(tmp_path, sampler, loss) -> None:
    given = {"task": "links", "model": "none", "decoder": "distmult", "reciprocal": True, "hidden": 8, "loss": loss}
    task, _ = adjusted_task(Config.make({**given, "negative_sampler": sampler}), formula_store(tmp_path / "g"))
    seeds = task.examples(task.seeds("train")[:5], StepKey(0, 0, 0))[:0]
    rows = torch.zeros(len(task.requests(seeds)), 8, requires_grad=True)
    found = task.loss_sum(task.outputs(rows, seeds), task.targets(seeds))
    found.backward()
    assert found.item() == 0
    assert all(parameter.grad is not None for parameter in task.decoder.parameters())


@pytest.mark.parametrize(("settings", "said"), [({"corrupt": "tail"}, "'tail'"), ({"decoder": "dot"}, "'dot' has no")])
def test_what_would_be_of_no_use_is_refused(tmp_path, settings, said) -> None:
    given = {"task": "links", "model": "none", "decoder": "distmult", "reciprocal": True, **settings}
    with pytest.raises(ConfigError, match=said):
        adjusted_task(Config.make(given), typed_store(tmp_path / "g"))
