"""``train``, ``evaluate``, ``predict``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli.options import Json, Trust, config_options, with_options
from partita.cli.shell import INTERRUPTED, finish, print_table, say, shown, tell
from partita.config import Config
from partita.core.errors import ConfigError, printable
from partita.core.machine import require_room_for_libraries
from partita.core.options import MOST_NEIGHBORS, size_of

if TYPE_CHECKING:
    from partita.runs.summary import RunSummary

StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="A graph store with the same features (default: the one the run was trained on)."),
]
Workers = Annotated[int, typer.Option("--workers", min=1, max=2**12, help="Worker processes on this machine.")]
Memory = Annotated[str | None, typer.Option("--memory-limit", help="Private memory for buffers, for instance 2GiB.")]

_TRAIN_HELP = """Train a model on a graph store.

Examples:

    partita train graph --out run

    partita train graph --out run --model gat --layers 2 --fanout 10,10 --epochs 20

    partita train graph --out run --model gcn --fanout -1 --config run.yaml

    partita train graph2 --out run --workers 2 --preset gsplit

    partita train graph4 --out run --workers 2 --preset grappa

    partita train graph --out runs --seeds 0,1,2

    partita train --resume run --epochs 40

    partita train graph --out run --resume auto
"""
_EVALUATE_HELP = """Evaluate a run on a split of its store or another one, with all neighbors of every node.

Examples:

    partita evaluate run

    partita evaluate run --split val --json

    partita evaluate run --store other-graph --split all

    partita evaluate run --workers 2
"""
_PREDICT_HELP = """Write the model's prediction for every node, by your own node ids, in the order of ingest.

Examples:

    partita predict run --out predictions.parquet

    partita predict run --out test.csv --split test

    partita predict run --out predictions.csv --store other-graph

    partita predict run --out predictions.parquet --probabilities --labels --splits

    partita predict run --out vectors.npy --embeddings

    partita predict run --out predictions.parquet --workers 2

Of a run on links, the best new neighbors of nodes, or the scores of pairs:

    partita predict run --links 10 --out new.csv --nodes users.csv

    partita predict run --pairs pairs.csv --out scores.csv
"""


def train(
    store: Annotated[Path | None, typer.Argument(help="The graph store to train on.", show_default=False)] = None,
    *,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder to create.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML file of settings; options take precedence.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Resume this run; auto (with --out): resume the run in --out, or start it if there is none.",
        ),
    ] = None,
    placements: Annotated[
        str | None, typer.Option("--placements", help="Strategy as one placement per layer, input side first.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Plan file (partita plan --out): use its best strategy.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in --out already.")] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", help="One run per seed, for instance 0,1,2, in OUT/seed-0 ...; then mean and deviation."
        ),
    ] = None,
    trust: Trust = None,
    json: Json = False,
    **settings: Any,
) -> None:
    """Train."""
    if placements is not None:
        if settings.get("strategy") is not None:
            raise ConfigError("--strategy and --placements mean the same setting", fix="Give one of them")
        settings["strategy"] = placements
    if seeds is not None:
        _train_seeds(seeds, store, out, config, resume, plan, settings, trust=trust, overwrite=overwrite, as_json=json)
        return
    parsed = _parsed(store, out, config, resume, plan, settings, trust)
    status, path, leads = _train_one(
        parsed, store, out, resume, plan, settings, trust=trust, overwrite=overwrite, quiet=json
    )
    if leads:
        from partita.runs.folder import RunFolder
        from partita.runs.summary import RunSummary

        folder = RunFolder.open(path)
        _print_run(RunSummary(folder.path, status, folder.read_record()), as_json=json)
    elif status == "interrupted":  # a launcher that starts workers again must not take this for success
        sys.exit(INTERRUPTED)


def _train_seeds(
    text: str,
    store: Path | None,
    out: Path | None,
    config: Path | None,
    resume: Path | None,
    plan: Path | None,
    settings: dict[str, Any],
    *,
    trust: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """One run after the other, each with a seed of its own, and what they came to together.

    Raises:
        ConfigError: the seeds are none, or exclude another option.
        RunError: one of the runs is there already.
    """
    from partita.core.options import whole_numbers
    from partita.report.terminal import seeds_table
    from partita.runs.folder import RunFolder
    from partita.runs.seeds import require_free, run_of_seed, summarize
    from partita.runs.summary import RunSummary

    try:
        seeds = whole_numbers(text)
    except ValueError as error:
        raise ConfigError(str(error), where="seeds") from None
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"a seed occurs twice: {text}", where="seeds", fix="Give each seed once")
    if resume is not None:
        fix = "Resume one of its runs: partita train --resume OUT/seed-0"
        raise ConfigError("--seeds starts new runs", where="seeds", fix=fix)
    if settings.get("seed") is not None:
        raise ConfigError("--seed and --seeds exclude each other", where="seeds", fix="Give one of them")
    if "RANK" in os.environ:
        fix = "Start torchrun once for each --seed, or use --workers"
        raise ConfigError("--seeds starts its runs one after the other, torchrun starts one", where="seeds", fix=fix)
    parsed = [_parsed(store, out, config, resume, plan, {**settings, "seed": seed}, trust) for seed in seeds]
    assert out is not None
    require_free(out, seeds, overwrite=overwrite)
    for number, (seed, of_seed) in enumerate(zip(seeds, parsed, strict=True), start=1):
        path = run_of_seed(out, seed)
        if not as_json:
            sys.stderr.write(f"partita: seed {seed}, run {number} of {len(seeds)}: {printable(str(path))}\n")
        status, _, _ = _train_one(
            of_seed,
            store,
            path,
            None,
            plan,
            {**settings, "seed": seed},
            trust=trust,
            overwrite=overwrite,
            quiet=as_json,
        )
        if status == "interrupted":
            _print_run(RunSummary(path, status, RunFolder.open(path).read_record()), as_json=as_json)
    summary = summarize(out, seeds)
    if as_json:
        finish({"out": str(out), **summary}, "Runs", as_json=True)
        return
    print_table(seeds_table(summary))
    runs = " ".join(str(run_of_seed(out, seed)) for seed in seeds)
    tell(f"Next: partita report {runs} --out report.html")


def _train_one(
    parsed: Config,
    store: Path | None,
    out: Path | None,
    resume: Path | None,
    plan: Path | None,
    settings: dict[str, Any],
    *,
    trust: str | None,
    overwrite: bool,
    quiet: bool,
) -> tuple[str, str, bool]:
    """What :func:`train_worker` returns."""
    resume, given = (None, sorted(parsed.model_fields_set)) if _is_auto(resume, out) else (resume, None)
    arguments: dict[str, Any] = {
        "store": None if store is None else str(store),
        "out": None if out is None else str(out),
        "resume": None if resume is None else str(resume),
        "given": given,
        "config": parsed.model_dump(mode="json"),
        "settings": {name: value for name, value in settings.items() if value is not None},
        "plan": None if plan is None else str(plan),
        "trust": trust,
        "overwrite": overwrite,
        "quiet": quiet,
    }
    return _train_on_workers(parsed, resume, settings, arguments)


def _parsed(
    store: Path | None,
    out: Path | None,
    config: Path | None,
    resume: Path | None,
    plan: Path | None,
    settings: dict[str, Any],
    trust: str | None,
) -> Config:
    """The settings of a new run, or of one that may be there already; the defaults where one goes on.

    Raises:
        ConfigError: a setting is bad, something is missing, or options exclude each other.
    """
    from partita.core.plan import Plan

    auto = _is_auto(resume, out)
    if auto and settings.get("deal_parts") is None:
        settings = {**settings, "deal_parts": True}
    if resume is not None and not auto:
        if out is not None or config is not None or plan is not None:
            fix = "Leave out --out, --config and --plan; or write --resume auto, to start the run where it is not there"
            raise ConfigError("--resume continues in the run's own folder", fix=fix)
        return Config.make({}, where="command line")
    if store is None or out is None:
        missing = "a store" if store is None else "--out"
        raise ConfigError(f"{missing} is missing", fix="Write: partita train STORE --out RUN")
    if plan is not None:
        Plan.load(plan, trust=trust)  # complains before workers are started
    if config is None:
        return Config.make(settings, where="command line")
    notes = list[str]()
    parsed = Config.load(config, settings, notes=notes, trust=trust)
    say(notes)
    return parsed


def _is_auto(resume: Path | None, out: Path | None) -> bool:
    """Whether a run is to be gone on with if it is there, and begun otherwise."""
    return out is not None and str(resume) == "auto"


def _train_on_workers(
    parsed: Config, resume: Path | None, settings: dict[str, Any], arguments: dict[str, Any]
) -> tuple[str, str, bool]:
    """What :func:`train_worker` returns, in this process or in those that it starts."""
    require_room_for_libraries()
    if "RANK" in os.environ:  # by torchrun, one process a worker; some may not see the run folder
        return train_worker(None, **arguments)
    found = parsed
    if resume is not None:
        from partita.runs.folder import RunFolder

        changes = {name: settings.get(name) for name in ("workers", "device", "heartbeat")}
        found = Config.load(RunFolder.open(resume).config, changes, trust=arguments["trust"])
    workers = found.workers
    if workers == 1:
        return train_worker(None, **arguments)
    if not arguments["quiet"]:
        sys.stderr.write(f"partita: starting {workers} workers\n")
        sys.stderr.flush()
    from partita.comm.launch import launch
    from partita.comm.local import workers_ready
    from partita.train.purposes import PURPOSES

    with workers_ready("partita.train.trainer"), shown(quiet=True):
        if resume is None:  # where torch is imported already, which takes longer than the check
            new = {name: arguments[name] for name in ("store", "out", "config")}
            new["overwrite"] = arguments["overwrite"] or arguments["given"] is not None
            launch("partita.train.check:check_on_worker", 1, arguments=new)
        status, path, _ = launch(
            "partita.cli.runs:train_worker", workers, arguments={**arguments, "terminal": sys.stderr.isatty()},
            threads=parsed.threads, device=found.device, purposes=PURPOSES, heartbeat=found.heartbeat,
        )  # fmt: skip
    return status, path, True


def _print_run(summary: RunSummary, *, as_json: bool) -> None:
    """Print what a run came to; exits where it was interrupted."""
    if as_json:
        finish({"run": str(summary.path), **summary.record}, "Run", as_json=True)
    else:
        from partita.report.records import of_files
        from partita.report.terminal import run_table

        with of_files([summary.path]):
            table = run_table(summary.record)
        print_table(table)
    if summary.status == "interrupted":
        trusting = " --trust imports" if summary.names_code else ""
        path = printable(str(summary.path))
        sys.stderr.write(f"partita: stopped and saved. Continue with: partita train --resume {path}{trusting}\n")
        sys.exit(INTERRUPTED)
    if not as_json:
        links = " --links 10" if "decoder" in summary.record["model"] else ""
        tell(
            f"Next: partita evaluate {summary.path}, partita predict {summary.path}{links} --out predictions.csv, or "
            f"partita report {summary.path} --out report.html"
        )


def train_worker(
    context: Any,
    *,
    store: str | None,
    out: str | None,
    resume: str | None,
    given: list[str] | None,
    config: dict[str, Any],
    settings: dict[str, Any],
    plan: str | None,
    trust: str | None,
    overwrite: bool,
    quiet: bool,
    terminal: bool | None = None,
) -> tuple[str, str, bool]:
    """Train in this process, as one of several workers or alone.

    Args:
        context: of this worker; ``None``: see :class:`partita.Trainer`.
        store: path of the store.
        out: the run folder to make.
        resume: the run folder to go on with instead.
        given: names of the settings that were asked for, where the run in ``out`` is gone on with if it is there.
        config: all settings of a new run.
        settings: those to change when resuming.
        plan: file of the plan to follow.
        trust: what the run folder that is gone on with may do.
        overwrite: replace a run that is in ``out`` already.
        quiet: show nothing.
        terminal: whether standard error is shown on a terminal; ``None``: found out.

    Returns:
        Status and path of the run, and whether this worker leads.
    """
    from partita import Trainer
    from partita.core.plan import Plan
    from partita.train.elastic import go_on_or_begin

    quiet = quiet or (context is not None and context.mesh.rank > 0) or int(os.environ.get("RANK", "0")) > 0
    with shown(quiet=quiet, terminal=terminal) as console:
        if resume is not None:
            trainer = Trainer.resume(resume, store=store, trust=trust, context=context, **settings)
        else:
            assert store is not None
            assert out is not None
            made = None if plan is None else Plan.load(plan, trust=trust)
            parsed = Config.make(config)
            if given is not None:
                trainer = go_on_or_begin(
                    store, out=out, config=parsed, given=given, plan=made, trust=trust, context=context
                )
            else:
                trainer = Trainer(store, out=out, config=parsed, plan=made, overwrite=overwrite, context=context)
        if console is not None:
            from partita.report.terminal import RunDisplay

            display = RunDisplay(console, trainer.job.config.epochs, trainer.job.metric)
            trainer.recorder.callbacks = (*trainer.recorder.callbacks, display.show)
        summary = trainer.fit(progress=False)
    return summary.status, str(summary.path), trainer.job.team.leads


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    *,
    split: Annotated[str, typer.Option(help="Which nodes or links; all for all nodes that have a label.")] = "test",
    store: StorePath = None,
    trust: Trust = None,
    workers: Workers = 1,
    eval_negatives: Annotated[
        int | None,
        typer.Option(
            "--eval-negatives",
            min=0,
            max=MOST_NEIGHBORS,
            help="Of a run on links: rank each end of an edge among so many sampled nodes of its type; 0: among all "
            "(default: as in training).",
        ),
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(
            "--candidates",
            help="Of a run on links, in place of a split: the links of an .npz file (source, target, relation), ranked "
            "among the nodes that it gives for their ends (target_candidates, source_candidates).",
        ),
    ] = None,
    memory_limit: Memory = None,
    json: Json = False,
) -> None:
    """Evaluate."""
    options = {"run": run, "split": split, "store": store, "memory_limit": memory_limit, "trust": trust}
    options |= {"eval_negatives": eval_negatives, "candidates": candidates}
    result = _infer("evaluate", workers, options, quiet=json)
    if result is None:
        return
    relations = {} if json else result.pop("relations", {})
    times = [] if json else result.pop("times", [])
    finish(result, f"{run} on {split if candidates is None else candidates.name}", as_json=json)
    if relations:
        from partita.report.terminal import relations_table

        print_table(relations_table(relations))
    if times:
        from partita.report.terminal import times_table

        print_table(times_table(times))


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="A .parquet or .csv file; .npy for embeddings alone.")],
    split: Annotated[str | None, typer.Option(help="Only the nodes of this split.")] = None,
    node_type: Annotated[
        str | None,
        typer.Option(
            help="Of a typed graph only the nodes of this type; default those that have labels, of links all."
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probabilities of all classes.")
    ] = False,
    logits: Annotated[bool, typer.Option("--logits", help="Also write the model's output before softmax.")] = False,
    labels: Annotated[bool, typer.Option("--labels", help="Also write the true label.")] = False,
    splits: Annotated[bool, typer.Option("--splits", help="Also write the split of each node.")] = False,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Also write the output of the last hidden layer.")
    ] = False,
    links: Annotated[
        int | None,
        typer.Option("--links", min=1, max=10**6, help="Of a run on links: so many new neighbors of each node."),
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option("--pairs", help="Of a run on links: score the pairs of nodes in this table.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", help="With --links: whose neighbors, a file of ids or a split (default: all)."),
    ] = None,
    relation: Annotated[
        str | None, typer.Option("--relation", help="Of a typed graph the relation of new links, or of pairs.")
    ] = None,
    side: Annotated[
        str, typer.Option("--side", help="With --links: look for tails, where links lead to, or for heads.")
    ] = "tail",
    store: StorePath = None,
    trust: Trust = None,
    workers: Workers = 1,
    memory_limit: Memory = None,
    json: Json = False,
) -> None:
    """Predict."""
    wanted = {"probabilities": probabilities, "logits": logits, "labels": labels, "splits": splits}
    options: dict[str, Any] = {
        "run": run,
        "out": out,
        "split": split,
        "node_type": node_type,
        **wanted,
        "embeddings": embeddings,
        "store": store,
        "trust": trust,
    }
    verb = "predict"
    if links is not None or pairs is not None:
        for name in (*wanted, "embeddings", "split", "node_type"):
            if options[name]:
                raise ConfigError(f"links have no {name}", where=name, fix="Leave it out")
        verb = "predict_links"
        options = {name: options[name] for name in ("run", "out", "store", "trust")}
        options |= {"links": links, "pairs": pairs, "nodes": nodes, "relation": relation, "side": side}
    elif nodes is not None or relation is not None:
        raise ConfigError("nodes and relations are for links", where="predict", fix="Give --links or --pairs")
    result = _infer(verb, workers, {**options, "memory_limit": memory_limit}, quiet=json)
    if result is not None:
        finish(result, "Predictions", as_json=json)


def _infer(verb: str, workers: int, options: dict[str, Any], *, quiet: bool) -> dict[str, Any] | None:
    """Evaluate or predict, alone or with others; the result, or ``None`` where another worker of torchrun shows it."""
    if options["memory_limit"] is not None:
        size_of(options["memory_limit"], "--memory-limit")  # complains before libraries are imported
    require_room_for_libraries()
    if workers == 1 or "RANK" in os.environ:  # alone, or started by torchrun, one process a worker
        result = infer_worker(None, verb=verb, options={**options, "workers": workers}, quiet=quiet)
        return result if _leads(None) else None
    from partita.comm.launch import launch
    from partita.comm.local import workers_ready

    arguments = {"verb": verb, "options": options, "quiet": quiet, "terminal": sys.stderr.isatty()}
    with workers_ready(f"partita.infer.{verb}"), shown(quiet=True):
        return launch("partita.cli.runs:infer_worker", workers, arguments=arguments)


def infer_worker(
    context: Any, *, verb: str, options: dict[str, Any], quiet: bool, terminal: bool | None = None
) -> dict[str, Any]:
    """Evaluate or predict in this process, as one of several workers or alone.

    Args:
        context: of this worker; ``None``: see :func:`partita.evaluate`.
        verb: ``"evaluate"``, ``"predict"`` or ``"predict_links"``.
        options: of the function of that name.
        quiet: show nothing.
        terminal: whether standard error is shown on a terminal; ``None``: found out.

    Returns:
        What the verb prints.
    """
    with shown(quiet=quiet or not _leads(context), terminal=terminal):
        if verb == "evaluate":
            from partita import evaluate as evaluate_run

            return evaluate_run(**options, context=context)
        if verb == "predict_links":
            from partita import predict_links as predict_links_run

            return predict_links_run(**options, context=context).to_json()
        from partita import predict as predict_run

        return predict_run(**options, context=context).to_json()


def _leads(context: Any) -> bool:
    """Whether this process is the first worker, or the only one."""
    return context.mesh.rank == 0 if context is not None else int(os.environ.get("RANK", "0")) == 0


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    app.command(help=_TRAIN_HELP)(with_options(train, config_options()))
    app.command(help=_EVALUATE_HELP)(evaluate)
    app.command(help=_PREDICT_HELP)(predict)
