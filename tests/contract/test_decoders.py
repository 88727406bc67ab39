"""What must be true of every decoder of the table, whatever it computes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import partita
from partita.core.errors import ConfigError
from partita.nn import matmul
from partita.nn.decoders import DECODERS, Decoder, DistMult, ProductDecoder, base, build_decoder, from_description
from partita.nn.decoders.cubes import cubes
from partita.nn.decoders.side_by_side import side_by_side

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
WIDTH, RELATIONS, ROWS, CANDIDATES = 6, 4, 5, 7
VARIANTS = [(name, {}) for name in DECODERS] + [("transe", {"p": 2.0, "gamma": 3.0}), ("mlp", {"inner_width": 3})]
READ_RELATIONS = [name for name in DECODERS if DECODERS.find(name).reads_relations]
VARIANTS += [(name, {"reciprocal": True}) for name in READ_RELATIONS]
every_decoder = pytest.mark.parametrize(("name", "options"), VARIANTS)
every_side = pytest.mark.parametrize("side", ["tail", "head"])


def build(name: str, options: dict) -> Decoder:
    decoder = build_decoder(name, WIDTH, RELATIONS, **options)
    decoder.reset(17)
    return decoder.double()


def some_rows(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(shared: bool) -> tuple[Tensor, Tensor, Tensor]:
    relations = torch.tensor([3, 0, 3, 1, 0])  # unsorted, one twice, one never
    return some_rows(ROWS), relations, some_rows(*((CANDIDATES,) if shared else (ROWS, CANDIDATES)), seed=2)


def one_by_one(decoder: Decoder, side: str, given: Tensor, relations: Tensor, candidates: Tensor) -> Tensor:
    candidates = candidates.expand(len(given), -1, -1) if candidates.ndim == 2 else candidates
    columns = []
    for k in range(candidates.shape[1]):
        ends = (given, candidates[:, k]) if side == "tail" else (candidates[:, k], given)
        columns.append(decoder.toward(side, *ends, relations))
    return torch.stack(columns, dim=1)


@every_decoder
@every_side
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("block", [base.BLOCK_VALUES, 2 * CANDIDATES * WIDTH, 1])
def test_scores_against_candidates_are_those_of_pairs(monkeypatch, name, options, side, shared, block) -> None:
    """And so are the gradients, in blocks of any size."""
    monkeypatch.setattr(base, "BLOCK_VALUES", block)
    decoder = build(name, options)
    given, relations, candidates = inputs(shared)
    tensors = [given.requires_grad_(), candidates.requires_grad_(), *decoder.parameters()]
    found = decoder.against(side, given, relations, candidates)
    wanted = one_by_one(decoder, side, given, relations, candidates)
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert found.std() > 1e-3
    weight = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    for mine, theirs in zip(
        torch.autograd.grad((found * weight).sum(), tensors),
        torch.autograd.grad((wanted * weight).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@every_decoder
@every_side
@pytest.mark.parametrize("shared", [True, False])
def test_gradients(name, options, side, shared) -> None:
    decoder = build(name, options)
    given, relations, candidates = inputs(shared)

    def scores(given: Tensor, candidates: Tensor, *parameters: Tensor) -> Tensor:
        names = dict(zip(dict(decoder.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(Against(decoder), names, (side, given, relations, candidates))

    tensors = [each.detach().clone().requires_grad_() for each in (given, candidates, *decoder.parameters())]
    torch.autograd.gradcheck(scores, tensors)


class Against(torch.nn.Module):
    """``against`` as what is called, under the parameters' own names."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.__dict__["decoder"] = decoder
        self._parameters, self._modules = decoder._parameters, decoder._modules

    def forward(self, *args):
        return self.decoder.against(*args)


@every_decoder
@pytest.mark.parametrize("sides", [("tail",), ("head",), ("tail", "head"), ("head", "tail"), ()])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("more", [True, False])
def test_scores_of_all_sides_are_those_of_each(name, options, sides, shared, loops, more) -> None:
    """And so are the gradients, those of second backward passes included; with or without one more column."""
    decoder, relations = build(name, options), torch.tensor([3, 0, 3, 1, 0])
    heads, tails = some_rows(ROWS, seed=3).requires_grad_(), some_rows(ROWS, seed=4).requires_grad_()
    shape = (CANDIDATES,) if shared else (ROWS, CANDIDATES)
    candidates = {side: some_rows(*shape, seed=5 + at).requires_grad_() for at, side in enumerate(sides)}
    given = {"tail": heads, "head": tails}
    wanted = [decoder.toward(sides[0] if sides else "tail", heads, tails, relations)[:, None]]
    for side, rows in candidates.items():
        wanted.append(decoder.against(side, given[side], relations, rows))
        wanted += [decoder.toward(side, given[side], given[side], relations)[:, None]] * loops
    tensors = [heads, tails, *candidates.values(), *decoder.parameters()]
    last = some_rows(ROWS)[:, 0].clone().requires_grad_() if more else None
    if last is not None:
        wanted.append(last[:, None])
        tensors.append(last)
    found, wanted = decoder.scores(heads, tails, relations, candidates, last, loops=loops), torch.cat(wanted, dim=1)
    torch.testing.assert_close(found, wanted, **CLOSE)
    for seed in (1, 2):
        weight = torch.rand(found.shape, generator=torch.Generator().manual_seed(seed), dtype=found.dtype)
        for mine, theirs in zip(
            torch.autograd.grad((found * weight).sum(), tensors, retain_graph=True),
            torch.autograd.grad((wanted * weight).sum(), tensors, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, **CLOSE)


WAYS = {"torch": 5e-6, "onednn": 5e-6, "onednn-all": 5e-6, "bf16": 3e-2, "rows of bf16": 3e-2}
"""Who multiplies, and how far off scores and gradients may be, to their norm."""


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("way", WAYS)
def test_scores_and_gradients_whoever_multiplies(name, way) -> None:
    """Of as many rows and columns as backends take; beside those in float64."""
    if way.startswith("onednn") and not matmul.onednn_works():
        pytest.skip("this PyTorch has no oneDNN")
    rows, number, width, draw = 600, 48, 32, torch.Generator().manual_seed(1)
    relations = torch.randint(RELATIONS, (rows,), generator=draw)
    wide = build_decoder(name, width, RELATIONS)
    wide.reset(17)
    given = [torch.randn(count, width, generator=draw) for count in (rows, rows, number, number)]
    weight = torch.randn(rows, 1 + 2 * number + 2 + 1, generator=draw)
    results = []
    for decoder, dtype in ((wide, torch.bfloat16 if "rows" in way else torch.float32), (wide, torch.float64)):
        exact = dtype is torch.float64
        decoder = decoder.double() if exact else decoder
        tensors = [each.to(torch.bfloat16).to(dtype) if "rows" in way else each.to(dtype) for each in given]
        tensors = [each.detach().clone().requires_grad_() for each in tensors]
        heads, tails, *others = tensors
        backend = way if way in matmul.BACKENDS and not exact else "torch"
        with matmul.use(backend), torch.autocast("cpu", torch.bfloat16, enabled="bf16" in way and not exact):
            candidates = dict(zip(("tail", "head"), others, strict=True))
            found = decoder.scores(heads, tails, relations, candidates, heads[:, 0], loops=True)
            (found * weight.to(found.dtype)).sum().backward()
        assert exact or "rows" in way or found.dtype == torch.float32
        results.append([found.detach(), *(each.grad for each in tensors), *(p.grad for p in decoder.parameters())])
        decoder.zero_grad()
    for found, wanted in zip(*results, strict=True):
        if found is not None or wanted is not None:
            signs = 3 if name == "mlp" else 1  # those of rounded numbers are others now and then
            assert (found.double() - wanted).norm() <= signs * WAYS[way] * wanted.norm()


def test_scores_beside_each_other_have_gradients() -> None:
    shapes = [(4, 3), (4, 3), (4, 3), (5, 3), (2, 3)]
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda true, q, p, rows, more: side_by_side(true, [q, p], [rows, more]), tensors)
    others = [torch.randn((4, 3), generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2)]
    assert torch.autograd.gradcheck(
        lambda true, q, p, rows, more, *each: side_by_side(true, [q, p], [rows, more], each), (*tensors, *others)
    )


class Doubled(DistMult):
    """A user's own, whose scores of triples are others."""

    def forward(self, heads, tails, relations):
        return 2 * super().forward(heads, tails, relations)


class Squeezed(DistMult):
    """A user's own, whose scores of candidates are others."""

    def against(self, side, given, relations, candidates):
        return super().against(side, given, relations, candidates).tanh()


@pytest.mark.parametrize("kind", [Doubled, Squeezed])
def test_scores_of_ones_own_are_used(kind) -> None:
    decoder, relations = kind(WIDTH, RELATIONS).double(), torch.tensor([3, 0, 3, 1, 0])
    heads, tails, rows = some_rows(ROWS), some_rows(ROWS, seed=2), some_rows(CANDIDATES, seed=3)
    found = decoder.scores(heads, tails, relations, {"head": rows})
    wanted = [decoder(heads, tails, relations)[:, None], decoder.against("head", tails, relations, rows)]
    assert torch.equal(found, torch.cat(wanted, dim=1))


@every_decoder
@every_side
@pytest.mark.parametrize("shared", [True, False])
def test_rows_alike_and_no_rows_have_gradients(name, options, side, shared) -> None:
    """A step in which a worker has no rows gives every parameter a gradient of zeros; no distance of 0 is a NaN."""
    decoder = build(name, options)
    relations = torch.empty(0, dtype=torch.int64)
    empty = some_rows(0).requires_grad_()
    candidates = some_rows(*((CANDIDATES,) if shared else (0, CANDIDATES)), seed=2).requires_grad_()
    total = decoder.against(side, empty, relations, candidates).sum() + decoder(empty, empty, relations).sum()
    total.backward()
    assert candidates.grad is not None
    for parameter in decoder.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()
    zeros = torch.zeros(2, WIDTH, dtype=torch.float64, requires_grad=True)
    alike = decoder.against(side, zeros, torch.zeros(2, dtype=torch.int64), torch.zeros(3, WIDTH).double())
    (gradient,) = torch.autograd.grad(alike.sum(), zeros)
    assert bool(alike.isfinite().all())
    assert bool(gradient.isfinite().all())


@every_decoder
def test_a_decoder_is_made_anew_by_its_description(name, options) -> None:
    decoder = build(name, options)
    again = from_description(json.loads(json.dumps(decoder.describe()))).double()
    assert type(again) is type(decoder)
    assert again.describe() == decoder.describe()
    assert decoder.describe()["name"] == name
    again.load_state_dict(decoder.state_dict())
    rows = some_rows(3)
    relations = torch.tensor([0, 1, 3])
    assert torch.equal(decoder(rows, rows.flip(0), relations), again(rows, rows.flip(0), relations))


@every_decoder
def test_values_are_those_of_a_key(name, options) -> None:
    """In any precision; torch's own ways to change it are left alone."""
    assert {each.dtype for each in build(name, options).half().parameters()} <= {torch.float16}
    decoder, other = build(name, options), build(name, options).float()
    for parameter in other.parameters():
        torch.nn.init.constant_(parameter, 7.0)
    other.reset(17)
    for mine, theirs in zip(decoder.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.float(), theirs)
    other.reset(18)
    drawn = [each for each in other.parameters() if each.numel() > 1]
    before = [each for each in decoder.parameters() if each.numel() > 1]
    assert not any(torch.equal(mine.float(), theirs) for mine, theirs in zip(before, drawn, strict=True))


@every_decoder
def test_relations_are_read_as_is_said(name, options) -> None:
    decoder, rows = build(name, options), some_rows(4)
    scores = [decoder(rows, rows.flip(0) + 1, torch.full((4,), relation)) for relation in (0, 2)]
    assert torch.equal(*scores) != decoder.reads_relations
    for parameter in decoder.parameters():
        if decoder.reads_relations:
            assert parameter.shape[0] == RELATIONS * (1 if decoder.one_score else 2)


@every_decoder
@every_side
def test_a_scorer_gives_the_same_scores(name, options, side) -> None:
    decoder, (given, relations, candidates) = build(name, options), inputs(shared=True)
    some = torch.tensor([4, 0, 2])
    found = decoder.scorer(side, given, relations)(some, candidates)
    torch.testing.assert_close(found, decoder.against(side, given, relations, candidates)[some], **CLOSE)


@every_decoder
def test_a_triple_has_one_score_or_one_for_each_end(name, options) -> None:
    """The second is that of the reversed triple, of another relation."""
    decoder, relations = build(name, options), torch.tensor([3, 0, 3, 1, 0])
    heads, tails = some_rows(ROWS), some_rows(ROWS, seed=2)
    score = decoder(heads, tails, relations)
    assert torch.equal(decoder.toward("tail", heads, tails, relations), score)
    other = decoder.toward("head", heads, tails, relations)
    assert torch.equal(other, score) == decoder.one_score
    if not decoder.one_score:
        assert torch.equal(other, decoder.inner(tails, heads, relations + RELATIONS))


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in READ_RELATIONS])
def test_without_parameters_of_relations_these_have_none_for_each_end(name) -> None:
    with pytest.raises(ConfigError, match=rf"reciprocal: decoder '{name}' has no parameters of relations"):
        build_decoder(name, WIDTH, RELATIONS, reciprocal=True)


@pytest.mark.parametrize("name", ["complex", "rotate"])
def test_odd_widths_have_no_halves(name) -> None:
    with pytest.raises(ConfigError, match="must be even, not 5"):
        build_decoder(name, 5)


def test_what_cannot_be_a_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'distmult'"):
        build_decoder("distmul", 4)
    with pytest.raises(ConfigError, match="is no decoder"):
        build_decoder("torch.nn:Linear", 4)
    with pytest.raises(ConfigError, match="no p-norm"):
        build_decoder("transe", 4, p=0.5)
    with pytest.raises(ConfigError, match="scale"):
        build_decoder("cosine", 4, scale=0.0)
    with pytest.raises(ConfigError, match="width must be at least 1"):
        build_decoder("dot", 0)


@pytest.mark.parametrize("parts", [1, 2])
def test_cubes_and_their_gradients(parts) -> None:
    rows = some_rows(4)
    rows[1] = 0
    rows[2, 1::3] = 0
    numbers = torch.complex(*rows.chunk(2, 1)) if parts == 2 else rows
    torch.testing.assert_close(cubes(rows, parts=parts), numbers.abs().pow(3).sum(1))
    assert torch.autograd.gradcheck(lambda rows: cubes(rows, parts=parts), rows.requires_grad_())


@pytest.mark.parametrize("name", ["dot", "distmult", "complex"])
def test_penalties_are_cubes_of_what_is_multiplied(name) -> None:
    decoder, relations = build(name, {}), torch.tensor([3, 0, 3, 1, 0])
    rows = [some_rows(ROWS, seed=seed).requires_grad_() for seed in (1, 2)]
    multiplied = [*rows, decoder.relation[relations]] if name != "dot" else rows
    if name == "complex":
        multiplied = [torch.complex(*each.chunk(2, 1)) for each in multiplied]
    wanted = sum(each.abs().pow(3).sum(1) for each in multiplied)
    found, tensors = decoder.penalty(*rows, relations), [*rows, *decoder.parameters()]
    torch.testing.assert_close(found, wanted, **CLOSE)
    weight = torch.linspace(-1, 1, ROWS, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(found @ weight, tensors), torch.autograd.grad(wanted @ weight, tensors), strict=True
    ):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def formula(name: str, h: Tensor, t: Tensor, decoder: Decoder, relation: int) -> Tensor:
    """The papers' equations, written for one triple."""
    as_complex = lambda row: torch.complex(*row.chunk(2))  # noqa: E731
    parameters = {each: value[relation] for each, value in decoder.named_parameters() if decoder.reads_relations}
    return {
        "dot": lambda: h @ t,
        "cosine": lambda: decoder.log_scale.exp()[0] * torch.cosine_similarity(h, t, dim=0),
        "bilinear": lambda: h @ parameters["weight"] @ t,
        "distmult": lambda: h @ torch.diag(parameters["relation"]) @ t,
        "complex": lambda: (as_complex(h) * as_complex(parameters["relation"]) * as_complex(t).conj()).sum().real,
        "transe": lambda: decoder.gamma - (h + parameters["relation"] - t).norm(p=decoder.p),
        "rotate": lambda: (
            decoder.gamma - (as_complex(h) * torch.exp(1j * parameters["phase"]) - as_complex(t)).abs().sum()
        ),
        "mlp": lambda: decoder.out(torch.relu(decoder.head(h[None]) + decoder.tail(t[None])))[0, 0],
    }[name]()


@pytest.mark.parametrize(("name", "options"), [each for each in VARIANTS if each[0] in DECODERS.own])
def test_scores_are_those_of_the_equations(name, options) -> None:
    decoder, (given, relations, tails) = build(name, options), inputs(True)
    found = decoder(given, tails[:ROWS], relations)
    inner = decoder if decoder.one_score else decoder.inner
    wanted = [formula(name, h, t, inner, int(r)) for h, t, r in zip(given, tails, relations, strict=False)]
    torch.testing.assert_close(found, torch.stack(wanted), **CLOSE)


class Reversed(ProductDecoder):
    """A user's own: the columns of one end the other way round."""

    def query(self, side, given, relations):
        return given.flip(1)


def test_a_decoder_of_ones_own() -> None:
    partita.register("decoder", "reversed", Reversed)
    try:
        decoder = build_decoder("reversed", WIDTH)
        given, relations, candidates = inputs(True)
        for side in ("tail", "head"):
            found = decoder.against(side, given, relations, candidates)
            torch.testing.assert_close(found, one_by_one(decoder, side, given, relations, candidates))
        assert isinstance(from_description(decoder.describe()), Reversed)
    finally:
        DECODERS.remove("reversed")
