"""Command-line options made from records of options and from the configuration, so that none is written down twice."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from partita.cli.help import HELP_ALL, help_all
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.options import OLD_NAMES, OptionField, Options, fields_of

Trust = Annotated[
    str | None,
    typer.Option(
        "--trust",
        metavar="WORD",
        help="Let files name code of yours: imports.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]

# The first setting of each group in the help; a group reaches to the next one.
_GROUPS = {
    "decoder": "Links",
    "model": "Model",
    "sampler": "Sampling",
    "preset": "Workers",
    "views": "Isolated training",
    "batch_size": "Optimization",
    "seed": "Run",
    "embed": "Learnt rows",
}
_ORDER = ("Model", "Optimization", "Sampling", "Links", "Learnt rows", "Run", "Workers", "Isolated training")
_RARE = {
    "attn_dropout", "input_dropout", "activation", "momentum", "warmup", "layer_budget", "batch_dependency",
    "layer_dependency", "walks", "walk_length", "walk_restart", "metapath", "options", "replace", "matmul", "prefetch",
    "trace", "memory_limit", "checkpoint_minutes", "heartbeat", "checkpoint_steps", "copy_checkpoints",
    "keep_checkpoints", "relative_paths", "lr_step", "lr_decay", "lr_patience",
    "replan", "allow", "seed_split", "deal_parts", "topology", "cache", "cache_policy", "cache_layout",
    "look_ahead",
    "topology_cache", "corrupt", "exclude_targets", "message_share", "known_negatives", "loop_negatives", "reciprocal",
    "margin", "temperature", "penalty", "eval_negatives", "held_out", "embed_init", "embed_memory",
}  # fmt: skip
"""Settings that only ``--help-all`` shows, with all those of isolated training."""
_RARE_GROUP = "Isolated training"


def config_options() -> list[inspect.Parameter]:
    """One keyword parameter per field of :class:`partita.Config`, ``None`` where not given, in the order of the help.

    Old names are hidden, and so is what few need, until ``--help-all`` shows it.
    """
    found: dict[str, list[inspect.Parameter]] = {group: [] for group in _ORDER}
    group = ""
    for name, field in Config.model_fields.items():
        group = _GROUPS.get(name, group)
        kind, choices = _setting_type(field)
        text = field.description or ""
        if choices:
            text += f" One of: {', '.join(choices)}."
        flag = "--option" if name == "options" else _flag(name)
        flags = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
        default = field.default
        if default not in (None, (), "") and not isinstance(default, bool) and field.default_factory is None:
            text += f" Default: {_shown(default)}."
        hidden = name in _RARE or group == _RARE_GROUP
        option = typer.Option(flags, help=text, rich_help_panel=group, show_default=False, hidden=hidden)
        found[group].append(_keyword(name, Annotated[kind | None, option], None))
    parameters = [parameter for group in _ORDER for parameter in found[group]]
    everything = typer.Option("--help-all", is_eager=True, callback=help_all, help="Show all options and exit.")
    parameters.append(_keyword(HELP_ALL, Annotated[bool, everything], False))
    for old in OLD_NAMES:
        option = typer.Option(_flag(old), hidden=True)
        parameters.append(_keyword(old, Annotated[str | None, option], None))
    return parameters


def record_options(
    record: type[Options],
    *,
    panels: Mapping[str, str | None] | None = None,
    flags: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    demanding: bool = True,
) -> list[inspect.Parameter]:
    """One keyword parameter per field of a record; its default is the record's, as the command line takes it.

    Args:
        record: whose fields they are.
        panels: the panels of the help by their first fields; ``None``: the one of all other options.
        flags: those of fields that are called otherwise on the command line.
        without: fields that are no options there.
        demanding: options without a default must be given.
    """
    parameters: list[inspect.Parameter] = []
    panel: str | None = None
    for name, field in fields_of(record).items():
        panel = (panels or {}).get(name, panel)
        if name in without:
            continue
        flag = (flags or {}).get(name, _flag(name))
        if field.type == bool | None:
            flag = f"{flag}/--no-{flag[2:]}"
        default = field.default
        if field.required:
            default = inspect.Parameter.empty if demanding else None
        elif isinstance(default, tuple):
            default = ",".join(map(str, default))
        elif field.read is not None and default is not None:
            default = str(default)
        elif "default" in field.text.lower():  # says so in words, and whether it was given counts
            default = None
        kind = _option_type(field)
        option = typer.Option(flag, help=field.text, rich_help_panel=panel)
        parameters.append(_keyword(name, Annotated[kind | None if default is None else kind, option], default))
    return parameters


def given(record: type[Options], options: Mapping[str, Any], flags: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The values of those options of a record that were given on the command line.

    Raises:
        ConfigError: a text cannot be read as a value, or a number is out of range.
    """
    values = {}
    for name, field in fields_of(record).items():
        value = options.get(name)
        if value is None:
            continue
        try:
            values[name] = value if field.read is None else field.read(value)
        except ValueError as error:
            raise ConfigError(str(error), where=(flags or {}).get(name, _flag(name))) from None
        if field.range is not None:
            field.range.require(values[name], (flags or {}).get(name, _flag(name)), field.text)
    return values


def with_options(function: Callable[..., Any], extra: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give a command whose last parameter takes all other keywords the parameters of ``extra`` instead."""
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    first = [p for p in own if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    parameters = [*first, *extra, *own[len(first) :]]
    parameters.sort(key=lambda parameter: parameter.name == HELP_ALL)  # --help-all beside --help

    @wraps(function)
    def command(**values: Any) -> None:
        values.pop(HELP_ALL, None)
        for old, name in OLD_NAMES.items():
            if (value := values.pop(old, None)) is None:
                continue
            if values.get(name) is not None:
                raise ConfigError(f"{_flag(name)} and {_flag(old)} mean the same setting", fix="Give one of them")
            sys.stderr.write(f"partita: {_flag(old)} is now {_flag(name)}\n")
            values[name] = value
        function(**values)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def _shown(default: object) -> str:
    return f"{default:.3g}" if isinstance(default, float) else str(default)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _setting_type(field: FieldInfo) -> tuple[type, tuple[str, ...]]:
    """The type that the command line takes for a field, and its choices. Lists and sizes are texts there."""
    annotation: Any = field.annotation
    if typing.get_origin(annotation) is dict:
        return list[str], ()
    read_by_the_field = any(isinstance(rule, BeforeValidator) for rule in field.metadata)
    if read_by_the_field or isinstance(annotation, types.UnionType):
        return str, ()
    if typing.get_origin(annotation) is Literal:
        return str, typing.get_args(annotation)
    return (annotation, ()) if annotation in (int, float, bool, str) else (str, ())


def _option_type(field: OptionField) -> Any:
    """The type that the command line takes for an option. What is read from a text is one there."""
    kind, *others = field.kinds
    if field.read is not None:
        return list[str] if typing.get_origin(kind) is Mapping else str
    if others:  # a path, as text or as an object
        return Path
    return kind if kind in (int, float, bool) else str
