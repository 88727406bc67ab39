"""``ingest``, ``generate``, ``inspect``, ``verify``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.shell import finish, shown

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
Memory = Annotated[str | None, typer.Option("--memory-limit", help="Private memory for sorting, for instance 2GiB.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there already.")]
Fractions = Annotated[str, typer.Option(help="Fractions of training, validation and test nodes.")]

_INSPECT_HELP = """Show what a graph store holds.

Examples:

    partita inspect graph

    partita inspect graph --json
"""
_VERIFY_HELP = """Check every checksum and every index of a graph store.

Example:

    partita verify graph
"""
_RMAT_HELP = """Generate an R-MAT graph with the Graph500 parameters.

Examples:

    partita generate rmat graph --scale 20

    partita generate rmat graph --scale 16 --features 128 --classes 16 --undirected
"""
_SBM_HELP = """Generate planted communities with power-law degrees and noisy features.

Examples:

    partita generate sbm graph --nodes 100000

    partita generate sbm graph --nodes 1000000 --classes 32 --average-degree 30 --features 128
"""

generate = typer.Typer(no_args_is_help=True, help="Generate a graph store from a formula and a seed.")


def _memory(limit: str | None) -> dict[str, Any]:
    from partita.config import parse_bytes
    from partita.core.errors import ConfigError

    if limit is None:
        return {}
    try:
        return {"memory_limit": parse_bytes(limit)}
    except ValueError as error:
        raise ConfigError(str(error), where="--memory-limit") from None


def parse_fractions(text: str) -> tuple[float, ...]:
    """``"0.6,0.2,0.2"`` as numbers.

    Raises:
        ConfigError: it is no list of numbers.
    """
    from partita.core.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"'{text}' is not a list of fractions", where="--split", fix="Write for instance 0.6,0.2,0.2"
        ) from None


@generate.command(help=_RMAT_HELP)
def rmat(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to make.")],
    *,
    scale: Annotated[int, typer.Option(help="2^scale nodes.")] = 16,
    edge_factor: Annotated[int, typer.Option(help="Edges per node.")] = 16,
    features: Annotated[int, typer.Option(help="Feature columns.")] = 0,
    classes: Annotated[int, typer.Option(help="Classes; 0 for no labels.")] = 0,
    undirected: Annotated[bool, typer.Option("--undirected", help="Store every edge in both directions.")] = False,
    dedup: Annotated[bool, typer.Option("--dedup", help="Keep only the first of equal edges.")] = False,
    seed: Annotated[int, typer.Option(help="Everything is a function of this.")] = 0,
    feature_dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    split: Fractions = "0.6,0.2,0.2",
    memory_limit: Memory = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Generate R-MAT."""
    from partita.graph.generate import generate_rmat

    started = time.perf_counter()
    with shown(quiet=json):
        generate_rmat(
            store,
            scale=scale,
            edge_factor=edge_factor,
            num_features=features,
            num_classes=classes,
            undirected=undirected,
            deduplicate=dedup,
            seed=seed,
            dtype=_dtype(feature_dtype),
            split=parse_fractions(split),
            overwrite=overwrite,
            **_memory(memory_limit),
        )
    _made(store, started, json)


@generate.command(help=_SBM_HELP)
def sbm(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to make.")],
    *,
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 20_000,
    classes: Annotated[int, typer.Option(help="Number of communities.")] = 8,
    average_degree: Annotated[float, typer.Option(help="Neighbours per node.")] = 16.0,
    homophily: Annotated[float, typer.Option(help="Fraction of edges inside a community.")] = 0.8,
    power_law: Annotated[float, typer.Option(help="Exponent of the degrees, above 2.")] = 2.5,
    features: Annotated[int, typer.Option(help="Feature columns.")] = 64,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise on a feature.")] = 0.65,
    seed: Annotated[int, typer.Option(help="Everything is a function of this.")] = 0,
    feature_dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    split: Fractions = "0.6,0.2,0.2",
    memory_limit: Memory = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Generate communities."""
    from partita.graph.generate import generate_sbm

    started = time.perf_counter()
    with shown(quiet=json):
        generate_sbm(
            store,
            num_nodes=nodes,
            num_classes=classes,
            average_degree=average_degree,
            homophily=homophily,
            power_law=power_law,
            num_features=features,
            noise=noise,
            seed=seed,
            dtype=_dtype(feature_dtype),
            split=parse_fractions(split),
            overwrite=overwrite,
            **_memory(memory_limit),
        )
    _made(store, started, json)


def inspect(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A graph store.")], *, json: Json = False
) -> None:
    """Inspect."""
    from partita.graph.store import GraphStore
    from partita.report.terminal import format_bytes

    summary = GraphStore.open(store).summary()
    if not json:
        sizes = summary.pop("bytes")
        summary["columns"] = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    finish(summary, str(store), as_json=json)


def verify(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A graph store.")], *, json: Json = False
) -> None:
    """Verify."""
    from partita.graph.verify import verify as verify_store

    with shown(quiet=json):
        checks = verify_store(store)
    finish({"store": str(store), "sound": True, "checks": checks}, str(store), as_json=json)


def _dtype(name: str) -> str:
    from partita.core.errors import ConfigError

    if name not in ("float32", "float16"):
        raise ConfigError(f"features cannot be '{name}'", where="--feature-dtype", fix="Use float32 or float16")
    return name


def _made(store: Path, started: float, as_json: bool) -> None:
    from partita.graph.store import GraphStore

    summary = GraphStore.open(store).summary()
    shown_keys = ("path", "nodes", "edges", "features", "task", "classes", "splits", "source", "split_rule")
    result = {name: summary[name] for name in shown_keys} | {"seconds": round(time.perf_counter() - started, 2)}
    finish(result, "Made", as_json=as_json)


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    app.add_typer(generate, name="generate")
    app.command(help=_INSPECT_HELP)(inspect)
    app.command(help=_VERIFY_HELP)(verify)
