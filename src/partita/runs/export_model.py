"""The model of a run as plain PyG: its weights, and a Python file that loads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from partita.comm.context import Context
from partita.core.asides import written_aside
from partita.core.errors import ConfigError
from partita.core.files import require_parent, write_text
from partita.nn.layers import Layer
from partita.nn.model import Model
from partita.nn.modules import model_from
from partita.runs.checkpoint import load_model
from partita.runs.export_code import CODE, FEATURES, WEIGHTS, ModelCode
from partita.runs.load import best_checkpoint, learns_rows, read_run
from partita.runs.other_store import Trained, with_kept
from partita.setup.inputs import DTYPES
from partita.setup.sampler import evaluation_sampler


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
    convolutions of ``torch_geometric.nn`` with a function ``load`` that fills it. It takes ``x`` and ``edge_index``,
    of a typed graph dictionaries of them by type and relation, then what its layers read of edges. Over all edges of a
    graph it gives the logits of :func:`partita.predict`. Where features were scaled or made of categories at ingest,
    ``features.json`` says how: the model takes them as they are in the store. PyG itself is not needed to write the
    files.

    Args:
        run: the run folder.
        out: a directory, which is made; its parent must be there.
        overwrite: replace files of these names that are there already.
        trust: ``"imports"``: the run may name code to import.

    Raises:
        RunError: there is no run, or no checkpoint yet.
        ConfigError: there are such files, or the model has no equal in plain PyG: a layer, a normalization or an
            activation of one's own, or one that is evaluated on random walks.
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
    if evaluation_sampler(config) is not None:
        raise ConfigError(
            f"the model is evaluated on neighbors that the sampler '{config.sampler}' finds, which PyG's convolutions "
            "are not given",
            where=str(run),
            fix="Use partita predict, or train with the sampler node",
        )
    if learns_rows(record):
        raise ConfigError(
            "the model reads rows that it has learnt of each node of its store, which plain PyG is not given",
            where=str(run),
            fix="Use partita predict; the rows are in learnt.safetensors of the checkpoint",
        )
    model = model_from(described)
    if model.encoder is not None and model.encoder.ages is not None:
        raise ConfigError(
            "the model reads how old rows are at the time of each seed, which plain PyG is not given",
            where=str(run),
            fix="Use partita predict, or train with time_encoding none",
        )
    if not isinstance(config.target_scaling, str):
        model.scale_output(*config.target_scaling)
    model = model.to(DTYPES[config.precision])
    checkpoint = best_checkpoint(folder)
    load_model(checkpoint, model)
    trained = Trained.of(with_kept(folder, record))
    code = ModelCode(model, config, trained, str(run)).text()
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
    if model.encoder is not None:
        found |= {f"encoder.{name}": value for name, value in model.encoder.lins.state_dict().items()}
    for place, stage in enumerate(model.stages):
        layer, norm = stage.layer, stage.norm
        assert isinstance(layer, Layer)
        for kind, state in (("convs", layer.pyg_state()), ("norms", norm.state_dict())):  # type: ignore[union-attr, operator]
            found |= {f"{kind}.{place}.{name}": value for name, value in state.items()}
    return {name: value.detach().cpu().contiguous() for name, value in found.items()}
