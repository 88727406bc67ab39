"""Partita beside its peers, PyTorch Geometric and DGL, stage by stage on one machine in one run.

    python bench/peers/compare.py --out docs/peers_measured.csv --table FILE
    python bench/peers/compare.py --quick
    python bench/peers/compare.py --configurations all --stages epoch
    python bench/peers/compare.py --peers "" --stages epoch --profile FOLDER

The peers get virtual environments of their own in ``--cache``. Every contender is a process that stays; within each
repetition they take turns, in an order that changes, so that noise hits all alike. Of a peer's variants the one that
its documentation shows is measured, and the one that was the fastest when each was tried once. All have the same
number of threads and the same R-MAT graph with features and labels. A row of the CSV file is one repetition; the
table shows medians. ``--configurations`` takes names, one's own settings such as ``"hidden=64 fanout=5,5"``, or
``all``; ``--list`` shows the names. ``--profile`` runs every stage of Partita once more, under PyTorch's profiler, and
writes what took its time to a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import configurations
import numpy as np
from environments import DEFAULT_CACHE, cache_folder, make
from processes import Process
from profiles import page, section, stem
from tables import FIELDS, OURS, medians, tables

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rows import append_row

PEERS = {"PyG": ("pyg", "run_pyg.py"), "DGL": ("dgl", "run_dgl.py")}
STEPS, PROBE_STEPS, CLASSES, EPOCHS = 52, 12, 32, 3
Row = dict[str, Any]


def make_graph(folder: Path, scale: int, features: int, steps: int, batch_size: int, products: float | None) -> Path:
    """A store, and the same as plain arrays for the peers; made once.

    Args:
        folder: for both.
        scale: the logarithm of the nodes of R-MAT.
        features: columns.
        steps: of an epoch.
        batch_size: seeds of a step.
        products: a graph of the shape of ogbn-products with so many of its nodes, in place of R-MAT.
    """
    import partita

    if folder.exists():
        return folder
    folder.mkdir()
    if products is not None:
        print(f"making the graph: {products} of ogbn-products", file=sys.stderr, flush=True)
        path = partita.generate_products(folder / "store", scale=products)
    else:
        print(f"making the graph: 2^{scale} nodes, {features} features", file=sys.stderr, flush=True)
        path = partita.generate_rmat(
            folder / "store", scale=scale, edge_factor=16, undirected=True, num_features=features,
            num_classes=CLASSES, split=(steps * batch_size / 2**scale, 1 / 2**scale, 0),
        )  # fmt: skip
    store = partita.open(str(path))
    arrays = {"indptr": store.indptr, "indices": store.indices, "x": store.x, "y": store.y}
    for name, array in {**arrays, "train": store.split("train")}.items():
        np.save(folder / f"{name}.npy", array)
    return folder


class Comparison:
    """One run of the harness.

    Args:
        options: of the command line.
        folder: for graphs.
        contenders: by name, ours first.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, contenders: dict[str, Process]) -> None:
        self.options, self.folder, self.contenders = options, folder, contenders
        self.rows: list[Row] = []

    def run(self) -> None:
        gathered = False
        for name, configuration in self.options.configurations.items():
            batch = configuration["batch_size"]
            steps = max(1, min(STEPS, int(2**self.options.scale * 0.5) // batch))
            features = configuration["features"]
            folder, products = self.folder / f"{features}-{batch}", self.options.products
            graph = make_graph(folder, self.options.scale, features, steps, batch, products)
            for stage in self.options.stages:
                if stage == "gather" and gathered:  # knows nothing of configurations
                    continue
                gathered = gathered or stage == "gather"
                self.stage(stage, name, configuration, graph)

    def stage(self, stage: str, name: str, configuration: configurations.Configuration, graph: Path) -> None:
        """Measure a stage: every repetition asks for every case of every variant of every contender."""
        common: Row = {"stage": stage, "graph": str(graph), "configuration": settings_of(configuration)}
        common |= {"epochs": EPOCHS, "lr": learning_rate(), "blocks": str(graph / "blocks.npz")}
        if stage == "gather":
            common["table_rows"] = 2**self.options.scale
        rows = []
        if stage in ("aggregate", "dense"):
            found = self.contenders[OURS].ask(**{**common, "stage": "blocks", "variant": ""})
            if "error" in found:
                raise RuntimeError(found["error"])
            rows = found["rows"]
        cases = configurations.cases(stage, configuration, rows, CLASSES)
        entrants = list(self.entrants(name, {**common, **cases[0]}))
        spent = dict.fromkeys(entrants, 0.0)
        for repetition in range(self.options.repetitions):
            waited_for = [entrant for entrant in entrants if spent[entrant] < self.options.patience]
            for case in cases:
                for place in range(len(waited_for)):
                    contender, variant = entrant = waited_for[(place + repetition) % len(waited_for)]
                    begun = time.perf_counter()
                    answer = self.contenders[contender].ask(**{**common, **case, "variant": variant})
                    spent[entrant] += time.perf_counter() - begun
                    self.note(name, stage, case["case"], contender, variant, repetition, answer)
        if self.options.profile:
            self.profile(name, common, cases)

    def profile(self, name: str, common: Row, cases: list[configurations.Configuration]) -> None:
        """Write what takes the time of a stage of ours: a page for all its cases and variants, a trace for each."""
        process, stage = self.contenders[OURS], common["stage"]
        usual = {(row["case"], row["variant"]): row["seconds"] for row in medians(self.of_ours(name, stage))}
        file, sections = stem(name, stage), []
        each = [(case, variant) for case in cases for variant in process.about["variants"].get(stage, [])]
        for number, (case, variant) in enumerate(each, start=1):
            trace = self.options.profile / (f"{file}-{number}.json.gz" if len(each) > 1 else f"{file}.json.gz")
            command = {**common, **case, "stage": "profile", "profiled": stage, "trace": str(trace), "variant": variant}
            found = process.ask(**command)
            what = ", ".join(part for part in (case["case"], variant) if part) or stage
            if "error" in found:
                print(f"{name} {stage} {what}: no profile: {found['error']}", file=sys.stderr, flush=True)
                continue
            # What is called again and again has the time of one call, which is not that of the profile.
            whole = usual.get((case["case"], variant)) if stage in ("sample", "epoch", "inference") else None
            sections.append(section(what, found, trace.name, steps=found["steps"], usual_seconds=whole))
        (self.options.profile / f"{file}.md").write_text(page(f"{name}, {stage}", sections))
        print(f"{name} {stage}: profile in {self.options.profile / file}.md", flush=True)

    def of_ours(self, name: str, stage: str) -> list[Row]:
        """Our rows of a stage of a configuration."""
        wanted = {"configuration": name, "stage": stage, "contender": OURS}
        return [row for row in self.rows if all(row[field] == value for field, value in wanted.items())]

    def entrants(self, name: str, command: Row) -> Iterator[tuple[str, str]]:
        """Contenders and variants that are measured: all of ours; of a peer's the documented and the fastest one."""
        stage = command["stage"]
        for contender, process in self.contenders.items():
            variants = process.about["variants"].get(stage, [])
            if contender == OURS or len(variants) <= 1:
                yield from ((contender, variant) for variant in variants)
                continue
            tried: dict[str, float] = {}
            for variant in variants:
                limits = {"steps": PROBE_STEPS, "epochs": 2} if stage in ("sample", "epoch") else {}
                answer = process.ask(**{**command, **limits, "variant": variant})
                if "error" in answer:
                    print(f"{name} {stage} {contender} {variant}: {answer['error']}", file=sys.stderr, flush=True)
                else:
                    tried[variant] = answer["seconds"]
                    print(f"{name} {stage} {contender} {variant}: tried, {answer['seconds']:.4g} s", flush=True)
            fastest = min(tried, key=lambda variant: tried[variant]) if tried else variants[0]
            yield from ((contender, variant) for variant in dict.fromkeys((variants[0], fastest)))

    def note(
        self, name: str, stage: str, case: str, contender: str, variant: str, repetition: int, answer: Row
    ) -> None:
        """Keep an answer as a row."""
        losses = answer.get("losses") or ["", ""]
        amounts = [answer[unit] for unit in ("bytes", "flops", "nodes", "edges") if unit in answer]
        row = {
            "configuration": name, "stage": stage, "case": case, "contender": contender, "variant": variant,
            "repetition": repetition, "seconds": answer.get("seconds", ""), "amount": amounts[0] if amounts else "",
            "limit_seconds": answer.get("limit_seconds", ""), "steps": answer.get("steps", ""),
            "first_loss": losses[0], "last_loss": losses[-1], "error": answer.get("error", ""),
            "peak_private_bytes": answer.get("peak_private_bytes", ""),
        }  # fmt: skip
        self.rows.append(row)
        append_row(self.options.out, FIELDS, row)
        told = answer.get("error") or f"{answer['seconds']:.4g} s"
        print(" ".join(part for part in (name, stage, case, contender, variant) if part) + f": {told}", flush=True)


def settings_of(configuration: configurations.Configuration) -> configurations.Configuration:
    """Without what the graph already has."""
    return {key: value for key, value in configuration.items() if key != "features"}


def learning_rate() -> float:
    """Partita's default, which the peers get too."""
    from partita.config import Config

    return Config().lr


def machine() -> str:
    """Processor, cores and memory."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {processor}, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def footer(options: argparse.Namespace, abouts: dict[str, Row], missing: dict[str, dict[str, str]], load: float) -> str:
    """What is to be known of all tables."""
    graph = f"R-MAT, 2^{options.scale} nodes, 2^{options.scale + 4} edges before symmetrizing"
    if options.products is not None:
        graph = f"of the shape of ogbn-products, {options.products} of its nodes, with its features"
    lines = [
        f"`python {' '.join(sys.argv)}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine()}; {options.threads} "
        f"threads each, medians of {options.repetitions} repetitions (fewer of what took {options.patience:.0f} s in a "
        f"stage before that); load average {load:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after.",
        f"Graph: {graph}. Default: "
        f"{json.dumps(configurations.DEFAULT)}; SAGE, GCN and GAT with layer normalization, ReLU and dropout of 0.5 "
        "after hidden layers, Adam.",
    ]
    for name, about in abouts.items():
        versions = ", ".join(f"{package} {version}" for package, version in about.get("versions", {}).items())
        lines.append(f"{name}: {versions or about.get('error')}.")
    for name, packages in missing.items():
        lines += [f"{name}: not to be had: {which} ({why})." for which, why in packages.items()]
    return "\n".join(f"- {line}" for line in lines) + "\n"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("peers_measured.csv"), help="CSV file; replaced")
    parser.add_argument("--table", type=Path, help="Markdown file for the tables; default: printed")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder of the peers' environments")
    parser.add_argument("--quick", action="store_true", help="2^14 nodes and 2 repetitions: does it run?")
    parser.add_argument("--scale", type=int, help="the graph has 2^scale nodes (19; quick: 14)")
    parser.add_argument(
        "--products", type=float, metavar="SCALE",
        help="stages epoch and inference on a graph of the shape of ogbn-products, with so many of its nodes",
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, help="(5; quick: 2)")
    parser.add_argument(
        "--patience", type=float, default=300.0, metavar="SECONDS",
        help="a variant that took longer than this in a stage is not asked again (300)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--stages", default=",".join(configurations.STAGES), help="(default: all)")
    parser.add_argument("--configurations", nargs="+", default=["default"], metavar="NAME")
    parser.add_argument("--peers", default=",".join(PEERS), help="(default: all)")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="also write profiles of Partita's stages to it")
    parser.add_argument("--list", action="store_true", help="show the names of configurations")
    options = parser.parse_args()
    options.scale = options.scale or (14 if options.quick else 19)
    options.repetitions = options.repetitions or (2 if options.quick else 5)
    options.stages = options.stages.split(",")
    options.peers = [peer for peer in options.peers.split(",") if peer]
    for given, known in ((options.stages, configurations.STAGES), (options.peers, PEERS)):
        if unknown := set(given).difference(known):
            parser.error(f"{', '.join(sorted(unknown))}: there is only {', '.join(known)}")
    if options.products is not None and not set(options.stages) <= {"epoch", "inference"}:
        parser.error("--products is for the stages epoch and inference: add --stages epoch,inference")
    try:
        chosen = [configurations.parse(each) for each in options.configurations]
        options.configurations = {name: found for each in chosen for name, found in each.items()}
        if options.products is not None:
            from partita.graph.generate_shapes import PRODUCTS

            options.configurations = {
                name: {**found, "features": PRODUCTS.features} for name, found in options.configurations.items()
            }
            if any("features=" in name for name in options.configurations):
                parser.error(f"--products has {PRODUCTS.features} features: leave features= out")
        options.cache = cache_folder(options.cache)
    except ValueError as error:
        parser.error(str(error))
    if options.profile:
        options.profile = options.profile.resolve()
        options.profile.mkdir(parents=True, exist_ok=True)
    return options


def main() -> None:
    options = parse_options()
    if options.list:
        print("\n".join(configurations.known()))
        return
    load, missing = os.getloadavg()[0], {}
    contenders: dict[str, Process] = {}
    options.out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="partita-peers-") as folder:
        log = options.cache / "contenders.log"
        log.unlink(missing_ok=True)
        try:
            python = Path(sys.executable)
            # The partita command sets this itself; the peers keep their defaults.
            own = {"OMP_WAIT_POLICY": "PASSIVE"}
            contenders[OURS] = Process("run_partita.py", python, options.threads, log, own)
            for peer in options.peers:
                environment, script = PEERS[peer]
                try:
                    made = make(environment, options.cache)
                except RuntimeError as error:
                    missing[peer] = {"the peer itself": str(error)}
                    continue
                missing[peer] = made.missing
                # Without it DGL writes a settings file into the user's home.
                contenders[peer] = Process(script, made.python, options.threads, log, {})
            abouts = {name: process.about for name, process in contenders.items()}
            for name, about in abouts.items():
                if "error" in about:
                    print(f"{name}: {about['error']}", file=sys.stderr)
                    about |= {"variants": {}}
            comparison = Comparison(options, Path(folder), contenders)
            comparison.run()
        finally:
            for process in contenders.values():
                process.end()
    documented = {
        (peer, stage): variants[0]
        for peer, about in abouts.items()
        for stage, variants in about["variants"].items()
        if variants
    }
    peers = [peer for peer in options.peers if peer in contenders]
    text = tables(comparison.rows, peers, documented) + "\n" + footer(options, abouts, missing, load)
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
