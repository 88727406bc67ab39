"""Command-line options made from the fields of a configuration, so that no setting is written down twice."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from partita.config import Config

# The first setting of each group in the help; a group reaches to the next one.
_GROUPS = {
    "model": "Model",
    "sampler": "Sampling",
    "preset": "Workers",
    "views": "Isolated training",
    "batch_size": "Optimization",
    "seed": "Run",
}


def config_options() -> list[inspect.Parameter]:
    """One keyword parameter per field of :class:`partita.Config`, ``None`` where not given."""
    parameters, group = [], ""
    for name, field in Config.model_fields.items():
        group = _GROUPS.get(name, group)
        kind, choices = _option_type(field)
        flag = "--option" if kind == list[str] else "--" + name.replace("_", "-")
        text = field.description or ""
        if choices:
            text += f" One of: {', '.join(choices)}."
        default = field.default
        shown = str(default) if default not in (None, (), "") and not isinstance(default, bool) else False
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
            help=text,
            rich_help_panel=group,
            show_default=shown,
        )
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
            )
        )
    return parameters


def with_options(function: Callable[..., Any], extra: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give a command whose last parameter is ``**settings`` the parameters of ``extra`` instead."""
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = own + extra
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return function


def _option_type(field: FieldInfo) -> tuple[type, tuple[str, ...]]:
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
