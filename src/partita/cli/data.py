"""``ingest``, ``generate``, ``inspect``, ``verify``, ``export``."""

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

_INGEST_HELP = """Turn edges, and tables of features, labels and splits, into a graph store.

SOURCE is a CSV, TSV or blank-separated text (SNAP's too), a Parquet file or a directory, an .npz file (SciPy's
sparse matrices too), a directory as OGB has them, or a name such as ogbn-arxiv, which is fetched.

Tables are joined to the edges by node id. Text may be gzipped.

Examples:

    partita ingest edges.csv graph --nodes nodes.csv --label-column topic

    partita ingest links.txt.gz graph --undirected --features x.npy --labels y.csv

    partita ingest edges.parquet graph --source-column from --target-column to

    partita ingest cora.npz graph

    partita ingest ogbn-arxiv arxiv --undirected
"""
_INSPECT_HELP = """Show what a graph store holds.

Examples:

    partita inspect graph

    partita inspect graph --json
"""
_VERIFY_HELP = """Check every checksum and every index of a graph store.

Example:

    partita verify graph
"""
_EXPORT_HELP = """Write the graph of a store into an .npz file, with PyG's names for the arrays.

Nodes are in the order of their ingest, however the store is partitioned.

Example:

    partita export graph --out graph.npz
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

_EDGES, _NODES, _REST = "Edges", "Nodes", "Store"


def parse_column(text: str | None) -> str | int | None:
    """A column by its name, or by its position where the text is a number."""
    return int(text) if text is not None and text.isdecimal() else text


def _columns(text: str | None) -> list[str | int] | None:
    return None if text is None else [int(part) if part.isdecimal() else part for part in text.split(",")]


def ingest(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Where the edges are.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to make.")],
    *,
    format: Annotated[str, typer.Option(help="auto, csv, tsv, snap, parquet or npz.", rich_help_panel=_EDGES)] = "auto",
    delimiter: Annotated[
        str | None, typer.Option(help="One character, tab, or space; else found out.", rich_help_panel=_EDGES)
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether columns are named; else found out.", rich_help_panel=_EDGES),
    ] = None,
    source_column: Annotated[
        str | None, typer.Option(help="Name or position (from 0) of the sources.", rich_help_panel=_EDGES)
    ] = None,
    target_column: Annotated[
        str | None, typer.Option(help="Name or position of the targets.", rich_help_panel=_EDGES)
    ] = None,
    weight_column: Annotated[
        str | None, typer.Option(help="Name or position of the edge weights.", rich_help_panel=_EDGES)
    ] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Every edge stands for both directions.", rich_help_panel=_EDGES)
    ] = False,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Keep only the first of equal edges.", rich_help_panel=_EDGES)
    ] = False,
    self_loops: Annotated[str, typer.Option(help="keep, drop or add (one a node).", rich_help_panel=_EDGES)] = "keep",
    ids: Annotated[
        str, typer.Option(help="Node ids: auto, int, str, or index (0 to N-1).", rich_help_panel=_EDGES)
    ] = "auto",
    nodes: Annotated[
        Path | None, typer.Option(help="Table: id, features, label, split.", rich_help_panel=_NODES)
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Table: id, features; or .npy, row i is node i.", rich_help_panel=_NODES)
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Table: id, label; or .npy.", rich_help_panel=_NODES)] = None,
    splits: Annotated[
        Path | None, typer.Option(help="Table: id, train/val/test; or .npy.", rich_help_panel=_NODES)
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Name or position of the ids in these tables.", rich_help_panel=_NODES)
    ] = None,
    feature_columns: Annotated[
        str | None, typer.Option(help="Which columns are features, by commas; else all others.", rich_help_panel=_NODES)
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="The label column; several, by commas, are multi-label.", rich_help_panel=_NODES)
    ] = None,
    split_column: Annotated[
        str | None, typer.Option(help="The column of train, val, test.", rich_help_panel=_NODES)
    ] = None,
    task: Annotated[
        str, typer.Option(help="auto, classes, multilabel or regression.", rich_help_panel=_NODES)
    ] = "auto",
    feature_dtype: Annotated[str, typer.Option(help="float32 or float16.", rich_help_panel=_NODES)] = "float32",
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Accept features that are not finite.", rich_help_panel=_NODES)
    ] = False,
    split: Annotated[
        str, typer.Option(help="Fractions of a random split where the source has none.", rich_help_panel=_NODES)
    ] = "0.6,0.2,0.2",
    split_seed: Annotated[int, typer.Option(help="Seed of the random split.", rich_help_panel=_NODES)] = 0,
    split_index: Annotated[
        int | None, typer.Option(help="Which of several splits of an .npz file.", rich_help_panel=_NODES)
    ] = None,
    memory_limit: Memory = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Ingest."""
    from partita.sources.ingest import ingest as ingest_files

    with shown(quiet=json):
        summary = ingest_files(
            source,
            store,
            format=format,
            delimiter=delimiter,
            header=header,
            source_column=parse_column(source_column),
            target_column=parse_column(target_column),
            weight_column=parse_column(weight_column),
            undirected=undirected,
            deduplicate=dedup,
            self_loops=self_loops,
            ids=ids,
            nodes=nodes,
            features=features,
            labels=labels,
            splits=splits,
            id_column=parse_column(id_column),
            feature_columns=_columns(feature_columns),
            label_column=_columns(label_column),
            split_column=parse_column(split_column),
            task=task,
            feature_dtype=feature_dtype,
            allow_nan=allow_nan,
            split=parse_fractions(split),
            split_seed=split_seed,
            split_index=split_index,
            overwrite=overwrite,
            **parse_memory(memory_limit),
        )
    values = dict(summary)
    if not json:
        values |= {"seconds": f"{summary.seconds:.2f}", "edges_per_second": f"{summary.edges_per_second:,.0f}"}
    finish(values, "Ingested", as_json=json)


generate = typer.Typer(no_args_is_help=True, help="Generate a graph store from a formula and a seed.")


def parse_memory(limit: str | None) -> dict[str, Any]:
    """``memory_limit`` as a keyword argument, none where it was not given.

    Raises:
        ConfigError: it is no size.
    """
    from partita.core.errors import ConfigError
    from partita.core.sizes import parse_bytes

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
            **parse_memory(memory_limit),
        )
    _made(store, started, json)


@generate.command(help=_SBM_HELP)
def sbm(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to make.")],
    *,
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 20_000,
    classes: Annotated[int, typer.Option(help="Number of communities.")] = 8,
    average_degree: Annotated[float, typer.Option(help="Neighbors per node.")] = 16.0,
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
            **parse_memory(memory_limit),
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


def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A graph store.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there already.")] = False,
    json: Json = False,
) -> None:
    """Export."""
    from partita.graph.export import export as export_store

    with shown(quiet=json):
        path = export_store(store, out, overwrite=overwrite)
    finish({"file": str(path), "bytes": path.stat().st_size}, "Exported", as_json=json)


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
    app.command(help=_INGEST_HELP)(ingest)
    app.add_typer(generate, name="generate")
    app.command(help=_INSPECT_HELP)(inspect)
    app.command(help=_VERIFY_HELP)(verify)
    app.command(help=_EXPORT_HELP)(export)
