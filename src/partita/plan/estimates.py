"""Foresees every strategy, prices it, and ranks them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Float64

from partita.comm.group import sum_bytes
from partita.core.errors import PartitaError, ResourceError
from partita.core.estimates import FileReads
from partita.core.mesh import Mesh
from partita.core.plan import Candidate, Plan, Seconds
from partita.core.records import Counts, Traffic
from partita.parallel.forecast import WorkerEstimate
from partita.parallel.strategies import PLAIN, Strategy
from partita.plan.cost import Cost, Estimate
from partita.plan.dryrun import DryRun
from partita.plan.links import Links
from partita.plan.rates import Rates
from partita.plan.trials import Correction, Trial, divided
from partita.setup.runtime import threads

ERROR, LEAST_ERROR = 0.25, 0.1
"""What estimates of strategies that were not tried out are off by, in the geometric mean: what is thought before there
are trials, which counts as one; and what is thought at least."""

CLEARLY = 0.1
"""Strategies that take no more than this part longer than the fastest one are as fast: what was measured for a second
is no more precise than that, and of many the fastest is rather the luckiest."""

PRECISION, LEAST_STEPS, FAR = 0.02, 2, 2.0
"""Standard error, as a part of it, of the mean of sampled steps that are enough; how many there are at least; and
strategies that seem to take so many times what the best one takes are known less well."""

COLD_PART, MOST_FOLLOWED = 3, 10
"""Where rows come and go, the first of so many parts of the sampled steps begin with few rows kept, if they are of one
epoch; and strategies that are followed to see which rows are kept, besides those with a name."""

CLOSE = 1.15
"""Strategies that took no more than so many times what the best one took are tried twice."""

TRIED_ERROR = 0.07
"""What a trial is off by, so that a second one may show something else."""


@dataclass
class Estimates:
    """What every strategy would take, from some sampled steps, and from those that were tried out.

    Attributes:
        found: of the sampled steps, by strategy.
        refused: why others cannot be used.
        steps: of an epoch.
        sampled_steps: of the dry run, in the first epoch; of strategies that were left out early, fewer.
        rates: what was measured of the model.
        links: what was measured between workers.
        mesh: of any worker.
        trials: of strategies that were tried out.
        memory: bytes that every worker may take; ``None``: any.
        notes: what is to be said of how the steps were foreseen.
    """

    found: Mapping[Strategy, Estimate]
    refused: Mapping[Strategy, PartitaError]
    steps: int
    sampled_steps: int
    rates: Rates
    links: Links
    mesh: Mesh
    trials: dict[Strategy, Trial] = field(default_factory=dict)
    memory: int | None = None
    notes: Sequence[str] = ()

    def foreseen(self, strategy: Strategy) -> Seconds:
        """Seconds of an epoch, of the slowest worker in each step, whatever was tried out."""
        return self.found[strategy].step[0].scaled(self.steps)

    def _latency(self, strategy: Strategy) -> float:
        return self.found[strategy].step[1] * self.steps

    def _share(self, strategy: Strategy) -> float:
        """How many times the steps of the epoch are those that were sampled for a strategy."""
        return self.steps / min(self.steps, self.found[strategy].steps)

    def _shown(self) -> list[tuple[Seconds, float, float]]:
        """Of every strategy that was tried, what was estimated of the steps that were timed, the latency in it, and
        what they took; all as if an epoch had only such steps."""
        return [(*self._as_timed(each, trial), trial.epoch) for each, trial in self.trials.items()]

    def _as_timed(self, strategy: Strategy, trial: Trial) -> tuple[Seconds, float]:
        """Seconds of an epoch, and the latency in them, if all steps were as those that a trial has timed.

        Where rows come and go, a trial begins with none kept, and an epoch takes less than its first steps say.
        """
        estimate = self.found[strategy]
        if not estimate.cold:
            return self.foreseen(strategy), self._latency(strategy)
        seconds, latency = estimate.between(trial.first, trial.first + trial.steps // trial.times)
        return seconds.scaled(self.steps), latency * self.steps

    def took(self, strategy: Strategy, trial: Trial) -> float:
        """Seconds of an epoch, by a trial.

        Steps of an epoch differ from those that were timed by what was foreseen of both, as a part of what they took
        where this is less than foreseen: where it is more, what was not foreseen is alike in all steps.
        """
        if strategy not in self.found:
            return trial.epoch
        timed = self._as_timed(strategy, trial)[0].total
        less = timed - self.foreseen(strategy).total
        return trial.epoch - less * min(1.0, trial.epoch / timed)

    @property
    def correction(self) -> Correction:
        """What trials say of strategies that were not tried."""
        return Correction.fitted(self._shown(), self._least)

    @property
    def _least(self) -> float:
        """Seconds of the strategy that seems to be the fastest."""
        return min(self.foreseen(strategy).total for strategy in self.found)

    @property
    def error(self) -> float:
        """What estimates of strategies that were not tried are off by, as a part of them.

        Of every strategy that was tried: what would be said of it after the other trials, beside what it took.
        """
        tried = self._shown()
        off = [math.log1p(ERROR)]
        for number, (estimated, latency, took) in enumerate(tried):
            others = Correction.fitted([*tried[:number], *tried[number + 1 :]], self._least)
            off.append(math.log(max(others.of(estimated, latency).total, 1e-9) / took))
        return max(LEAST_ERROR, math.expm1(math.hypot(*off) / len(off) ** 0.5))

    def memory_of(self, strategy: Strategy) -> int:
        """Bytes that a worker takes: those that were seen, or what was estimated, corrected by what was seen of others.

        Estimates know of the tensors that layers keep, and not of what lies between, so they are rather too low; and
        so is what was seen where a trial has used memory that one before it has left behind.
        """
        factors = (trial.peak_bytes / self.found[tried].memory_bytes for tried, trial in self.trials.items())
        corrected = int(max([1.0, *factors]) * self.found[strategy].memory_bytes)
        return max(corrected, self.trials[strategy].peak_bytes) if strategy in self.trials else corrected

    def too_big(self) -> dict[Strategy, ResourceError]:
        """Strategies that take more memory than there is."""
        if self.memory is None:
            return {}
        needs = {strategy: self.memory_of(strategy) for strategy in self._distinct}
        return {strategy: _too_big(need, self.memory) for strategy, need in needs.items() if need > self.memory}

    def epochs(self) -> dict[Strategy, Seconds]:
        """Seconds of an epoch, the fastest strategy first, of those that fit into the memory.

        Raises:
            ResourceError: none does.
        """
        correction, found, too_big = self.correction, dict[Strategy, Seconds](), self.too_big()
        if len(too_big) == len(self._distinct):
            raise too_big[min(too_big, key=self.memory_of)]
        for strategy in self._distinct:
            if strategy in too_big:
                continue
            trial = self.trials.get(strategy)
            corrected = correction.of(self.foreseen(strategy), self._latency(strategy))
            found[strategy] = corrected if trial is None else divided(corrected, self.took(strategy, trial))
        return dict(sorted(found.items(), key=lambda each: each[1].total))

    def add(self, strategy: Strategy, trial: Trial) -> None:
        """Note a trial; of a strategy that was tried before, both count."""
        before = self.trials.get(strategy)
        self.trials[strategy] = trial if before is None else before.joined(trial)

    def next_to_try(self, num_epochs: float = math.inf, cost: float = 0.0) -> Strategy | None:
        """The one that seems to be the fastest of those not yet tried, or one that seems as fast and has a name; then
        those that are close to the best, once more, as the machine may have been busy with something else.

        Args:
            num_epochs: of the run.
            cost: seconds that a trial takes.

        Returns:
            The strategy; ``None``: none can win, or what trying it saves is less than what that takes.
        """
        epochs, error = {strategy: epoch.total for strategy, epoch in self.epochs().items()}, self.error
        tried = [strategy for strategy in epochs if strategy in self.trials]
        best = min((epochs[strategy] for strategy in tried), default=float("inf"))
        new = [strategy for strategy in epochs if strategy not in self.trials and epochs[strategy] < (1 + error) * best]
        close = [strategy for strategy in tried if epochs[strategy] < CLOSE * best]
        again = [strategy for strategy in close if self.trials[strategy].times == 1]
        if new:
            found = _best_known([strategy for strategy in new if epochs[strategy] <= (1 + CLEARLY) * epochs[new[0]]])
        elif len(close) > 1 and again:
            found, error = again[0], TRIED_ERROR
        else:
            return None
        others = min((seconds for strategy, seconds in epochs.items() if strategy != found), default=math.inf)
        return None if num_epochs * _saved_by_trying(epochs[found], others, error) < cost else found

    @cached_property
    def _distinct(self) -> list[Strategy]:
        """Of those that come to the very same thing, where seeds lie with their owners, one: that with a name, or else
        the one that comes first in the enumeration."""
        kept, seen = set[Strategy](), set[tuple[Counts, Traffic]]()
        for strategy in sorted(self.found, key=lambda each: not each.is_named):
            estimate = self.found[strategy]
            if (estimate.counts, estimate.traffic) not in seen:
                seen.add((estimate.counts, estimate.traffic))
                kept.add(strategy)
        return [strategy for strategy in self.found if strategy in kept]

    def _chosen(self, epochs: Mapping[Strategy, Seconds]) -> Strategy:
        """The fastest, or one that is as fast and has a name: of those tried out, if any was.

        Where some were tried out, of all others the one that seems fastest is rather one whose estimate is too low, so
        it must be ahead by what estimates are off.
        """
        doubt = 1 + min(self.error, ERROR) if self.trials else 1.0
        takes = {each: epoch.total * (1.0 if each in self.trials else doubt) for each, epoch in epochs.items()}
        least = min(takes.values())
        as_fast = [each for each in sorted(takes, key=takes.__getitem__) if takes[each] <= (1 + CLEARLY) * least]
        tried = [strategy for strategy in as_fast if strategy in self.trials]
        return _best_known(tried or as_fast)

    def _by_link(self, strategy: Strategy, summed: int) -> dict[str, int]:
        """Bytes over each link, with those of sums round a ring."""
        estimate, share = self.found[strategy], self._share(strategy)
        # Of a host's workers one has the next host's as its next.
        leaving = 1 / self.mesh.workers if self.mesh.hosts > 1 else 0.0
        far = share * estimate.far + leaving * summed
        near = share * (estimate.traffic.total - estimate.far) + (1 - leaving) * summed
        return {"same_host": round(near), "other_host": round(far)}

    def plan(
        self, made_for: Mapping[str, Any], approximate: Sequence[Candidate] = (), *, allowed: bool = False
    ) -> Plan:
        """What is handed on: the strategy to take, then the others, the fastest first.

        Args:
            made_for: see :class:`~partita.core.plan.Plan`.
            approximate: what trains another model.
            allowed: that may be chosen.
        """
        candidates, epochs = [], self.epochs()
        chosen = self._chosen(epochs)
        for strategy, epoch in {chosen: epochs[chosen], **epochs}.items():
            estimate, trial, share = self.found[strategy], self.trials.get(strategy), self._share(strategy)
            sent = {kind: round(share * num_bytes) for kind, num_bytes in estimate.traffic.to_json().items()}
            summed = round(share * estimate.gradient_bytes)
            rows = {where: round(share * each) for where, each in estimate.row_sources.items()}
            candidates.append(
                Candidate(
                    strategy=str(strategy),
                    name=strategy.name,
                    epoch=epoch,
                    epoch_bytes={**sent, "gradients": summed},
                    epoch_links=self._by_link(strategy, summed),
                    epoch_rows=rows,
                    counts=estimate.counts.to_json(),
                    foreseen=self.foreseen(strategy).total,
                    memory_bytes=self.memory_of(strategy),
                    tried_steps=0 if trial is None else trial.steps,
                )
            )
        if allowed:
            total = attrgetter("epoch.total")
            first = min([candidates[0], *approximate], key=total)
            others = [each for each in (*candidates, *approximate) if each is not first]
            candidates = [first, *sorted(others, key=total)]
        return Plan(
            candidates=tuple(candidates),
            approximate=() if allowed else tuple(approximate),
            refused={str(strategy): str(error) for strategy, error in {**self.refused, **self.too_big()}.items()},
            steps=self.steps,
            sampled_steps=self.sampled_steps,
            made_for=made_for,
            rates=self.rates.to_json(),
            links=self.links.to_json(),
            notes=tuple(self.notes),
            error=self.error,
        )


def make_estimates(
    dry_run: DryRun,
    mesh: Mesh,
    rates: Rates,
    links: Links,
    *,
    seconds: float,
    memory: int | None = None,
    precise: bool = False,
) -> Estimates:
    """Sample some steps and price every strategy.

    Args:
        dry_run: of the strategies that come into question.
        mesh: of any worker.
        rates: of the model on the machine.
        links: between the workers.
        seconds: how long to sample, at most; one step in any case.
        memory: bytes that every worker may take; strategies that take more are refused. ``None``: any.
        precise: sample no more steps than it takes to know the mean of each strategy's steps to :data:`PRECISION`, and
            after the first one only for strategies that may win, or have a name.

    Raises:
        ConfigError: a link is not known.
    """
    parameter_bytes = sum(p.numel() * p.element_size() for p in dry_run.model.parameters())
    costs = {
        strategy: Cost(
            engine, strategy.axis, mesh, rates, links, parameter_bytes=parameter_bytes, row_bytes=dry_run.row_bytes,
            ahead=dry_run.config.prefetch,
            held=dry_run.config.cache + (dry_run.config.feature_memory or 0) + dry_run.learnt_bytes,
        )
        for strategy, engine in dry_run.engines.items()
    }  # fmt: skip
    found = {strategy: Estimate(Counts.zero(len(rates.stages)), dry_run.num_steps) for strategy in costs}
    summed = mesh.size * sum_bytes(parameter_bytes, mesh.size) if mesh.size > 1 else 0
    sampled = 0
    with threads(1):  # what is done for a strategy is small: others would be woken for it again and again
        for step in dry_run.steps(seconds=seconds):
            sampled += 1
            for strategy, shares in step.items():
                found[strategy].add(costs[strategy], shares, summed)
            if precise and sampled == 1:
                dry_run.keep(_worth_following(found, costs, step) if dry_run.looks_ahead else _may_win(found))
            taken = [[seconds.total for seconds, _ in found[each].taken] for each in dry_run.engines]
            if precise and not dry_run.looks_ahead and _is_precise(np.array(taken).T):
                break
    if dry_run.looks_ahead:
        for estimate in found.values():
            more = estimate.steps > dry_run.num_steps
            estimate.cold = min(dry_run.num_steps, estimate.steps // 2) if more else estimate.steps // COLD_PART
    return Estimates(
        found,
        dry_run.refused,
        dry_run.num_steps,
        min(sampled, dry_run.num_steps),
        rates,
        links,
        mesh,
        memory=memory,
        notes=dry_run.notes,
    )


def _best_known(as_fast: Sequence[Strategy]) -> Strategy:
    """Of strategies that are as fast, the fastest first, the plain one; or the first with a name; or the first.

    There are few with a name, so that luck decides less, and a run begins with the plain one, whatever is planned.
    """
    return min(as_fast, key=lambda strategy: (strategy.name != PLAIN, not strategy.is_named))


def _saved_by_trying(seconds: float, others: float, error: float) -> float:
    """Seconds of an epoch that a trial saves in the mean, as it may show that another strategy is the faster one.

    Args:
        seconds: of an epoch, as they are estimated.
        others: of the fastest other strategy.
        error: what the estimate is off by, as a part of it; the logarithm is taken to be normally distributed.
    """
    if math.isinf(others):
        return 0.0
    deviation = math.log1p(error)
    behind = abs(math.log(seconds / others)) / deviation
    density = math.exp(-(behind**2) / 2) / math.sqrt(2 * math.pi)
    return min(seconds, others) * deviation * (density - behind * math.erfc(behind / math.sqrt(2)) / 2)


def _rows_kept(share: WorkerEstimate) -> WorkerEstimate:
    """What a worker does in a step for which all input rows have been kept."""
    return replace(share, messages=[Traffic(), *share.messages[1:]], far=[Traffic(), *share.far[1:]], files=FileReads())


def _worth_following(
    found: Mapping[Strategy, Estimate], costs: Mapping[Strategy, Cost],
    step: Mapping[Strategy, Sequence[WorkerEstimate]],
) -> set[Strategy]:  # fmt: skip
    """Those for which it is found out which rows are kept: some take long to follow.

    Args:
        found: of a step for which no rows are kept.
        costs: of every strategy; their steps are priced as if all rows were kept.
        step: the same step.
    """
    kept = {each: costs[each].of_step([_rows_kept(share) for share in shares]) for each, shares in step.items()}
    middle = {each: found[each].seconds.total + cost.seconds.total for each, cost in kept.items()}
    best = sorted(middle, key=middle.__getitem__)[:MOST_FOLLOWED]
    return _with_same(found, {*best, *(each for each in found if each.is_named)})


def _may_win(found: Mapping[Strategy, Estimate]) -> set[Strategy]:
    """Those that are not far behind, or have a name; and whatever comes to the very same thing as one of them."""
    least = min(estimate.seconds.total for estimate in found.values())
    near = {each for each, estimate in found.items() if each.is_named or estimate.seconds.total <= FAR * least}
    return _with_same(found, near)


def _with_same(found: Mapping[Strategy, Estimate], kept: set[Strategy]) -> set[Strategy]:
    same = {(found[each].counts, found[each].traffic) for each in kept}
    return {each for each, estimate in found.items() if (estimate.counts, estimate.traffic) in same}


def _is_precise(steps: Float64[np.ndarray, "n S"]) -> bool:
    """Whether the mean of the steps of every strategy that may win is known; seconds of n steps of S strategies."""
    if len(steps) < LEAST_STEPS:
        return False
    means, off = steps.mean(axis=0), steps.std(axis=0, ddof=1) / len(steps) ** 0.5
    return bool((off <= PRECISION * means)[means <= FAR * means.min()].all())


def _too_big(need: int, have: int) -> ResourceError:
    return ResourceError(
        f"a worker needs about {need / 2**20:,.0f} MiB, it may take {have / 2**20:,.0f} MiB",
        where="memory",
        fix="1. Lower --batch-size; 2. lower --fanout or --hidden; 3. lower --cache or --prefetch; "
        "4. use more workers, or raise --memory-per-worker",
    )
