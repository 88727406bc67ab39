"""How workers on views agree: coverage factors, sums of gradients, means of models."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from meters import bytes_sent

from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.core.errors import ConfigError
from partita.isolated.averaging import RunningMean, optimizer_tensors, with_tensors
from partita.isolated.coverage import COVERAGES, deficit, no_correction, resampling, resampling_raw, uniform
from partita.isolated.syncs import SYNCS, GradientSum, ModelAverage, Replica, Sync, SyncSettings

# Coverage


@st.composite
def batches(draw, full=False):
    """Per seed: sampled, d_local, d_global; a neighbor is sampled only where the view has one."""
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        d_global = draw(st.integers(0, 30))
        d_local = d_global if full else draw(st.integers(0, d_global))
        rows.append((draw(st.integers(0, d_local)), d_local, d_global))
    return rows


def tensors(rows):
    return [torch.tensor(column, dtype=torch.int64) for column in zip(*rows)] or [torch.empty(0).long()] * 3


def fractions(rows):
    """The formulas in exact arithmetic: uniform, resampling, and Eq. 12 without its clamp (None: 1 / 0)."""
    shares = [Fraction(local, whole) if whole else Fraction(1) for _, local, whole in rows]
    mean = sum(shares) / len(shares) if shares else Fraction(1)
    seen = [(drawn, local, whole) for drawn, local, whole in rows if drawn]
    total = sum(drawn for drawn, *_ in seen)
    if not seen:
        nothing = Fraction(int(all(local == whole for _, local, whole in rows)))
        return mean, nothing, nothing
    harmonic = Fraction(total) / sum(drawn * Fraction(whole, local) for drawn, local, whole in seen)
    excess = sum((Fraction(whole, local) - 1) * drawn for drawn, local, whole in seen)
    return mean, harmonic, 1 / excess if excess else None


@given(batches())
def test_factors_are_what_the_formulas_say(rows) -> None:
    args = tensors(rows)
    mean, harmonic, raw = fractions(rows)
    assert uniform(*args) == pytest.approx(float(mean), rel=1e-12)
    assert resampling(*args) == pytest.approx(float(harmonic), rel=1e-12)
    assert resampling_raw(*args) == pytest.approx(1.0 if raw is None else min(1.0, float(raw)), rel=1e-12)
    assert no_correction(*args) == 1.0
    assert deficit(*args[1:]) == pytest.approx(1 - float(mean), abs=1e-12)
    for factor in (uniform, resampling, resampling_raw):
        assert 0 <= factor(*args) <= 1
    if any(drawn for drawn, *_ in rows):
        assert min(uniform(*args), resampling(*args), resampling_raw(*args)) > 0
        # The weighted harmonic mean lies between the least and the largest coverage that was sampled.
        seen = [local / whole for drawn, local, whole in rows if drawn]
        assert min(seen) - 1e-12 <= resampling(*args) <= max(seen) + 1e-12


@given(batches(full=True))
def test_full_coverage_is_1_by_every_rule(rows) -> None:
    for name in COVERAGES:
        assert COVERAGES.find(name)(*tensors(rows)) == 1.0


def test_factors_at_the_edges() -> None:
    # Nothing sampled although there is something: 0. Nothing there to be sampled: covered.
    assert resampling(*tensors([(0, 0, 4), (0, 0, 0)])) == resampling_raw(*tensors([(0, 0, 4)])) == 0
    assert resampling(*tensors([(0, 0, 0)])) == 1
    assert uniform(*tensors([(0, 0, 4), (0, 0, 0)])) == 0.5
    # Neighbors of the halo were sampled, and none is in the parts.
    assert resampling(*tensors([(3, 0, 4)])) == resampling_raw(*tensors([(3, 0, 4)])) == 0
    # Facts R8: half coverage, 1000 seeds of 10 sampled neighbors.
    half = tensors([(10, 20, 40)] * 1000)
    assert (resampling(*half), uniform(*half)) == (0.5, 0.5)
    assert resampling_raw(*half) == pytest.approx(1e-4)
    for wrong in [(0, 5, 4), (-1, 1, 2), (1, -1, 2), (1, 0, 0)]:
        with pytest.raises(ValueError, match="seed 1 of the batch"):
            resampling(*tensors([(0, 0, 0), wrong]))
    with pytest.raises(ConfigError, match="Did you mean 'uniform'"):
        COVERAGES.find("unifrom")


# Sums of gradients


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_gradients_are_weighed_and_summed(workers) -> None:
    """As one process would on all batches, each worker's part multiplied with its factor."""
    torch.manual_seed(0)
    x, w = torch.randn(12, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    degrees = [(2, 3 + worker, 4 + 2 * worker) for worker in range(workers)]
    cuts = [0, *range(1, workers), 12]  # uneven shares
    expected = torch.zeros(5, dtype=torch.float64)
    for worker, row in enumerate(degrees):
        expected += x[cuts[worker] : cuts[worker + 1]].sum(0) / 12 * resampling(*tensors([row]))

    def work(context):
        sync = SYNCS.find("gradient-sum")(SyncSettings(coverage="resampling"))
        used, unused = w.clone().requires_grad_(), torch.ones(2, requires_grad=True)
        frozen = torch.ones(2)
        mine = x[cuts[context.mesh.rank] : cuts[context.mesh.rank + 1]]
        ((mine @ used).sum() / 12).backward()
        factor = sync.factor(*tensors([degrees[context.mesh.rank]]))
        sync.join_gradients([used, unused, frozen], factor, context.group("all"))
        assert torch.equal(unused.grad, torch.zeros(2))
        assert frozen.grad is None
        return used.grad

    found = ThreadGroups(workers).run(work)
    for gradient in found:
        assert torch.equal(gradient, found[0])
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=0)


# Means of models


def model_of(seed, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(3, 4, generator=random, dtype=torch.float64).to(dtype),
        "b": torch.randn((), generator=random, dtype=torch.float64).to(dtype),
        "batches": torch.tensor(seed * 10),
    }


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [1, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_become_their_weighted_mean(workers, parts, dtype) -> None:
    weights = [[5, 0, 3, 8, 1, 2, 0][part] for part in range(parts)]
    models = [model_of(part + 1, dtype) for part in range(parts)]
    if parts > 1:
        models[1]["b"] = torch.tensor(float("nan"), dtype=dtype)  # weight 0: not looked at

    def work(context):
        mine = range(context.mesh.rank, parts, workers)  # with more workers than parts some have none
        members = [Replica(models[part], {"state": {}, "param_groups": []}, weights[part]) for part in mine]
        joined, states = SYNCS.find("model-average")(SyncSettings()).join_models(members, context.group("all"))
        assert states == [member.optimizer for member in members]
        return joined

    groups = ThreadGroups(workers)
    found = groups.run(work)
    share = [weight / sum(weights) for weight in weights]
    used = [part for part in range(parts) if weights[part]]
    for name in models[0]:
        expected = sum(share[part] * models[part][name].double() for part in used)
        for state in found:
            assert torch.equal(state[name], found[0][name])  # the same bits everywhere
        if name == "batches":
            assert found[0][name].item() == round(expected.item())
        else:
            assert found[0][name].dtype == dtype
            close = 1e-7 if dtype == torch.float32 else 1e-14
            torch.testing.assert_close(found[0][name].double(), expected, rtol=close, atol=close)
    sent = bytes_sent(groups)
    assert {kind for kind, count in sent.items() if count} == ({"gradients", "metadata"} if workers > 1 else set())


@pytest.mark.parametrize("weights", [(1, 1, 1), (7, 2, 123457)])
def test_equal_models_stay_what_they_are(weights) -> None:
    mean = RunningMean()
    for weight in weights:
        mean.add(model_of(4), weight)
    for name, tensor in mean.over(Group.alone()).items():
        assert torch.equal(tensor, model_of(4)[name])


def stepped(seed, steps):
    """A small model after some steps of Adam, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("rule", ["keep", "reset", "average"])
def test_optimizer_states(rule) -> None:
    weights = [2, 6, 0]
    pairs = [stepped(seed, steps) for seed, steps in ((0, 3), (1, 5), (2, 0))]  # a part without seeds never steps

    def work(context):
        model, optimizer = pairs[context.mesh.rank]
        member = Replica(model.state_dict(), optimizer.state_dict(), weights[context.mesh.rank])
        sync = SYNCS.find("model-average")(SyncSettings(optimizer=rule))
        joined, (state,) = sync.join_models([member], context.group("all"))
        return joined, state, member.optimizer

    found = ThreadGroups(3).run(work)
    first, second = (optimizer_tensors(before) for _, _, before in found[:2])
    for (joined, state, before), (model, optimizer) in zip(found, pairs):
        assert state["param_groups"] == before["param_groups"]
        if rule == "keep":
            assert state is before
        elif rule == "reset":
            assert state["state"] == {}
        else:
            assert state["state"].keys() == {0, 1}
            assert state["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}
            for name, tensor in optimizer_tensors(state).items():
                torch.testing.assert_close(tensor, 0.25 * first[name] + 0.75 * second[name])
        model.load_state_dict(joined)
        optimizer.load_state_dict(state)
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()


def test_optimizer_tensors_round_trip() -> None:
    _, optimizer = stepped(0, 2)
    state = optimizer.state_dict()
    again = with_tensors(state, optimizer_tensors(state))
    assert again.keys() == state.keys()
    assert again["state"].keys() == state["state"].keys()
    for number, slots in state["state"].items():
        for slot, value in slots.items():
            assert torch.equal(again["state"][number][slot], value)
    assert optimizer_tensors({"state": {0: {"momentum_buffer": None}}, "param_groups": []}) == {}


def test_means_that_cannot_be() -> None:
    mean = RunningMean()
    mean.add({"a": torch.ones(2)}, 0)
    with pytest.raises(ValueError, match="no member with a weight above 0"):
        mean.over(Group.alone())
    with pytest.raises(ValueError, match=r"'a' is torch.float32 \(3,\) here"):
        mean.add({"a": torch.ones(3)}, 1)
    with pytest.raises(ValueError, match="weight of -1"):
        mean.add({}, -1)

    def work(context):
        mine = RunningMean()
        mine.add({"a": torch.ones(2 + context.mesh.rank)}, 1)
        with pytest.raises(ValueError, match="on one worker"):
            mine.over(context.group("all"))

    ThreadGroups(2).run(work)


def test_when_models_are_joined() -> None:
    sync = SYNCS.find("model-average")(SyncSettings(every=3))
    assert [epoch for epoch in range(8) if sync.due(epoch, 8)] == [2, 5, 7]
    assert not any(SYNCS.find("gradient-sum")(SyncSettings()).due(epoch, 8) for epoch in range(8))
    with pytest.raises(RuntimeError, match="no models to average"):
        SYNCS.find("gradient-sum")(SyncSettings()).join_models([], Group.alone())


def test_names_and_settings() -> None:
    for name, every_step in (("gradient-sum", True), ("model-average", False)):
        sync = SYNCS.find(name)(SyncSettings())
        assert isinstance(sync, Sync)
        assert sync.every_step is every_step
    assert SYNCS.find("model-average")(SyncSettings()).factor(*tensors([(1, 1, 2)])) == 1.0
    gradient = torch.ones(2, requires_grad=True)
    SYNCS.find("model-average")(SyncSettings()).join_gradients([gradient], 0.5, Group.alone())
    assert gradient.grad is None
    with pytest.raises(ConfigError, match="Did you mean 'gradient-sum'"):
        SYNCS.find("gradient_sum")(SyncSettings())
    with pytest.raises(ConfigError, match="no coverage correction 'half'"):
        GradientSum(SyncSettings(coverage="half"))
    with pytest.raises(ConfigError, match="Give at least 1"):
        ModelAverage(SyncSettings(every=0))
    with pytest.raises(ConfigError, match="optimizer_state"):
        ModelAverage(SyncSettings(optimizer="forget"))
    with pytest.raises(ConfigError, match="already"):
        SYNCS.register("gradient-sum", ModelAverage)
    SYNCS.register("mine", GradientSum)
    assert isinstance(SYNCS.find("mine")(SyncSettings()), GradientSum)
    SYNCS.remove("mine")
