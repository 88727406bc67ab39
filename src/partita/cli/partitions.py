"""``presample``, ``partition``, ``shard``, ``quality``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import Json, given, record_options, with_options
from partita.cli.shell import finish, print_table, show, shown
from partita.core.options import fields_of
from partita.partitioning.options import MemoryPartitionOptions, PartitionOptions, ShardOptions
from partita.sample.options import PresampleOptions

_PRESAMPLE_HELP = """Sample mini-batches as in training, and store how often each node and edge is sampled.

partition --weights presample then minimizes the cut of mini-batches.

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

The store's parts are divided among the hosts in order, as partition --parts HOSTSxWORKERS makes them.

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
_PARTITION_FLAGS = {"options": "--option"}
_SHARD_FLAGS = {"hot_bytes": "--hot", "hot": "--hot-policy"}
_SOURCE = "Files of edges"
_AUTO = "With --parts auto: as many parts as make each fit a worker"


def _for_memory(parts: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """What --parts auto is to go by, with all other options; ``None`` for a given number of parts."""
    from partita.core.errors import ConfigError

    values = given(MemoryPartitionOptions, options)
    if parts != "auto":
        for name in values.keys() - fields_of(PartitionOptions).keys():
            raise ConfigError(
                f"only for --parts auto, but --parts is {parts}",
                where=f"--{name.replace('_', '-')}",
                fix="Leave it out, or write --parts auto",
            )
        return None
    if "memory_per_worker" not in values:
        raise ConfigError(
            "auto needs the memory of a worker", where="--parts", fix="Add for instance --memory-per-worker 4GiB"
        )
    return values


def presample(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The graph store; two columns are added to it.")],
    *,
    json: Json = False,
    **options: Any,
) -> None:
    """Presample."""
    from partita.sample.presample import presample as presample_store

    with shown(quiet=json):
        summary = presample_store(store, **given(PresampleOptions, options))
    finish({"path": str(summary.path), **summary.to_json()}, "Presampled", as_json=json)


def partition(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A graph store, or a file of edges.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The store or assignment file to create.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate time and memory, then measure the partition; write nothing.")
    ] = False,
    json: Json = False,
    **options: Any,
) -> None:
    """Partition."""
    values = given(PartitionOptions, options, _PARTITION_FLAGS)
    for_memory = _for_memory(values["parts"], options)
    with shown(quiet=json) as console:
        run = _try_partition if dry_run else _write_partition
        summary, plan, more = run(source, out, values, for_memory, console)
    if json:
        finish({**summary.to_json(), **more}, "", as_json=True)
        return
    shown_values = {
        "written": summary.path or "nothing (dry run)",
        **({} if plan is None else {"plan": plan.explain()}),
        "algorithm": summary.algorithm,
        "seconds": "  ".join(f"{name} {value:.2f}" for name, value in summary.seconds.items()),
        "peak memory": _bytes(summary.peak_memory_bytes),
        "notes": summary.notes,
    }
    finish(shown_values, "Partitioned", as_json=False)
    if summary.quality is not None:
        _print_quality(summary.quality)


def _write_partition(
    source: Path, out: Path, values: dict[str, Any], for_memory: dict[str, Any] | None, console: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """The summary of a partition that was written, the plan of its number of parts, and what JSON says besides."""
    if for_memory is None:
        from partita.partitioning.job import partition as partition_graph

        return partition_graph(source, out, **values), None, {}
    from partita.isolated.memory_parts import partition_for_memory

    made = partition_for_memory(source, out, say=lambda sentence: _say(console, sentence), **for_memory)
    return made.partition, made.plan, made.to_json()


def _try_partition(
    source: Path, out: Path, values: dict[str, Any], for_memory: dict[str, Any] | None, console: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """As :func:`_write_partition`, after saying what it takes; nothing is written."""
    from partita.isolated.memory_parts import plan_for_memory
    from partita.partitioning.estimate import estimate
    from partita.partitioning.job import partition as partition_graph
    from partita.partitioning.job import prepare

    plan = None
    if for_memory is not None:
        plan = plan_for_memory(source, out, **for_memory)
        values["parts"] = plan.parts
        _say(console, plan.explain())
    dtype = values.pop("feature_dtype", None)
    expected = estimate(prepare(source, PartitionOptions(**values)), out, dtype)
    if console is not None:
        print_table(_estimate_table(expected))
    more = {"expected": expected.to_json()}
    summary = partition_graph(source, None, **values)
    if plan is not None and for_memory is not None and summary.quality is not None:
        if for_memory.get("halo") != "none":
            plan = plan.recheck(summary.quality.replication_factor)
        more["plan"] = plan.to_json()
    return summary, plan, more


def _say(console: Any, sentence: str) -> None:
    if console is not None:
        console.print(sentence, highlight=False)


def shard(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A whole graph store, in parts.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The shard to create.")],
    *,
    json: Json = False,
    **options: Any,
) -> None:
    """Shard."""
    from partita.partitioning.shards import shard as make_shard

    with shown(quiet=json):
        summary = make_shard(store, out, **given(ShardOptions, options, _SHARD_FLAGS))
    values = summary.to_json()
    finish(values if json else {**values, "bytes": _bytes(summary.bytes)}, "Sharded", as_json=json)


def quality(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A graph store.")],
    *,
    assignment: Annotated[
        Path | None, typer.Option(help="A file with a part for every node (default: the store's own parts).")
    ] = None,
    parts: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Number of parts of the assignment.")] = None,
    json: Json = False,
) -> None:
    """Measure."""
    from partita.core.errors import ConfigError
    from partita.graph.store import GraphStore
    from partita.partitioning.assignment import read_assignment
    from partita.partitioning.quality import store_quality

    if (assignment is None) != (parts is None):
        raise ConfigError(
            "--assignment and --parts must be given together", fix="Give both, or none for the store's own parts"
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
    from partita.core.options import format_bytes

    return format_bytes(count)


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    app.command(help=_PRESAMPLE_HELP)(with_options(presample, record_options(PresampleOptions)))
    options = record_options(
        PartitionOptions, panels={"source_column": _SOURCE, "overwrite": None}, flags=_PARTITION_FLAGS
    )
    shared = fields_of(PartitionOptions)
    options += record_options(
        MemoryPartitionOptions, panels={"memory_per_worker": _AUTO}, without={*shared, "say"}, demanding=False
    )
    app.command(help=_PARTITION_HELP)(with_options(partition, options))
    app.command(help=_SHARD_HELP)(with_options(shard, record_options(ShardOptions, flags=_SHARD_FLAGS)))
    app.command(help=_QUALITY_HELP)(quality)
