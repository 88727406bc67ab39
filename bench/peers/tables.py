"""The tables of the comparison, from rows of measurements: one table a stage, and what to think of the losses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FIELDS = (
    "configuration", "stage", "case", "contender", "variant", "repetition", "seconds", "amount", "limit_seconds",
    "steps", "first_loss", "last_loss", "peak_private_bytes", "error",
)  # fmt: skip
KEY = ("configuration", "case", "contender", "variant")
OURS = "Partita"
Row = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """How a stage is shown.

    Attributes:
        title: of its table.
        figure: of the median seconds and the amount of work.
        note: what is to be known of the figures.
    """

    title: str
    figure: Callable[[float, float], str]
    note: str


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


STAGES = {
    "sample": Stage(
        "Sampling the batches of an epoch",
        lambda seconds, edges: f"{_duration(seconds)} ({edges / seconds / 1e6:.1f} M edges/s)",
        "Without features. PyG draws for every node once in a batch, the others once in every layer, so it draws fewer "
        "edges; ratios are of the seconds. *As trained*: Partita lists the distinct sources of layer 1 only where the "
        "model needs them.",
    ),
    "gather": Stage(
        "Gathering rows by random ids",
        lambda seconds, size: f"{size / seconds / 1e9:.2f} GB/s",
        "Bytes of the result a second. The limit is a plain copy of as many bytes between two tensors that are there.",
    ),
    "aggregate": Stage(
        "Mean over the neighbors, forward and backward",
        lambda seconds, edges: f"{_duration(seconds)} ({edges / seconds / 1e6:.1f} M edges/s)",
        "All contenders get the same blocks. What depends on the block, such as its transpose, is made anew every "
        "time. Layer 1 has no backward pass: input features need no gradient.",
    ),
    "dense": Stage(
        "Linear maps, forward and backward",
        lambda seconds, flops: f"{flops / seconds / 1e9:.0f} GFLOP/s",
        "All use PyTorch's, each its own version. The limit is the best square matrix product in the same process.",
    ),
    "epoch": Stage(
        "Whole training epoch",
        lambda seconds, edges: f"{_duration(seconds)} ({edges / 1e6:.2f} M edges)",
        "Sampling, features, forward, backward and optimizer; the first epoch of every run is not counted.",
    ),
    "inference": Stage(
        "Output for all nodes, over all neighbors",
        lambda seconds, nodes: f"{_duration(seconds)} ({nodes / seconds / 1e6:.2f} M nodes/s)",
        "Layer by layer.",
    ),
}


def medians(rows: Iterable[Row]) -> list[Row]:
    """One row for all repetitions of a measurement; repetitions that failed count only where none did not."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["stage"], *(row[name] for name in KEY)), []).append(row)
    found = []
    for group in groups.values():
        good = [row for row in group if not row["error"]]
        joined = dict(group[0] if not good else good[-1]) | {"repetitions": len(good)}
        for name in ("seconds", "amount", "limit_seconds", "first_loss", "last_loss", "peak_private_bytes"):
            values = [float(row[name]) for row in good if row[name] not in ("", None)]
            joined[name] = statistics.median(values) if values else None
        found.append(joined)
    return found


def _lines(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return rows + ["| " + " | ".join(cells) + " |" for cells in body]


def _groups(found: list[Row]) -> list[tuple[Row, list[Row]]]:
    """Every measurement of ours, with those of the peers for the same."""
    ours = [row for row in found if row["contender"] == OURS]
    place = ("stage", "configuration", "case")
    return [
        (own, [row for row in found if row["contender"] != OURS and all(row[name] == own[name] for name in place)])
        for own in ours
    ]


def _best(rows: list[Row], by: str = "seconds") -> Row | None:
    good = [row for row in rows if row[by] is not None]
    return min(good, key=lambda row: row[by]) if good else None


def _label(row: Row) -> list[str]:
    return [row["configuration"], ", ".join(part for part in (row["case"], row["variant"]) if part) or "-"]


def stage_table(stage: str, found: list[Row], peers: Sequence[str], documented: dict[tuple[str, str], str]) -> str:
    """The table of a stage.

    Args:
        stage: its name.
        found: medians, of any stages.
        peers: names of the peers.
        documented: by peer and stage, the variant that its documentation shows.
    """
    shown, found = STAGES[stage], [row for row in found if row["stage"] == stage]
    head = ["configuration", "what", OURS]
    for peer in peers:
        head += [f"{peer}, as documented", f"{peer}, best"]
    head += ["best peer to Partita"]
    limited = any(row["limit_seconds"] is not None for row in found)
    head += ["limit", "Partita's share of the limit", "best peer's share of its own"] if limited else []
    body = []

    def figure(row: Row | None) -> str:
        if row is None:
            return "-"
        return shown.figure(row["seconds"], row["amount"]) if row["seconds"] else f"fails: {row['error']}"

    for own, others in _groups(found):
        cells = [*_label(own), figure(own)]
        for peer in peers:
            of_peer = [row for row in others if row["contender"] == peer]
            plain = [row for row in of_peer if row["variant"] == documented.get((peer, stage))]
            best = _best(of_peer)
            named = f" ({best['variant']})" if best and best["variant"] and len(of_peer) > 1 else ""
            cells += [figure(plain[0] if plain else None), figure(best) + named]
        best = _best(others)
        cells.append(f"{best['seconds'] / own['seconds']:.2f}" if best and own["seconds"] else "-")
        if limited:
            known = own["limit_seconds"] and own["seconds"]
            cells += [
                shown.figure(own["limit_seconds"], own["amount"]) if known else "-",
                f"{own['limit_seconds'] / own['seconds']:.0%}" if known else "-",
                f"{best['limit_seconds'] / best['seconds']:.0%}" if best and best["limit_seconds"] else "-",
            ]
        body.append(cells)
    return "\n".join([f"### {shown.title}", "", *_lines(head, body), "", shown.note, ""])


def memory_table(found: list[Row], peers: Sequence[str]) -> str:
    """Peak private memory of the epoch and of inference: of every peer's fastest variant, and its least."""
    body = []
    for own, others in _groups([row for row in found if row["stage"] in ("epoch", "inference")]):
        if own["peak_private_bytes"] is None:
            continue
        cells = [own["configuration"], own["stage"], f"{own['peak_private_bytes'] / 2**20:.0f}"]
        for peer in peers:
            of_peer = [row for row in others if row["contender"] == peer]
            fastest, least = _best(of_peer), _best(of_peer, "peak_private_bytes")
            cells += [f"{row['peak_private_bytes'] / 2**20:.0f}" if row else "-" for row in (fastest, least)]
        least = _best(others, "peak_private_bytes")
        known = least and own["peak_private_bytes"]
        cells.append(f"{least['peak_private_bytes'] / own['peak_private_bytes']:.2f}" if known else "-")
        body.append(cells)
    head = ["configuration", "stage", f"{OURS}, MiB"]
    for peer in peers:
        head += [f"{peer}'s fastest, MiB", f"{peer}'s leanest, MiB"]
    note = (
        "Above what a process holds after its imports (Partita: and its kernels) and after loading the graph's arrays; "
        "looked at every 10 ms. Of processes that sample, what they have written to. Partita maps the arrays from a "
        "file, so they are no private memory; the peers hold them in memory, which is not counted either."
    )
    head.append("leanest peer to Partita")
    return "\n".join(["### Peak private memory", "", *_lines(head, body), "", note, ""])


def loss_table(found: list[Row]) -> str:
    """Losses after the first and the last epoch: a contender that learns something else is measured wrongly."""
    body = []
    for own, others in _groups([row for row in found if row["stage"] == "epoch"]):
        for row in [own, *others]:
            if row["last_loss"] is None:
                continue
            body.append([
                row["configuration"], row["contender"], row["variant"] or "-", f"{row['first_loss']:.4f}",
                f"{row['last_loss']:.4f}", verdict(own, row),
            ])  # fmt: skip
    head = ["configuration", "contender", "variant", "first epoch", "last epoch", "beside Partita"]
    note = (
        "Mean training loss over an epoch. *Alike*: the last one is within 5 % of Partita's. Each draws its own seeds, "
        "neighbors and first weights, so they cannot be equal, least of all after few steps. GCN differs: "
        "Partita normalizes by the degrees of the whole graph, the peers by those in the batch."
    )
    return "\n".join(["### Training losses", "", *_lines(head, body), "", note, ""])


def verdict(own: Row, other: Row) -> str:
    """Whether another contender has learned as much as ours."""
    if not other["last_loss"] < other["first_loss"]:
        return "**learns nothing**"
    if own["last_loss"] is None:
        return "-"
    off = other["last_loss"] / own["last_loss"] - 1
    return "alike" if abs(off) <= 0.05 else f"**{off:+.0%}**"


def tables(rows: Iterable[Row], peers: Sequence[str], documented: dict[tuple[str, str], str]) -> str:
    """All tables for which there are rows."""
    found = medians(rows)
    stages = {row["stage"] for row in found}
    parts = [stage_table(stage, found, peers, documented) for stage in STAGES if stage in stages]
    if stages & {"epoch", "inference"}:
        parts.append(memory_table(found, peers))
    if "epoch" in stages:
        parts.append(loss_table(found))
    return "\n".join(parts)
