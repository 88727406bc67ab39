"""Labels of nodes, and which task of which store."""

from __future__ import annotations

import math

import pytest
import torch

from partita.config import Config
from partita.core.errors import ConfigError, StoreError
from partita.tasks.nodes import Classes
from partita.tasks.task import make_task, task_name
from partita.testing.graphs import formula_store


def test_what_has_a_label(tasks) -> None:
    assert tasks["classes"].labeled(torch.tensor([0, -1])).tolist() == [True, False]
    assert tasks["regression"].labeled(torch.tensor([0.0, math.nan])).tolist() == [True, False]
    assert tasks["multilabel"].labeled(torch.zeros(2, 3, dtype=torch.uint8)).tolist() == [True, True]


@pytest.mark.parametrize(("label", "said"), [(3, "row 7 is class 3, of 3 classes"), (-2, "row 7 is class -2")])
def test_a_label_that_is_no_class_reaches_no_loss(tmp_path, label, said) -> None:
    store = formula_store(tmp_path / "graph")
    labels = store.held("y")[0].copy()
    labels[7] = label
    store._columns["y"] = labels  # as a damaged column whose checksum was made to fit
    with pytest.raises(StoreError, match=said):
        make_task(Config(), store)


def test_what_a_model_says(tasks) -> None:
    assert tasks["classes"].scores(torch.zeros(1, 4)).tolist() == [[0.25] * 4]
    assert tasks["multilabel"].scores(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
    assert tasks["multilabel"].predicted(torch.tensor([[1e-3, -1e-3]])).tolist() == [[True, False]]
    assert tasks["regression"].predicted(torch.tensor([[7.0]])).tolist() == [7.0]


def test_a_store_says_what_it_is_for(tmp_path) -> None:
    store = formula_store(tmp_path / "classes")
    task = make_task(Config(), store)
    assert isinstance(task, Classes)
    assert (task.width, task.class_names) == (3, ["0", "1", "2"])
    assert torch.equal(task.targets(task.seeds("val")), task.seeds("val") % 3)
    assert task_name(Config(task="regression"), store) == "regression"
    with pytest.raises(ConfigError, match="learns labels for 'regression', those of the store are for 'classes'"):
        make_task(Config(task="regression"), store)
    with pytest.raises(ConfigError, match=r"'regresion'.*'regression'"):
        make_task(Config(task="regresion"), store)
    for name in ("auto", "classes"):
        with pytest.raises(ConfigError, match="no labels"):
            make_task(Config(task=name), formula_store(tmp_path / f"none-{name}", num_classes=0))
