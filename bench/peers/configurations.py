"""What is compared: the default configuration, and others that differ from it in a few settings."""

from __future__ import annotations

from typing import Any

Configuration = dict[str, Any]

DEFAULT: Configuration = {
    "model": "sage", "heads": 1, "features": 128, "hidden": 256, "fanout": [15, 10, 5], "batch_size": 1024,
    "precision": "float32",
}  # fmt: skip
CHANGES: tuple[Configuration, ...] = (
    {"model": "gcn"},
    {"model": "gat", "heads": 4},
    {"features": 16},
    {"features": 602},
    {"hidden": 16},
    {"hidden": 512},
    {"fanout": [25, 10]},
    {"fanout": [10, 10, 10, 10]},
    {"precision": "bf16"},
)
STAGES = ("sample", "gather", "aggregate", "dense", "epoch", "inference")
ROW_BYTES = (64, 256, 512, 2408)


def name_of(changes: Configuration) -> str:
    """For instance ``model=gat heads=4``; the default configuration is called ``default``."""
    parts = (
        f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}" for key, value in changes.items()
    )
    return " ".join(parts) or "default"


def known() -> dict[str, Configuration]:
    """All listed configurations by name."""
    return {name_of(changes): {**DEFAULT, **changes} for changes in ({}, *CHANGES)}


def parse(given: str) -> dict[str, Configuration]:
    """A configuration by its name, ``all``, or one's own settings such as ``hidden=64 fanout=5,5``.

    Raises:
        ValueError: a setting is not known, or not a number where it should be.
    """
    if given == "all":
        return known()
    if given == "default":
        return {given: dict(DEFAULT)}
    changes: Configuration = {}
    for part in given.split():
        key, _, value = part.partition("=")
        if key not in DEFAULT or not value:
            raise ValueError(f"'{part}' is no setting; write for instance hidden=64 (settings: {', '.join(DEFAULT)})")
        default = DEFAULT[key]
        if isinstance(default, list):
            changes[key] = [int(each) for each in value.split(",")]
        else:
            changes[key] = type(default)(value)
    return {name_of(changes): {**DEFAULT, **changes}}


def cases(
    stage: str, configuration: Configuration, rows: list[tuple[int, int, int]], classes: int
) -> list[Configuration]:
    """What is measured in a stage, each with its name under ``case``.

    Args:
        stage: one of :data:`STAGES`.
        configuration: of the model.
        rows: destinations, sources and edges of every layer of a batch, layer 1 first.
        classes: of the labels.
    """
    if stage == "gather":
        return [
            {"case": f"rows of {size} bytes, {into} output", "row_bytes": size, "into": into}
            for size in ROW_BYTES
            for into in ("new", "reused")
        ]
    if stage not in ("aggregate", "dense"):
        return [{"case": ""}]
    found, layers = [], len(rows)
    for layer, (dst, _, edges) in enumerate(rows, start=1):
        below = configuration["features"] if layer == 1 else configuration["hidden"]
        above = classes if layer == layers else configuration["hidden"]
        if stage == "aggregate":
            what = "forward" if layer == 1 else "forward and backward"
            name = f"layer {layer}: {dst:,} rows, {edges:,} edges x {below}, {what}"
            found.append({"case": name, "layer": layer, "width": below, "backward": layer > 1})
        else:
            name = f"layer {layer}: {dst:,} x {below} -> {above}"
            found.append({"case": name, "shape": [dst, below, above], "input_gradient": layer > 1})
    return found
