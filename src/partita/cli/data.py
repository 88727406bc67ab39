"""``ingest``, ``generate``, ``inspect``, ``verify``, ``export``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import Json, Trust, given, record_options, with_options
from partita.cli.shell import finish, shown, tell
from partita.graph.options import RmatOptions, SbmOptions, ShapeOptions, TypedOptions
from partita.sources.options import IngestOptions
from partita.sources.shop.options import ShopOptions

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The store to create.")]

_INGEST_HELP = """Turn edges, and tables of features, labels and splits, into a graph store.

SOURCE is a CSV, TSV or blank-separated text (SNAP's too), a Parquet file or a directory, an .npz file (SciPy's
sparse matrices too), a directory as OGB, GraphBolt (metadata.yaml) or DistDGL (metadata.json) have them, or a name
such as ogbn-arxiv, which is fetched. A YAML file describes the tables of a typed graph. Triples (head, relation, tail),
or a directory with train.txt, valid.txt and test.txt of them, are a typed graph, too. So is a database of SQLite or
DuckDB, or a folder of Parquet files with keys: rows of its tables are nodes.

Tables are joined to the edges by node id. Text may be gzipped.

Examples:

    partita ingest edges.csv graph --nodes nodes.csv --label-column topic

    partita ingest links.txt.gz graph --undirected --features x.npy --labels y.csv

    partita ingest edges.parquet graph --source-column from --target-column to

    partita ingest cora.npz graph

    partita ingest shop.db graph --tables customers,orders,churn --label-column churn.churned

    partita ingest train.tsv graph --val-edges valid.tsv --test-edges test.tsv

    partita ingest ogbn-arxiv arxiv --undirected
"""
_INSPECT_HELP = """Show what a graph store holds, or what came of a run.

Of a store: degrees, components, homophily, labels by split, missing and constant features, and warnings, for instance
about test nodes with the features of training nodes. Of a run: its metrics, and where it stopped.

Examples:

    partita inspect graph

    partita inspect graph --quick

    partita inspect run --json
"""
_VERIFY_HELP = """Check every checksum and every index of a graph store, or all files of a run, or one checkpoint.

--repair does what loses nothing sound. Of a store, damaged columns that follow from others are made anew. Of a run,
damaged checkpoints and lines are set aside, not deleted, and it goes on from the newest sound checkpoint. What killed
commands have left is removed.

Examples:

    partita verify graph

    partita verify run

    partita verify run --repair
"""
_EXPORT_HELP = """Write the graph of a store as an .npz file, or the model of a run as a plain PyG model.

A graph has PyG's names for the arrays, and its nodes are in the order of their ingest, however the store is
partitioned. A model is a directory: the weights, and a Python file that loads them into PyG's convolutions.

Examples:

    partita export graph --out graph.npz

    partita export run --out model
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

_TYPED_HELP = """Generate a typed graph of papers, authors, institutes and fields of study, with classes of papers.

Examples:

    partita generate typed graph --scale 0.1

    partita generate typed graph --shape small --feature-dtype float16
"""

_SHOP_HELP = """Generate the database of a shop with two tasks: who stays away, and what is bought next.

OUT is a SQLite database (shop.db), a DuckDB database (shop.duckdb), or a folder of Parquet files.
What customers do follows rules that no column tells, but other customers do: how good products are,
and who has which taste. 20,000 customers, 1,500 products and 720 days give 1.7 million rows.

Examples:

    partita generate shop shop.db

    partita generate shop shop.duckdb --customers 20000 --products 1500 --days 720
"""

_PRODUCTS_HELP = """Generate communities of the size of ogbn-products: 2.4 million nodes, 61.9 million edges.

Its edges and features are made up; the public graph itself is fetched by: partita ingest ogbn-products.

Examples:

    partita generate products graph --scale 0.1
"""
_PAPERS_HELP = """Generate communities of the size of ogbn-papers100M: 111 million nodes, 1.6 billion edges.

Its edges and features are made up; the public graph itself is fetched by: partita ingest ogbn-papers100M.

Examples:

    partita generate papers100m graph --scale 0.01 --feature-dtype float16
"""

_GENERATE_FLAGS = {
    "num_customers": "--customers",
    "num_products": "--products",
    "num_nodes": "--nodes",
    "num_features": "--features",
    "num_classes": "--classes",
    "deduplicate": "--dedup",
    "dtype": "--feature-dtype",
}

_OF_TYPES = ("node_types", "relations", "type_features")
"""Of a summary: what a typed graph has besides."""

_Lines = Callable[[Path], list[str]]

generate = typer.Typer(no_args_is_help=True, help="Generate a synthetic graph store, or a database.")


def ingest(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="File, directory or dataset name.")],
    store: Store,
    *,
    json: Json = False,
    **options: Any,
) -> None:
    """Ingest."""
    from partita.sources.ingest import ingest as ingest_files

    with shown(quiet=json):
        summary = ingest_files(source, store, **given(IngestOptions, options))
    values = dict(summary)
    if not json:
        values |= {"seconds": f"{summary.seconds:.2f}", "edges_per_second": f"{summary.edges_per_second:,.0f}"}
    _created(values, as_json=json)


def rmat(store: Store, *, json: Json = False, **options: Any) -> None:
    """Generate R-MAT."""
    from partita.graph.generate import generate_rmat

    _generate(generate_rmat, store, given(RmatOptions, options, _GENERATE_FLAGS), json)


def sbm(store: Store, *, json: Json = False, **options: Any) -> None:
    """Generate communities."""
    from partita.graph.generate import generate_sbm

    _generate(generate_sbm, store, given(SbmOptions, options, _GENERATE_FLAGS), json)


def typed(store: Store, *, json: Json = False, **options: Any) -> None:
    """Generate a typed graph."""
    from partita.graph.generate_typed import generate_typed

    _generate(generate_typed, store, given(TypedOptions, options, _GENERATE_FLAGS), json)


def products(store: Store, *, json: Json = False, **options: Any) -> None:
    """Generate a graph of the size of ogbn-products."""
    from partita.graph.generate_shapes import generate_products

    _generate(generate_products, store, given(ShapeOptions, options, _GENERATE_FLAGS), json)


def papers100m(store: Store, *, json: Json = False, **options: Any) -> None:
    """Generate a graph of the size of ogbn-papers100M."""
    from partita.graph.generate_shapes import generate_papers100m

    _generate(generate_papers100m, store, given(ShapeOptions, options, _GENERATE_FLAGS), json)


def shop(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The database to create: .db, .duckdb, or a folder.")],
    *,
    json: Json = False,
    **options: Any,
) -> None:
    """Generate a shop."""
    from partita.sources.shop.generate import generate_shop

    started = time.perf_counter()
    with shown(quiet=json):
        made = generate_shop(out, **given(ShopOptions, options, _GENERATE_FLAGS))
    splits = list(made.split_times) if json else f"--split-times {','.join(made.split_times)}"
    rows = {"rows": made.rows} if json else {f"rows of {name}": count for name, count in made.rows.items()}
    finish(
        {"path": str(made.path), **rows, "split_times": splits, "seconds": round(time.perf_counter() - started, 2)},
        "Shop created",
        as_json=json,
    )


def _generate(make: Callable[..., Path], store: Path, options: dict[str, Any], as_json: bool) -> None:
    from partita.graph.store import GraphStore

    started = time.perf_counter()
    with shown(quiet=as_json):
        make(store, **options)
    summary = GraphStore.open(store).summary()
    shown_keys = ["path", "nodes", "edges", "features", "task", "classes", "splits", "source", "split_rule"]
    shown_keys += [name for name in _OF_TYPES if name in summary]
    result = {name: summary[name] for name in shown_keys} | {"seconds": round(time.perf_counter() - started, 2)}
    _created(result, as_json=as_json)


def _created(values: dict[str, Any], *, as_json: bool) -> None:
    """Print what a new store holds; the types of a typed graph as tables of their own."""
    from partita.cli.shell import print_table
    from partita.report.terminal import type_tables

    of_types = {name: values[name] for name in _OF_TYPES} if values.get("node_types") else {}
    if not as_json:
        values = {name: value for name, value in values.items() if name not in _OF_TYPES}
        if of_types:
            del values["features"]  # those of every type are in the table
    finish(values, "Graph store created", as_json=as_json)
    if not as_json and of_types:
        for table in type_tables(of_types, None):
            print_table(table)


def inspect(
    path: Annotated[Path, typer.Argument(metavar="STORE|RUN", help="A graph store or a run folder.")],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Metadata only: do not read edges, labels, features.")] = False,
    json: Json = False,
) -> None:
    """Inspect."""
    from partita.cli.shell import print_table
    from partita.report.inspected import run_rows, run_summary, store_rows
    from partita.report.records import of_files, read_run
    from partita.report.terminal import pairs_table, type_tables

    if (path / "run.json").is_file():
        with of_files([path]):
            run = read_run(path)
            if json:
                finish(run_summary(run), str(path), as_json=True)
            else:
                print_table(pairs_table(str(path), run_rows(run)))
        return
    from partita.graph.profile import inspect as inspect_store
    from partita.graph.store import GraphStore

    store = GraphStore.open(path)
    found: dict[str, Any] | None = None
    if not quick and store.shard is None:
        with shown(quiet=json):
            found = inspect_store(store)
    summary = store.summary()
    if json:
        finish({**summary, **({} if found is None else {"profile": found})}, str(path), as_json=True)
        return
    print_table(pairs_table(str(path), store_rows(summary, found)))
    for table in type_tables(summary, found):
        print_table(table)
    for warning in (found or {}).get("warnings", []):
        tell(f"Warning: {warning}")


def export(
    source: Annotated[Path, typer.Argument(metavar="STORE|RUN", help="A graph store or a run folder.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write; for a run, the directory of the model.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    trust: Trust = None,
    json: Json = False,
) -> None:
    """Export."""
    from partita.runs.folder import RunFolder

    if RunFolder(source).record.is_file():
        from partita.runs.export_model import export_model

        with shown(quiet=json):
            exported = export_model(source, out, overwrite=overwrite, trust=trust)
        finish(exported.to_json(), "Exported", as_json=json)
        return
    from partita.graph.export import export as export_store

    with shown(quiet=json):
        path = export_store(source, out, overwrite=overwrite)
    finish({"file": str(path), "bytes": path.stat().st_size}, "Exported", as_json=json)


def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A graph store, a run folder, or a checkpoint of one.")],
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Save what can be saved, and say what was done.")] = False,
    json: Json = False,
) -> None:
    """Verify."""
    what, check, mend = _verifying(path)
    with shown(quiet=json):
        done = mend(path) if repair else []
        checks = check(path)
    found = {what: str(path), **({"repaired": done} if repair else {}), "sound": True, "checks": checks}
    finish(found, str(path), as_json=json)


def _verifying(path: Path) -> tuple[str, _Lines, _Lines]:
    """What is at a path, what checks it, and what repairs it."""
    from partita.runs.verify import is_checkpoint, is_run, repair_checkpoint, repair_run, verify_checkpoint, verify_run

    if is_run(path):
        return "run", verify_run, repair_run
    if is_checkpoint(path):
        return "checkpoint", verify_checkpoint, repair_checkpoint
    from partita.graph.verify import verify as verify_store
    from partita.sample.repair import repair as repair_store

    return "store", verify_store, repair_store


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    panels = {"format": "Edges", "nodes": "Nodes", "memory_limit": None}
    ingest_options = record_options(
        IngestOptions, panels=panels, flags={"deduplicate": "--dedup"}, without=("comment",)
    )  # fmt: skip
    app.command(help=_INGEST_HELP)(with_options(ingest, ingest_options))
    for verb, record, text in (
        (rmat, RmatOptions, _RMAT_HELP), (sbm, SbmOptions, _SBM_HELP), (typed, TypedOptions, _TYPED_HELP),
        (products, ShapeOptions, _PRODUCTS_HELP), (papers100m, ShapeOptions, _PAPERS_HELP),
        (shop, ShopOptions, _SHOP_HELP),
    ):  # fmt: skip
        options = record_options(record, flags=_GENERATE_FLAGS, without=("a", "b", "c"))
        generate.command(help=text)(with_options(verb, options))
    app.add_typer(generate, name="generate")
    app.command(help=_INSPECT_HELP)(inspect)
    app.command(help=_VERIFY_HELP)(verify)
    app.command(help=_EXPORT_HELP)(export)
