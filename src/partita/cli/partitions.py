"""``presample``, ``partition``, ``shard``, ``quality``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.data import Json, Memory, Overwrite, parse_column, parse_memory
from partita.cli.shell import finish, print_table, show, shown

_PRESAMPLE_HELP = """Sample mini-batches as training would, and keep in the store how often each node and edge was met.

partition --weights presample then cuts what mini-batches use.

Example:

    partita presample graph --fanout 15,10,5 --epochs 10
"""
_PARTITION_HELP = """Divide a graph's nodes among parts, and write a store in which every part owns one range of ids.

SOURCE is a graph store. OUT is the new store, or a .npy, .csv or .parquet file that receives the assignment only.

A file of edges between nodes numbered from 0 can be a SOURCE too, if OUT is such a file.

Algorithms, all streaming in O(nodes) memory but the last: spring+ (the best cut; METIS on a shrunken graph within the
memory limit, refined), spring (SDT-GNN), two_phase (2PS-L), hdrf, greedy (PowerGraph), dbh, random; metis (in memory).
Or your own: package.module:Name, or a file with a part for every node.

Examples:

    partita partition graph graph4 --parts 4

    partita partition graph graph8 --parts 2x4 --weights presample

    partita partition graph graph16 --parts 16 --algorithm spring --dry-run

    partita partition graph graphs --parts auto --memory-per-worker 4GiB --workers 2

    partita partition edges.csv parts.npy --parts 4 --algorithm spring --undirected

    partita partition graph graph4 --parts 4 --algorithm parts.csv --refine 10
"""
_SHARD_HELP = """Write what one host needs of a partitioned graph: a store with the rows of its own nodes only.

The store's parts are dealt to the hosts in order, as partition --parts HOSTSxWORKERS makes them.

Features are cut; edges too, unless the topology is replicated. The rest is whole in any shard.

Examples:

    partita shard graph8 shard0 --host 0 --hosts 2

    partita shard graph8 shard0 --host 0 --hosts 2 --topology replicated --hot 8GiB
"""
_QUALITY_HELP = """Measure the partition of a store, or of an assignment file for it.

Examples:

    partita quality graph4

    partita quality graph --assignment parts.csv --parts 4 --json
"""
_SOURCE = "Files of edges"
_AUTO = "With --parts auto: as many parts as make each fit a worker"


def _option(text: str) -> tuple[str, float]:
    from partita.core.errors import ConfigError

    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"'{text}' is no option", where="--option", fix="Write for instance cap=0.1") from None


def _budget(parts: str, **given: Any) -> dict[str, Any] | None:
    """What --parts auto is to go by, as far as it was given; ``None`` for a given number of parts."""
    from partita.core.errors import ConfigError

    given = {name: value for name, value in given.items() if value is not None}
    if parts != "auto":
        for name in given:
            raise ConfigError(
                f"it decides the number of parts, and {parts} are asked for",
                where=f"--{name.replace('_', '-')}",
                fix="Leave it out, or write --parts auto",
            )
        return None
    if "memory_per_worker" not in given:
        raise ConfigError(
            "auto needs to know a worker's memory", where="--parts", fix="Add for instance --memory-per-worker 4GiB"
        )
    return given


def presample(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The graph store, which gets two more columns.")],
    *,
    fanout: Annotated[
        str, typer.Option(help="Neighbors per layer; the first entry is the hop next to the seeds; -1: all.")
    ] = "15,10,5",
    batch_size: Annotated[int, typer.Option(help="Seeds of a mini-batch over all workers.")] = 1024,
    epochs: Annotated[int, typer.Option(help="Times over the seeds.")] = 10,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
    split: Annotated[str, typer.Option(help="Whose nodes are the seeds.")] = "train",
    replace: Annotated[bool, typer.Option("--replace", help="Draw with replacement.")] = False,
    weighted: Annotated[bool, typer.Option("--weighted", help="Draw in proportion to edge weights.")] = False,
    memory_limit: Memory = None,
    json: Json = False,
) -> None:
    """Presample."""
    from partita.core.errors import ConfigError
    from partita.sample.presample import presample as presample_store

    try:
        fanouts = [int(part) for part in fanout.split(",")]
    except ValueError:
        raise ConfigError(
            f"'{fanout}' is not a list of whole numbers", where="--fanout", fix="Write for instance 15,10,5"
        ) from None
    with shown(quiet=json):
        summary = presample_store(
            store,
            fanout=fanouts,
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            split=split,
            replace=replace,
            weighted=weighted,
            **parse_memory(memory_limit),
        )
    finish({"path": str(summary.path), **summary.to_json()}, "Presampled", as_json=json)


def partition(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A graph store, or a file of edges.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The store or assignment file to make.")],
    *,
    parts: Annotated[str, typer.Option(help="Number of parts, or hosts x workers such as 2x4; auto: see below.")],
    algorithm: Annotated[str, typer.Option(help="See above.")] = "spring+",
    weights: Annotated[
        str, typer.Option(help="What is balanced and cut: none, presample, edges, node or degree.")
    ] = "none",
    epsilon: Annotated[float, typer.Option(help="Imbalance that is allowed.")] = 0.05,
    refine: Annotated[int, typer.Option(help="At most so many passes of refinement after the algorithm.")] = 0,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="Of the algorithm, NAME=NUMBER; may be given several times.")
    ] = None,
    feature_dtype: Annotated[str | None, typer.Option(help="float16 or float32 for the new store's features.")] = None,
    memory_limit: Memory = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it takes, then measure the partition; write nothing.")
    ] = False,
    source_column: Annotated[
        str | None, typer.Option(help="Name or position (from 0) of the sources.", rich_help_panel=_SOURCE)
    ] = None,
    target_column: Annotated[
        str | None, typer.Option(help="Name or position of the targets.", rich_help_panel=_SOURCE)
    ] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Every line stands for both directions.", rich_help_panel=_SOURCE)
    ] = False,
    memory_per_worker: Annotated[
        str | None, typer.Option(help="Memory of a worker, for instance 4GiB.", rich_help_panel=_AUTO)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers: the least number of parts; default 1.", rich_help_panel=_AUTO)
    ] = None,
    halo: Annotated[
        str | None,
        typer.Option(
            help="What a worker holds around a part: none, one-hop (default) or one-hop+edges.", rich_help_panel=_AUTO
        ),
    ] = None,
    compute_share: Annotated[
        float | None,
        typer.Option(
            help="Share of that memory that is left for computing; the rest is for a part. Default 2/3.",
            rich_help_panel=_AUTO,
        ),
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Partition."""
    from partita.partitioning.estimate import estimate
    from partita.partitioning.job import partition as partition_graph
    from partita.partitioning.job import prepare

    settings: dict[str, Any] = {
        "parts": parts,
        "algorithm": algorithm,
        "weights": weights,
        "seed": seed,
        "epsilon": epsilon,
        "refine": refine,
        "options": dict(_option(text) for text in option or []),
        "source_column": parse_column(source_column),
        "target_column": parse_column(target_column),
        "undirected": undirected,
        **parse_memory(memory_limit),
    }
    budget = _budget(
        parts, memory_per_worker=memory_per_worker, workers=workers, halo=halo, compute_share=compute_share
    )
    more: dict[str, Any] = {}
    plan = None
    with shown(quiet=json) as console:

        def say(sentence: str) -> None:
            if console is not None:
                console.print(sentence, highlight=False)

        if budget is not None:
            from partita.isolated.memory_parts import partition_for_memory, plan_for_memory

            budget["feature_dtype"] = feature_dtype
            if dry_run:
                plan = plan_for_memory(source, out, **budget)
                settings["parts"] = plan.parts
                say(plan.explain())
        if dry_run:
            expected = estimate(prepare(source, **settings), out, feature_dtype)
            more["expected"] = expected.to_json()
            if console is not None:
                print_table(_estimate_table(expected))
        if budget is not None and not dry_run:
            del settings["parts"]
            made = partition_for_memory(source, out, overwrite=overwrite, say=say, **budget, **settings)
            summary, plan, more = made.partition, made.plan, made.to_json()
        else:
            summary = partition_graph(
                source, None if dry_run else out, feature_dtype=None if dry_run else feature_dtype,
                overwrite=overwrite, **settings,
            )  # fmt: skip
            if plan is not None and summary.quality is not None:
                plan = plan if halo == "none" else plan.recheck(summary.quality.replication_factor)
                more["plan"] = plan.to_json()
    if json:
        finish({**summary.to_json(), **more}, "", as_json=True)
        return
    values = {
        "written": summary.path or "nothing (dry run)",
        **({} if plan is None else {"plan": plan.explain()}),
        "algorithm": summary.algorithm,
        "seconds": "  ".join(f"{name} {value:.2f}" for name, value in summary.seconds.items()),
        "peak memory": _bytes(summary.peak_memory_bytes),
        "notes": summary.notes,
    }
    finish(values, "Partitioned", as_json=False)
    if summary.quality is not None:
        _print_quality(summary.quality)


def shard(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A whole graph store, in parts.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The shard to make.")],
    *,
    host: Annotated[int, typer.Option(help="Whose shard, from 0.")],
    hosts: Annotated[int, typer.Option(help="Number of hosts; divides the number of parts.")],
    topology: Annotated[
        str, typer.Option(help="partitioned: edges into own nodes; replicated: all edges.")
    ] = "partitioned",
    hot: Annotated[
        str, typer.Option(help="Room for feature rows of other hosts' nodes besides, for instance 2GiB.")
    ] = "0",
    hot_policy: Annotated[
        str, typer.Option(help="Which of them: by in-degree, or by presample (how often presampling met them).")
    ] = "in-degree",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Shard."""
    from partita.core.errors import ConfigError
    from partita.core.sizes import parse_bytes
    from partita.partitioning.shards import shard as make_shard

    try:
        hot_bytes: Any = parse_bytes(hot)
    except ValueError as error:
        raise ConfigError(str(error), where="--hot") from None
    with shown(quiet=json):
        summary = make_shard(
            store, out, host=host, hosts=hosts, topology=topology, hot_bytes=hot_bytes, hot=hot_policy,
            overwrite=overwrite,
        )  # fmt: skip
    values = summary.to_json()
    finish(values if json else {**values, "bytes": _bytes(summary.bytes)}, "Sharded", as_json=json)


def quality(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A graph store.")],
    *,
    assignment: Annotated[
        Path | None, typer.Option(help="A file with a part for every node; else the store's own parts.")
    ] = None,
    parts: Annotated[int | None, typer.Option(help="Number of parts of the assignment.")] = None,
    json: Json = False,
) -> None:
    """Measure."""
    from partita.core.errors import ConfigError
    from partita.graph.store import GraphStore
    from partita.partitioning.assignment import read_assignment
    from partita.partitioning.quality import store_quality

    if (assignment is None) != (parts is None):
        raise ConfigError(
            "--assignment and --parts belong together", fix="Give both, or none for the store's own parts"
        )
    with shown(quiet=json):
        opened = GraphStore.open(store)
        given = None if assignment is None or parts is None else read_assignment(assignment, opened, parts)
        measured = store_quality(opened, given, parts)
    if json:
        finish({"store": str(store), **measured.to_json()}, "", as_json=True)
    else:
        _print_quality(measured)


def _print_quality(measured: Any) -> None:
    from partita.report.terminal import pairs_table, parts_table

    print_table(pairs_table("Quality", {name: show(value) for name, value in measured.rows()}))
    print_table(parts_table(measured.columns()))


def _estimate_table(expected: Any) -> Any:
    from partita.report.terminal import pairs_table

    free = "" if expected.free_disk_bytes is None else f" ({_bytes(expected.free_disk_bytes)} are free)"
    return pairs_table(
        "Expected",
        {
            "private memory": f"at most {_bytes(expected.memory_bytes)}",
            "disk": f"{_bytes(expected.disk_bytes)} for a new store{free}",
            "time": f"{expected.seconds:,.1f} s to partition, by a trial on {expected.trial_edges:,} edges",
        },
    )


def _bytes(count: int) -> str:
    from partita.report.terminal import format_bytes

    return format_bytes(count)


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    app.command(help=_PRESAMPLE_HELP)(presample)
    app.command(help=_PARTITION_HELP)(partition)
    app.command(help=_SHARD_HELP)(shard)
    app.command(help=_QUALITY_HELP)(quality)
