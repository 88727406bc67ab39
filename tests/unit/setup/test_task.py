"""Labels and seeds of a store."""

from __future__ import annotations

import math

import torch

from partita.setup.task import has_label


def test_what_has_a_label() -> None:
    assert has_label("classes", torch.tensor([0, -1])).tolist() == [True, False]
    assert has_label("regression", torch.tensor([0.0, math.nan])).tolist() == [True, False]
    assert has_label("multilabel", torch.zeros(2, 3)).tolist() == [True, True]
