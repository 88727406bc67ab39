"""A step on an untyped graph whose nodes have learnt rows, beside their features or in their place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from steps import Step, make_layer

from partita.core.mesh import Mesh
from partita.features.host import HostRows
from partita.features.typed import TypedColumns
from partita.nn.encoder import Encoder
from partita.nn.model import Model
from partita.parallel.typed_inputs import TypedInputs


@dataclass(frozen=True)
class LearntStep(Step):
    """Every node has a learnt row; a row alone that is as wide as the hidden layers goes into layer 1 as it is.

    Attributes:
        learnt: columns of the learnt rows.
        featured: nodes have features too.
    """

    learnt: int = 4
    featured: bool = True

    def model(self) -> Model:
        widths = [self.hidden] * len(self.fanouts) + [self.classes]
        last = len(self.fanouts) - 1
        layers = [make_layer(self.kind, i, o, n == last) for n, (i, o) in enumerate(pairwise(widths))]
        encoder = Encoder((self.features * self.featured,), self.hidden, ("node",), (self.learnt,))
        model = Model.from_layers(layers, activation="elu", dropout=self.dropout, encoder=encoder)
        model.reset(self.model_seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() < 2:
                    parameter += torch.linspace(0.1, 0.4, parameter.numel())
        return model.to(self.dtype).train()

    def columns(self) -> TypedColumns:
        rows = HostRows(self.column()) if self.featured else None
        return TypedColumns(self.store.node_types, (rows,), self.dtype, (self.learnt,))

    def inputs(self) -> TypedInputs:
        return TypedInputs(self.columns(), self.topology(), lambda kind, host: (host, None))

    def rows(self, mesh: Mesh) -> TypedColumns:
        return self.columns()
