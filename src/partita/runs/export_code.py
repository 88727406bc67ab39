"""The Python file of an exported model, in plain PyG."""

from __future__ import annotations

import re
from collections.abc import Mapping

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.relation_names import separated
from partita.nn.layers.residual import Residual
from partita.nn.model import Model
from partita.nn.stage import Stage
from partita.runs.other_store import Trained

WEIGHTS, CODE, FEATURES = "model.safetensors", "model.py", "features.json"
"""The files of an exported model."""

_NORMS = {"none": "nn.Identity()", "layer": "nn.LayerNorm({})", "batch": "nn.BatchNorm1d({})"}
_ACTIVATIONS = {
    "none": "{}", "relu": "functional.relu({})", "elu": "functional.elu({})", "gelu": "functional.gelu({})",
    "leaky_relu": "functional.leaky_relu({})", "silu": "functional.silu({})", "tanh": "torch.tanh({})",
}  # fmt: skip
_KNOWN = {"layer", "norm", "activation", "dropout", "output_scale"}


class ModelCode:
    """Writes the Python file of an exported model.

    Args:
        model: with its weights.
        config: the settings of the run.
        trained: what the run was trained on.
        run: its folder, for messages.

    Raises:
        ConfigError: a part of the model has no equal in plain PyG.
    """

    def __init__(self, model: Model, config: Config, trained: Trained, run: str) -> None:
        self._model, self._config, self._trained, self._run = model, config, trained, run
        self._stages = stages = [stage for stage in model.stages if isinstance(stage, Stage)]
        self._types = None if model.encoder is None else dict(zip(model.encoder.node_types, model.encoder.widths))
        columns = {name for stage in stages for name in stage.layer.edge_columns}
        self._columns = [name for name in ("edge_weight", "edge_attr") if name in columns]
        self._edge_width = max(stage.layer.edge_width for stage in stages)
        self._described = [stage.describe() for stage in stages]
        self._convs = [self._conv(stage) for stage in stages]
        for number, described in enumerate(self._described, start=1):
            for part in sorted(described.keys() - _KNOWN):
                raise self._refusal(f"layer {number} has {part.replace('_', ' ')}, which is not exported yet")
        self._norms = [
            self._of(_NORMS, "normalization", described["norm"]).format(stage.layer.out_width)
            for stage, described in zip(stages, self._described)
        ]

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(what, where=self._run, fix="Use partita predict, which computes any model")

    def _conv(self, stage: Stage) -> str:
        code = stage.layer.pyg_code()
        if isinstance(stage.layer, Residual):
            raise self._refusal("a layer with a residual connection is not exported yet")
        if code is None:
            raise self._refusal(f"the layer '{stage.layer.name}' has no equal among PyG's convolutions")
        return code

    def _of(self, table: Mapping[str, str], kind: str, name: str) -> str:
        if name not in table:
            raise self._refusal(f"the {kind} '{name}' is not exported, as it is your own")
        return table[name]

    def text(self) -> str:
        """The file."""
        used = ", ".join(sorted(set(re.findall(r"\b(\w+Conv|HeteroLinear)\(", " ".join(self._convs)))))
        dtype = str(next(self._model.parameters()).dtype).removeprefix("torch.")
        lines = [
            '"""A model that Partita trained, in plain PyG: needs torch, torch_geometric and safetensors.',
            "",
            "    from model import load",
            f"    out = load()({self._arguments})",
            "",
            *self._takes(dtype),
            '"""',
            "",
            "from pathlib import Path",
            "",
            "import torch",
            "from safetensors.torch import load_file",
            "from torch import nn",
            "from torch.nn import functional",
            f"from torch_geometric.nn import {used}",
            "",
            *self._names(),
            "",
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *self._modules("encoder", self._encoder()),
            *self._modules("convs", self._convs),
            *self._modules("norms", self._norms),
            "",
            f"    def forward(self, {self._arguments}):",
            *(f"        {line}" for line in self._forward()),
            "",
            "",
            f'def load(file=Path(__file__).with_name("{WEIGHTS}")):',
            f"    model = Model().to(torch.{dtype})",
            "    model.load_state_dict(load_file(file))",
            "    return model.eval()",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _arguments(self) -> str:
        """What the model takes."""
        names = ["x", "edge_index", *self._columns]
        return ", ".join(f"{name}_dict" for name in names) if self._types is not None else ", ".join(names)

    def _takes(self, dtype: str) -> list[str]:
        width, outputs = self._model.widths[0], self._model.widths[-1]
        scaled = self._trained.encoding is not None and self._trained.encoding.changes_values
        features = f"as {FEATURES} says" if scaled else "as they were ingested"
        columns = {
            "edge_weight": f"{dtype} (E), weights of the edges.",
            "edge_attr": f"{dtype} (E, {self._edge_width}), features of the edges.",
        }
        if self._types is None:
            return [
                f"x: {dtype} (N, {width}), features {features}. edge_index: int64 (2, E), from sources to targets.",
                *(f"{name}: {columns[name]}" for name in self._columns),
                f"Returns {dtype} (N, {outputs}): {self._returns()}.",
            ]
        of_types = ", ".join(f"{name} {each or 'none'}" for name, each in self._types.items())
        return [
            f"x_dict: of each of NODE_TYPES {dtype} (n, F), features {features} (F: {of_types}).",
            "Of a type that has none a column of ones, (n, 1).",
            "edge_index_dict: of each of RELATIONS int64 (2, e), from sources to targets, as rows of their types.",
            *(f"{name}_dict: of each of RELATIONS {columns[name].replace('(E', '(e')}" for name in self._columns),
            f"Returns of each type {dtype} (n, {outputs}): {self._returns()}.",
        ]

    def _returns(self) -> str:
        return "logits of CLASS_NAMES" if self._named else "what the run learned"

    @property
    def _named(self) -> bool:
        return len(self._trained.classes) == self._model.widths[-1] and self._trained.num_classes > 1

    def _names(self) -> list[str]:
        names = [f"CLASS_NAMES = {list(self._trained.classes)!r}"] if self._named else []
        if self._types is not None:
            relations = [separated(each) for each in self._trained.relations]
            names += [f"NODE_TYPES = {list(self._types)!r}", "RELATIONS = [", *(f"    {each!r}," for each in relations)]
            names += ["]"]
        return [*names, ""] if names else []

    def _encoder(self) -> list[str]:
        """A map for each node type; of a column of ones where it has no features."""
        encoder = self._model.encoder
        if encoder is None:
            return []
        out = encoder.out_width
        return [f"nn.Linear({width or 1}, {out}{'' if width else ', bias=False'})" for width in encoder.widths]

    def _modules(self, name: str, codes: list[str]) -> list[str]:
        if not codes:
            return []
        return [f"        self.{name} = nn.ModuleList([", *(f"            {code}," for code in codes), "        ])"]

    def _forward(self) -> list[str]:
        lines = self._inputs("x") if self._types is None else self._joined(self._types)
        for place, (stage, described) in enumerate(zip(self._stages, self._described)):
            activation = self._of(_ACTIVATIONS, "activation", described["activation"])
            lines.append(f"x = {stage.layer.pyg_call(f'self.convs[{place}]')}")
            lines.append("x = " + activation.format(f"self.norms[{place}](x)"))
            lines += self._dropout(described["dropout"])
            if "output_scale" in described:
                mean, deviation = described["output_scale"]
                lines.append(f"x = x * {deviation!r} + {mean!r}")
        return [*lines, "return x" if self._types is None else "return dict(zip(NODE_TYPES, x.split(sizes)))"]

    def _inputs(self, x: str) -> list[str]:
        """What is done to rows of features."""
        lines = []
        if self._config.normalize_features:
            lines += [f"total = {x}.abs().sum(dim=1, keepdim=True)", f"{x} = {x} / total.masked_fill(total == 0, 1.0)"]
        return lines + self._dropout(self._config.input_dropout, x)

    def _joined(self, types: Mapping[str, int]) -> list[str]:
        """All types in one numbering, one type after the other."""
        done = self._inputs("rows")
        featured = [name for name, width in types.items() if width]
        lines = [
            "sizes = [len(x_dict[name]) for name in NODE_TYPES]",
            "first = dict(zip(NODE_TYPES, torch.tensor([0, *sizes]).cumsum(0).tolist()))",
            "encoded = []",
            "for name, encode in zip(NODE_TYPES, self.encoder):",
            "    rows = x_dict[name]",
            *([f"    if name in {featured!r}:", *(f"        {line}" for line in done)] if done else []),
            "    encoded.append(encode(rows))",
            "x = torch.cat(encoded)",
            "shifts = [torch.tensor([[first[source]], [first[to]]]).to(x.device) for source, _, to in RELATIONS]",
            "edge_index = torch.cat(",
            "    [edge_index_dict[each] + shifts[at] for at, each in enumerate(RELATIONS)], dim=1",
            ")",
            *(f"{name} = torch.cat([{name}_dict[each] for each in RELATIONS])" for name in self._columns),
        ]
        if any(stage.layer.reads_relations for stage in self._stages):
            lines += [
                "numbers = torch.tensor([edge_index_dict[each].shape[1] for each in RELATIONS])",
                "edge_type = torch.repeat_interleave(numbers).to(x.device)",
                "node_type = torch.repeat_interleave(torch.tensor(sizes)).to(x.device)",
            ]
        return lines

    @staticmethod
    def _dropout(p: float, x: str = "x") -> list[str]:
        return [f"{x} = functional.dropout({x}, {p}, self.training)"] if p else []
