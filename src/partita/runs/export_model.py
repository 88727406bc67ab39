"""The model of a run as plain PyG: its weights, and a Python file that loads them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from partita.comm.context import Context
from partita.config import Config
from partita.core.asides import written_aside
from partita.core.errors import ConfigError
from partita.core.files import require_parent, write_text
from partita.nn.layers.residual import Residual
from partita.nn.model import Model
from partita.nn.modules import model_from
from partita.nn.stage import Stage
from partita.runs.checkpoint import load_model
from partita.runs.load import best_checkpoint, read_run
from partita.runs.other_store import Trained, with_kept
from partita.setup.inputs import DTYPES
from partita.setup.sampler import evaluation_sampler

WEIGHTS, CODE, FEATURES = "model.safetensors", "model.py", "features.json"
"""The files of an exported model."""

_NORMS = {"none": "nn.Identity()", "layer": "nn.LayerNorm({})", "batch": "nn.BatchNorm1d({})"}
_ACTIVATIONS = {
    "none": "{}", "relu": "functional.relu({})", "elu": "functional.elu({})", "gelu": "functional.gelu({})",
    "leaky_relu": "functional.leaky_relu({})", "silu": "functional.silu({})", "tanh": "torch.tanh({})",
}  # fmt: skip
_KNOWN = {"layer", "norm", "activation", "dropout", "output_scale"}


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """Where the files of an exported model are, and of which checkpoint the weights are."""

    path: str
    files: tuple[str, ...]
    checkpoint: str

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"path": self.path, "files": list(self.files), "checkpoint": self.checkpoint}


def export_model(
    run: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False, trust: str | None = None
) -> ExportedModel:
    """Write the model of a run as a plain PyG model, which needs Partita no more.

    ``out`` gets ``model.safetensors``, the weights of the best checkpoint, and ``model.py``, a ``torch.nn.Module`` of
    convolutions of ``torch_geometric.nn`` with a function ``load`` that fills it. Over all edges of a graph it gives
    the logits of :func:`partita.predict`. Where features were scaled or made of categories at ingest, ``features.json``
    says how: the model takes them as they are in the store. PyG itself is not needed to write the files.

    Args:
        run: the run folder.
        out: a directory, which is made; its parent must be there.
        overwrite: replace files of these names that are there already.
        trust: ``"imports"``: the run may name code to import.

    Raises:
        RunError: there is no run, or no checkpoint yet.
        ConfigError: there are such files, or the model has no equal in plain PyG: a layer, a normalization or an
            activation of one's own, one that is evaluated on random walks, or one of a typed graph.
        ResourceError: the disk is full.
    """
    folder, record, config = read_run(Context.alone(), run, trust=trust)
    described = record["model"]
    if described.get("custom") or "stages" not in described:
        raise ConfigError(
            "was trained with a model of your own, whose code is yours already",
            where=str(run),
            fix="Save its state_dict() where you have it",
        )
    if "encoder" in described:
        raise ConfigError(
            "models of typed graphs are not exported yet",
            where=str(run),
            fix="Use partita predict; the parameters are in the checkpoint, as model.safetensors",
        )
    if evaluation_sampler(config) is not None:
        raise ConfigError(
            f"the model is evaluated on neighbors that the sampler '{config.sampler}' finds, which PyG's convolutions "
            "are not given",
            where=str(run),
            fix="Use partita predict, or train with the sampler node",
        )
    model = model_from(described)
    if not isinstance(config.target_scaling, str):
        model.scale_output(*config.target_scaling)
    model = model.to(DTYPES[config.precision])
    checkpoint = best_checkpoint(folder)
    load_model(checkpoint, model)
    trained = Trained.of(with_kept(folder, record))
    code = _Code(model, config, trained, str(run)).text()
    texts = {CODE: code}
    if trained.encoding is not None and trained.encoding.columns + (trained.encoding.mean or ()):
        texts[FEATURES] = json.dumps(trained.encoding.to_json(), indent=1) + "\n"
    _write(Path(out), _state(model), texts, overwrite=overwrite)
    return ExportedModel(str(out), (WEIGHTS, *texts), checkpoint.name)


def _write(out: Path, state: Mapping[str, Tensor], texts: Mapping[str, str], *, overwrite: bool) -> None:
    require_parent(out)
    if out.exists() and not out.is_dir():
        raise ConfigError("is not a directory", where=str(out), fix="Name a directory for the files of the model")
    there = [name for name in (WEIGHTS, *texts) if (out / name).exists()]
    if there and not overwrite:
        raise ConfigError(f"holds {there[0]} already", where=str(out), fix="Choose another directory, or --overwrite")
    out.mkdir(exist_ok=True)
    try:
        with written_aside(out / WEIGHTS) as aside:
            aside.write_bytes(save(dict(state)))
        for name, text in texts.items():
            write_text(out / name, text)
    except BaseException:
        if not there:  # files of others stay
            for name in (WEIGHTS, *texts):
                (out / name).unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()
        raise


def _state(model: Model) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for place, stage in enumerate(model.stages):
        for kind, module in (("convs", stage.layer), ("norms", stage.norm)):
            state = module.state_dict()  # type: ignore[union-attr, operator]
            found |= {f"{kind}.{place}.{name}": value.detach().cpu().contiguous() for name, value in state.items()}
    return found


class _Code:
    """Writes the Python file.

    Raises:
        ConfigError: a part of the model has no equal in plain PyG.
    """

    def __init__(self, model: Model, config: Config, trained: Trained, run: str) -> None:
        self._model, self._config, self._trained, self._run = model, config, trained, run
        stages = [stage for stage in model.stages if isinstance(stage, Stage)]
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
        used = ", ".join(sorted({re.match(r"\w+", conv)[0] for conv in self._convs}))  # type: ignore[index]
        width, outputs = self._model.widths[0], self._model.widths[-1]
        dtype = str(next(self._model.parameters()).dtype).removeprefix("torch.")
        scaled = self._trained.encoding is not None and self._trained.encoding.changes_values
        features = f"as {FEATURES} says" if scaled else "as they were ingested"
        lines = [
            '"""A model that Partita trained, in plain PyG: needs torch, torch_geometric and safetensors.',
            "",
            "    from model import load",
            "    out = load()(x, edge_index)",
            "",
            f"x: {dtype} (N, {width}), features {features}. edge_index: int64 (2, E), from sources to targets.",
            f"Returns {dtype} (N, {outputs}): {self._returns()}.",
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
            *self._modules("convs", self._convs),
            *self._modules("norms", self._norms),
            "",
            "    def forward(self, x, edge_index):",
            *(f"        {line}" for line in self._forward()),
            "        return x",
            "",
            "",
            f'def load(file=Path(__file__).with_name("{WEIGHTS}")):',
            f"    model = Model().to(torch.{dtype})",
            "    model.load_state_dict(load_file(file))",
            "    return model.eval()",
        ]
        return "\n".join(lines) + "\n"

    def _returns(self) -> str:
        return "logits of CLASS_NAMES" if self._named else "what the run learned"

    @property
    def _named(self) -> bool:
        return len(self._trained.classes) == self._model.widths[-1] and self._trained.num_classes > 1

    def _names(self) -> list[str]:
        if not self._named:
            return []
        return [f"CLASS_NAMES = {list(self._trained.classes)!r}", ""]

    def _modules(self, name: str, codes: list[str]) -> list[str]:
        return [f"        self.{name} = nn.ModuleList([", *(f"            {code}," for code in codes), "        ])"]

    def _forward(self) -> list[str]:
        lines, config = [], self._config
        if config.normalize_features:
            lines += ["total = x.abs().sum(dim=1, keepdim=True)", "x = x / total.masked_fill(total == 0, 1.0)"]
        lines += self._dropout(config.input_dropout)
        for place, described in enumerate(self._described):
            activation = self._of(_ACTIVATIONS, "activation", described["activation"])
            lines.append("x = " + activation.format(f"self.norms[{place}](self.convs[{place}](x, edge_index))"))
            lines += self._dropout(described["dropout"])
            if "output_scale" in described:
                mean, deviation = described["output_scale"]
                lines.append(f"x = x * {deviation!r} + {mean!r}")
        return lines

    @staticmethod
    def _dropout(p: float) -> list[str]:
        return [f"x = functional.dropout(x, {p}, self.training)"] if p else []
