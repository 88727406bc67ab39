"""What is damaged: for every kind of input a sound one, the commands that read it, and what they must not make of it.

A damaged input is either refused (exit 2 and a message), or taken for what an independent reading of it says.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import xxhash
import yaml
from mutations import Mutation

import partita
from partita.graph.metadata import _checksum
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store

BLANKS = " \t"
"""Other characters that Python takes for blanks, such as 0x1C, are part of a name."""
MARKS = {"true": 1, "false": 0, "True": 1, "False": 0, "TRUE": 1, "FALSE": 0}
"""Cells of columns of marks, which are numbers."""
TRAIN = "--layers 1 --hidden 4 --fanout 3 --batch-size 32 --epochs 1 --threads 1"
Accepted = Callable[[Path, Path], str | None]
"""Says what is wrong with what a command made of a damaged input: of the folder of the case, and the sound world."""


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        files: what may be damaged, relative to the world; one of them is.
        mutations: by the end of a file's name; what fits first.
        commands: one is run; ``{out}`` is a name that is free.
        accepted: called where the command took it.
        sign: called after a file was damaged, to make checksums fit.
    """

    files: tuple[str, ...]
    mutations: Mapping[str, Sequence[Mutation]]
    commands: tuple[str, ...]
    accepted: Accepted
    sign: Callable[[Path, str], None] | None = None


def make_world(folder: Path) -> Path:
    """The sound inputs."""
    folder.mkdir()
    store = small_random_store(folder / "graph", 60, 300, num_features=3)
    edges = edges_of(store)
    draw = np.random.default_rng(5)
    text = "source,target,weight\n" + "".join(f"{a},{b},{draw.random():.3f}\n" for a, b in edges)
    (folder / "edges.csv").write_text(text)
    (folder / "edges.tsv").write_text(text.replace(",", "\t"))
    (folder / "snap.txt").write_text("# a comment\n" + "".join(f"{a} {b}\n" for a, b in edges))
    (folder / "nodes.csv").write_text(
        "id,size,color,topic,split\n"
        + "".join(
            f"{node},{draw.random():.4f},{draw.integers(9)},topic{node % 3},{('train', 'val', 'test')[node % 3]}\n"
            for node in range(60)
        )
    )
    array = np.array(edges, np.int64).T
    np.savez(folder / "edges.npz", edge_index=array)
    np.savez_compressed(folder / "packed.npz", edge_index=array, x=np.ones((60, 3), np.float32), y=np.arange(60) % 3)
    types = np.repeat(np.arange(3), (30, 20, 10))
    np.savez(
        folder / "typed.npz", edge_index=array, node_type=types, node_type_names=np.array(["paper", "author", "venue"]),
        edge_type=np.arange(array.shape[1]) % 2, edge_type_names=np.array(["cites", "knows"]),
        x_paper=draw.random((30, 3)).astype(np.float32), x_venue=draw.random((10, 2)).astype(np.float32),
        y=np.where(types == 0, np.arange(60) % 3, -1),
    )  # fmt: skip
    partita.ingest(folder / "typed.npz", folder / "typed")
    np.save(folder / "x.npy", draw.random((60, 3)).astype(np.float32))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"source": array[0], "target": array[1]}), folder / "edges.parquet")
    partita.partition(store, folder / "parts", parts=2, algorithm="random")
    settings: dict[str, Any] = {"layers": 1, "hidden": 4, "fanout": (3,), "batch_size": 32, "epochs": 2}
    partita.Trainer(store, out=folder / "run", **settings).fit(progress=False)
    (folder / "settings.yaml").write_text(yaml.safe_dump({**settings, "fanout": [3], "model": "sage", "lr": 0.01}))
    (folder / "parts.csv").write_text("id,part\n" + "".join(f"{node},{node % 2}\n" for node in range(60)))

    return folder


def edges_of(store: GraphStore) -> list[tuple[int, int]]:
    """Sources and destinations, in the order of the store."""
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return list(zip(map(int, store.indices), map(int, destinations), strict=True))


def named_edges(store: GraphStore) -> set[tuple[str, str]]:
    """Edges by the user's ids."""
    names = [str(name) for name in store.names()]
    return {(names[a], names[b]) for a, b in edges_of(store)}


# Oracles


def text_edges(case: Path, name: str, delimiter: str | None) -> set[tuple[str, str]] | None:
    """Edges by an independent reading; ``None`` where it makes no sense of the text."""
    text = decoded((case / name).read_bytes())
    if delimiter is None:
        lines = [line.strip(BLANKS) for line in re.split("\r?\n|\r", text)]
        rows = [re.split(f"[{BLANKS}]+", line) for line in lines if line and not line.startswith("#")]
    else:
        read = csv.reader(io.StringIO(text), delimiter=delimiter)
        rows = [row for row in read if any(cell.strip(BLANKS) for cell in row)]
        if len(rows) > sum(without := [not row[0].startswith("#") for row in rows]):  # comments, which must be told
            notes = GraphStore.open(case / "out").metadata.notes["ingest_notes"]
            if not any("left out as comments" in note for note in notes):
                return None
            rows = [row for row, kept in zip(rows, without) if kept]
        header, *rows = rows or [[]]
        if not {"source", "target"} <= {cell.strip(BLANKS) for cell in header}:
            return None
        first, second = ([cell.strip(BLANKS) for cell in header].index(each) for each in ("source", "target"))
        try:
            rows = [[row[first], row[second]] for row in rows]
        except IndexError:
            return None
    if any(len(row) < 2 for row in rows):
        return None
    return {(row[0].strip(BLANKS), row[1].strip(BLANKS)) for row in rows}


def decoded(data: bytes) -> str:
    """UTF-8, or else Latin-1, which takes anything."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def same_text_edges(name: str, delimiter: str | None) -> Accepted:
    def accepted(case: Path, world: Path) -> str | None:
        expected = text_edges(case, name, delimiter)
        if expected is None:
            return "an independent reading makes no sense of it"
        found = named_edges(GraphStore.open(case / "out"))
        return None if canonical(found) == canonical(expected) else f"edges differ: {list(found ^ expected)[:4]}"

    return accepted


def same_typed_edges(case: Path, world: Path) -> str | None:
    """Edges with the types of their ends and the name of their relation."""
    with np.load(case / "typed.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in ("edge_index", "node_type", "edge_type")}
        kinds, names = (file[f"{of}_type_names"].tolist() for of in ("node", "edge"))
    types, (source, target) = arrays["node_type"], arrays["edge_index"]
    expected = [
        (int(a), f"{kinds[types[a]]}:{names[kind]}:{kinds[types[b]]}", int(b))
        for a, b, kind in zip(source, target, arrays["edge_type"], strict=True)
    ]
    store = GraphStore.open(case / "out")
    if store.schema is None:
        return "types were lost"
    relations = [str(store.schema.relations[kind]) for kind in store.edge_type]
    found = [(a, name, b) for (a, b), name in zip(edges_of(store), relations, strict=True)]
    return None if sorted(found) == sorted(expected) else "edges differ"


def canonical(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Ids that are the same number are the same id, where all are numbers."""
    try:
        return {(str(int(a)), str(int(b))) for a, b in edges}
    except ValueError:
        return edges


def same_array_edges(name: str) -> Accepted:
    def accepted(case: Path, world: Path) -> str | None:
        if name.endswith(".parquet"):
            import pyarrow.parquet as pq

            table = pq.read_table(case / name)
            array = np.stack([table["source"].to_numpy(), table["target"].to_numpy()])
        else:
            with np.load(case / name, allow_pickle=False) as file:
                array = file["edge_index"]
        expected = {(str(a), str(b)) for a, b in array.T}
        found = named_edges(GraphStore.open(case / "out"))
        return None if canonical(found) == canonical(expected) else f"edges differ: {list(found ^ expected)[:4]}"

    return accepted


def same_table(case: Path, world: Path) -> str | None:
    text = decoded((case / "nodes.csv").read_bytes())
    rows = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip(BLANKS) for cell in row)]
    header = [cell.strip(BLANKS) for cell in rows[0]]
    store = partita.open(case / "out")
    place = {str(name): at for at, name in enumerate(store.names())}
    # A column without a name, as data frames write their index, is said not to be used.
    columns = [at for at, name in enumerate(header) if name and name not in ("id", "topic", "split")]
    for row in rows[1:]:
        cells = [row[at].strip(BLANKS) for at in columns]
        node = place.get(row[header.index("id")].strip(BLANKS))
        if node is None:
            continue
        expected = np.array([MARKS.get(cell, cell) for cell in cells], np.float32)
        if not np.array_equal(store.x[node], expected):
            return f"node {row[0]}: {store.x[node]} instead of {expected}"
    return None


def same_features(case: Path, world: Path) -> str | None:
    expected, found = np.load(case / "x.npy").astype(np.float32), partita.open(case / "out").x
    return None if np.array_equal(expected.reshape(len(expected), -1), found) else "features differ"


def nothing_changed(case: Path, world: Path) -> str | None:
    """A damaged file that was taken must say the same as before."""
    for path in sorted(case.rglob("*")):
        sound = world / path.relative_to(case)
        if path.is_file() and sound.is_file() and path.read_bytes() != sound.read_bytes():
            if path.suffix == ".json" and _json(path) == _json(sound):
                continue
            return f"{path.relative_to(case)} has changed, and was taken"
    return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return path.read_bytes()


def anything(case: Path, world: Path) -> str | None:
    """What is valid by its checksums may mean anything; it only must not do harm."""
    return None


def settings_were_followed(case: Path, world: Path) -> str | None:
    wanted = yaml.safe_load((case / "settings.yaml").read_bytes())
    found = yaml.safe_load((case / "out/config.yaml").read_bytes())
    options = {name: value for name, value in (wanted or {}).items() if name not in ("epochs", "threads")}
    for name, value in options.items():
        if value is None:  # where it is a value, it stands for the default
            continue
        if name == "fanout" and isinstance(value, list) and len(value) == 1:  # one for all layers
            value = value * found["layers"]
        if not _alike(found.get(name), value):
            return f"{name} is {found.get(name)!r} instead of {value!r}"
    return None


def _alike(found: Any, value: Any) -> bool:
    found, value = ([each] if not isinstance(each, list) else each for each in (found, value))
    try:
        return [float(each) for each in found] == [float(each) for each in value]
    except (TypeError, ValueError):
        return list(map(str, found)) == list(map(str, value))


def assignment_was_followed(case: Path, world: Path) -> str | None:
    rows = [row for row in csv.reader(io.StringIO(decoded((case / "parts.csv").read_bytes()))) if row][1:]
    parts = {int(row[0]): int(row[1]) for row in rows}
    return None if len(parts) == 60 and set(parts.values()) <= {0, 1} else f"it names {len(parts)} nodes"


def no_markup(case: Path, world: Path) -> str | None:
    return "an element of the input is in the page" if "<img src=x" in (case / "out.html").read_text() else None


# Checksums


def sign_store(case: Path, name: str) -> None:
    """Make the checksums of a store fit what a column, or the metadata, is now."""
    folder = case / name.split("/")[0]
    path = folder / "metadata.json"
    try:
        content = json.loads(path.read_bytes())
        for column, record in content["columns"].items():
            file = folder / f"{column}.npy"
            record["checksum"], record["bytes"] = xxhash.xxh3_64_hexdigest(file.read_bytes()), file.stat().st_size
        content.pop("checksum")
        path.write_text(json.dumps({**content, "checksum": _checksum(content)}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        pass  # what is no metadata any more cannot be signed


def sign_run(case: Path, name: str) -> None:
    """Leave out the digests, as older versions did."""
    for digests in (case / "run").rglob("digests.json"):
        digests.unlink()


_COLUMNS = ("indptr", "indices", "part_offsets", "self_loops", "x", "y", "split_train", "split_val", "split_test")
STORE = (*(f"graph/{name}.npy" for name in _COLUMNS), *["graph/metadata.json"] * 3)
_TYPED = ("indptr", "indices", "part_offsets", "type_offsets", "edge_type", "x_0", "x_2", "y")
TYPED = (*(f"typed/{name}.npy" for name in _TYPED), *["typed/metadata.json"] * 3)
BINARY = mutations.BYTES
COMMON = {".csv": mutations.TABLE, ".tsv": mutations.TABLE, ".txt": mutations.TABLE, ".json": mutations.JSON,
          ".jsonl": mutations.JSONL, ".yaml": mutations.YAML, "": BINARY}  # fmt: skip
READ_STORE = (
    *("verify graph", "inspect graph", "export graph --out {out}.npz"),
    "partition graph {out} --parts 2 --algorithm random",
    f"train graph --out {{out}} {TRAIN}", "evaluate run --store graph", "quality graph",
)  # fmt: skip

KINDS: dict[str, Kind] = {
    "edges csv": Kind(
        ("edges.csv",), COMMON, ("ingest edges.csv {out} --header --source-column source --target-column target",),
        same_text_edges("edges.csv", ",")),
    "edges tsv": Kind(
        ("edges.tsv",), COMMON,
        ("ingest edges.tsv {out} --header --format tsv --source-column source --target-column target",),
        same_text_edges("edges.tsv", "\t")),
    "edges snap": Kind(
        ("snap.txt",), COMMON, ("ingest snap.txt {out} --format snap --no-header",), same_text_edges("snap.txt", None)),
    "edges npz": Kind(("edges.npz",), COMMON, ("ingest edges.npz {out}",), same_array_edges("edges.npz")),
    "packed npz": Kind(("packed.npz",), COMMON, ("ingest packed.npz {out}",), same_array_edges("packed.npz")),
    "edges parquet": Kind(
        ("edges.parquet",), COMMON, ("ingest edges.parquet {out}",), same_array_edges("edges.parquet")),
    "nodes csv": Kind(
        ("nodes.csv",), COMMON,
        ("ingest edges.csv {out} --header --nodes nodes.csv --id-column id --label-column topic --split-column split",),
        same_table),
    "features npy": Kind(
        ("x.npy",), COMMON, ("ingest edges.csv {out} --header --ids index --features x.npy",), same_features),
    "store": Kind(STORE, COMMON, READ_STORE, nothing_changed),
    "store signed": Kind(STORE, COMMON, READ_STORE, anything, sign_store),
    "checkpoint": Kind(
        ("model.safetensors", "optimizer.safetensors", "state.json", "digests.json"), COMMON,
        ("train --resume run --epochs 3", "verify run"), nothing_changed),
    "checkpoint unsigned": Kind(
        ("model.safetensors", "optimizer.safetensors", "state.json"), COMMON,
        ("train --resume run --epochs 3", "evaluate run", "predict run --out {out}.csv"), anything, sign_run),
    "run records": Kind(
        ("run/run.json", "run/config.yaml", "run/metrics.jsonl", "run/analysis.json"), COMMON,
        ("evaluate run", "train --resume run --epochs 3", "report run --out {out}.html", "verify run", "inspect run",
         "predict run --out {out}.csv"), anything),
    "report": Kind(
        ("run/metrics.jsonl", "run/run.json", "run/analysis.json"), COMMON, ("report run --out {out}.html",),
        no_markup),
    "settings": Kind(
        ("settings.yaml",), COMMON, ("train graph --out {out} --config settings.yaml --epochs 1 --threads 1",),
        settings_were_followed),
    "assignment": Kind(
        ("parts.csv",), COMMON, ("quality graph --assignment parts.csv --parts 2",), assignment_was_followed),
    "plan": Kind(("plan.json",), COMMON, (f"train graph --out {{out}} --plan plan.json {TRAIN}",), anything),
    "links": Kind(("links.json",), COMMON, ("plan parts --workers 2 --links links.json",), anything),
    "typed npz": Kind(("typed.npz",), COMMON, ("ingest typed.npz {out}",), same_typed_edges),
    "typed store signed": Kind(
        TYPED, COMMON,
        ("verify typed", "inspect typed", "export typed --out {out}.npz", "quality typed",
         "partition typed {out} --parts 2 --algorithm random"), anything, sign_store),
}  # fmt: skip


def file_of(world: Path, name: str) -> str:
    """Where a file of a kind is; those of checkpoints are in the latest one."""
    if (world / name).exists():
        return name
    newest = sorted(path for path in (world / "run/checkpoints").iterdir() if path.is_dir())[-1]
    return str((newest / name).relative_to(world))


MADE_BY = (f"plan graph --out plan.json {TRAIN.replace('--epochs 1', '')}", "measure --out links.json")
"""Commands that make the rest of the world."""


def copy_world(world: Path, to: Path, used: str) -> None:
    """A copy of what a command reads."""
    to.mkdir()
    for path in world.iterdir():
        if path.name in used or path.name in ("graph", "edges.csv"):
            shutil.copytree(path, to / path.name) if path.is_dir() else shutil.copy(path, to / path.name)
