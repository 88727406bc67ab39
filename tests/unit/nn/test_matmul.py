"""Products of rows and weights: what plain operations give, in every dtype, by every backend, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn import matmul
from partita.nn.layers import LAYERS
from partita.nn.matmul import BACKENDS, LEAST_ROWS, MOST_ROWS, TORCH, Linear, linear, two_products
from partita.nn.model import build_model

OTHERS = [name for name in BACKENDS if name != TORCH]
needs_onednn = pytest.mark.skipif(not matmul.onednn_works(), reason="this PyTorch has no oneDNN")
ROWS = [0, 1, LEAST_ROWS - 1, LEAST_ROWS, MOST_ROWS + 3 * LEAST_ROWS + 5]


def operands(dtype: torch.dtype, rows: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((rows, 3), (4, 3), (4,), (rows, 2), (4, 2))
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
    return functional.linear(x, weight, bias) + functional.linear(y, other)


@pytest.mark.parametrize("rows", [0, 7])
def test_it_is_the_sum_of_two_linear_maps_with_its_gradient(rows) -> None:
    given = operands(torch.float64, rows)
    torch.testing.assert_close(two_products(*given), plain(*given), rtol=1e-14, atol=1e-14)
    x, weight, _, y, other = given
    torch.testing.assert_close(two_products(x, weight, None, y, other), plain(x, weight, None, y, other))
    if rows:
        assert gradcheck(two_products, given)
        assert gradcheck(lambda x, w, y, v: two_products(x, w, None, y, v), (x, weight, y, other))


def test_inputs_without_a_gradient_get_none() -> None:
    x, weight, bias, y, other = operands(torch.float64)
    x, y = x.detach(), y.detach()
    two_products(x, weight, bias, y, other).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert bias.grad is not None
    assert other.grad is not None


def test_autocast_decides_the_dtype_of_the_product_and_not_of_the_gradients() -> None:
    ours, theirs = operands(torch.float32), operands(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = two_products(*ours), plain(*theirs)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    for result in (found, expected):
        result.float().square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=2e-1)


def filled(*shape: int, seed: int = 3, wanted: bool = True) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(wanted)


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Within 1e-5 of the largest element, as float32."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert one.shape == other.shape
        if one.numel():
            assert (one - other).abs().max() <= 1e-5 * max(1e-6, float(other.abs().max()))


def with_gradients(name: str, product: Callable[..., Tensor], given: Sequence[Tensor | None]) -> list[Tensor]:
    """A product of leaves by a backend, then its gradients; backward runs outside of the block."""
    leaves = [one.detach().clone().requires_grad_(one.requires_grad) for one in given if one is not None]
    rest = iter(leaves)
    with matmul.use(name):
        found = product(*(None if one is None else next(rest) for one in given))
    (found * filled(*found.shape, seed=8, wanted=False).to(found.dtype)).sum().backward()
    assert all((leaf.grad is not None) == leaf.requires_grad for leaf in leaves)
    return [found.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def check(name: str, product: Callable[..., Tensor], given: Sequence[Tensor | None]) -> None:
    assert_close(with_gradients(name, product, given), with_gradients(TORCH, product, given))


@needs_onednn
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("widths", [(20, 48), (48, 20)])
def test_every_backend_gives_the_products_and_gradients_of_torch(name, rows, widths) -> None:
    before, after = widths
    x, weight, bias = filled(rows, before), filled(after, before, seed=4), filled(after, seed=5)
    y, other = filled(rows, 24, seed=6), filled(after, 24, seed=7)
    for b in (bias, None):
        check(name, linear, [x, weight, b])
        check(name, two_products, [x, weight, b, y, other])


@needs_onednn
@pytest.mark.parametrize("name", OTHERS)
def test_rows_without_a_gradient_and_rows_and_weights_that_do_not_lie_together(name) -> None:
    x, weight, y, other = filled(600, 32, wanted=False), filled(40, 32), filled(600, 24, wanted=False), filled(40, 24)
    check(name, linear, [x, weight, None])
    check(name, two_products, [x, weight, None, y, other])
    check(name, lambda x, w: linear(x[:, 3:28], w[:, 3:28]), [x, weight])
    check(name, lambda x, w: linear(x[::2, 4:], w[:, 4:]), [filled(600, 32), weight])
    check(
        name, lambda x, w, y, v: two_products(x.t()[2:].t(), w[:, 2:], None, y, v), [filled(600, 32), weight, y, other]
    )
    check(name, lambda x, w: linear(x, w).sum(1, keepdim=True).expand(-1, 5), [filled(600, 32), weight])


def refuse(*_: object) -> Tensor:
    raise AssertionError("oneDNN was called")


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_torch(monkeypatch, dtype) -> None:
    x, weight, bias = (one.detach().to(dtype).requires_grad_() for one in (filled(600, 32), filled(40, 32), filled(40)))
    expected = functional.linear(x, weight, bias)
    with matmul.use("onednn-all"):
        monkeypatch.setattr(matmul, "_onednn", refuse)
        assert torch.equal(linear(x, weight, bias), expected)
        two_products(x, weight, bias, x, weight).sum().backward()


@needs_onednn
def test_autocast_is_left_to_torch(monkeypatch) -> None:
    x, weight, bias = filled(600, 32), filled(40, 32), filled(40)
    with matmul.use("onednn-all"), torch.autocast("cpu", torch.bfloat16):
        monkeypatch.setattr(matmul, "_onednn", refuse)
        found = linear(x, weight, bias), two_products(x, weight, bias, x, weight)
    assert [one.dtype for one in found] == [torch.bfloat16] * 2
    sum(found).float().square().sum().backward()
    assert weight.grad.dtype == torch.float32


@needs_onednn
def test_narrow_products_are_left_to_torch_and_so_are_all_after_the_block(monkeypatch) -> None:
    with matmul.use("onednn-all"):
        monkeypatch.setattr(matmul, "_onednn", refuse)
        for rows, before, after in ((600, 0, 40), (600, 8, 40), (600, 32, 8), (LEAST_ROWS - 1, 32, 40)):
            linear(filled(rows, before), filled(after, before)).sum().backward()
        with pytest.raises(AssertionError, match="oneDNN was called"):
            linear(filled(600, 32), filled(40, 32))
    linear(filled(600, 32), filled(40, 32)).sum().backward()


@needs_onednn
@pytest.mark.parametrize("columns", [20, 40])
def test_onednn_multiplies_dense_transposed_rows(columns, monkeypatch) -> None:
    """Of columns of a wider matrix it would take a thousand times as long."""
    seen, original = list[bool](), matmul._onednn

    def note(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.extend(each.t().is_contiguous() for each in (x, weight))
        return original(x, weight, bias)

    grad, x = torch.randn(LEAST_ROWS, 1 + columns)[:, 1:], torch.randn(LEAST_ROWS, 31)[:, 1:]
    monkeypatch.setattr(matmul, "_onednn", note)
    torch.testing.assert_close(BACKENDS.find("onednn-all").by_rows(grad, x), grad.t() @ x, rtol=1e-4, atol=1e-4)
    assert seen == [True, True]


@needs_onednn
def test_onednn_sees_a_few_numbers_of_rows_only(monkeypatch) -> None:
    """It keeps a program for each number."""
    seen, original = set(), matmul._onednn

    def note(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.add((tuple(x.shape), tuple(weight.shape)))
        return original(x, weight, bias)

    with matmul.use("onednn-all"):
        monkeypatch.setattr(matmul, "_onednn", note)
        for rows in range(200, 12_000, 731):
            x, weight = filled(rows, 32), filled(16, 32)
            two_products(x, weight, None, x, weight).sum().backward()
            linear(x, weight).sum().backward()
    sizes = [LEAST_ROWS << power for power in range(5)]
    assert max(sizes) == MOST_ROWS
    allowed = {each for n in sizes for each in (((n, 32), (16, 32)), ((n, 16), (32, 16)), ((16, n), (32, n)))}
    assert seen <= allowed


class Edges:
    """Rows and edges of a batch for each layer type."""

    def __init__(self, make_block: Callable[..., Block], num_dst: int = 300, num_src: int = 700) -> None:
        generator = torch.Generator().manual_seed(2)
        counts = torch.randint(0, 6, (num_dst,), generator=generator)
        block = make_block(num_dst, num_src, counts.tolist(), generator)
        weight = torch.rand(len(block.indices), generator=generator)
        self.weighted = block.with_(weight=weight, self_weight=torch.rand(num_dst, generator=generator))
        self.block = block


@needs_onednn
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("widths", [(32, 64), (64, 32), (160, 32)], ids=str)
def test_all_layers_give_the_same_rows_and_gradients(monkeypatch, make_block, name, layer, widths) -> None:
    calls, original = [], matmul._onednn
    monkeypatch.setattr(matmul, "_onednn", lambda *given: calls.append(1) or original(*given))
    edges = Edges(make_block)
    block = edges.weighted if layer == "gcn" else edges.block
    results = []
    for backend in (name, TORCH):
        made = LAYERS.find(layer).for_model(*widths, last=False)
        made.reset(7)
        x, before = filled(700, widths[0]), len(calls)
        with matmul.use(backend):
            out = made(block, x, 5)
        out.backward(filled(*out.shape, seed=6, wanted=False))
        results.append([out.detach(), x.grad, *(parameter.grad for parameter in made.parameters())])
        assert (len(calls) > before) == (backend != TORCH and bool(list(made.parameters())))
    assert_close(*results)


def test_linear_maps_of_layers_are_torch_modules_with_its_names() -> None:
    assert isinstance(Linear(3, 4), torch.nn.Linear)
    assert list(Linear(3, 4).state_dict()) == ["weight", "bias"]
    model = build_model("gin", in_width=8, hidden=16, out_width=3, layers=1)
    assert [name for name in model.state_dict() if "nn" in name] == [
        f"stages.0.layer.nn.{number}.{what}" for number in (0, 2) for what in ("weight", "bias")
    ]


@pytest.mark.parametrize("why", ["no oneDNN", "off", "no product", "another signature"])
def test_asked_for_by_name_where_it_is_missing_it_is_a_clear_error(monkeypatch, request, why) -> None:
    if why == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    elif why == "off":
        request.addfinalizer(lambda on=torch.backends.mkldnn.enabled: torch._C._set_mkldnn_enabled(on))
        torch._C._set_mkldnn_enabled(False)
    elif why == "no product":
        monkeypatch.setattr(torch.ops, "mkldnn", object())
    else:
        monkeypatch.setattr(torch.ops.mkldnn._linear_pointwise, "default", torch.ops.aten.add.Tensor)
    assert not matmul.onednn_works()
    for name in OTHERS:
        with pytest.raises(ConfigError, match="needs oneDNN") as error, matmul.use(name):
            raise AssertionError
        assert error.value.where == "matmul"
    with matmul.use("torch"):
        assert linear(filled(3, 2), filled(2, 2)).shape == (3, 2)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="no matrix-multiplication backend 'onedn'"), matmul.use("onedn"):
        raise AssertionError


@pytest.mark.parametrize("count", [1, 255, 256, 257, 511, 700, 9000])
def test_products_of_16_bits_in_windows_are_whole_ones(count) -> None:
    draw = torch.Generator().manual_seed(count)
    if count >= LEAST_ROWS:
        windows = matmul._windows(count)
        assert sorted({row for rows in windows for row in range(rows.start, rows.stop)}) == list(range(count))
        assert len(windows) <= 2
    x, y = torch.randn(count, 32, generator=draw), torch.randn(count, 16, generator=draw)
    weight, other, bias = (torch.randn(24, *size, generator=draw) for size in ((32,), (16,), ()))
    inputs = [each.requires_grad_() for each in (x, weight, bias, y, other)]
    grad = torch.randn(count, 24, generator=draw)
    results = []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            two, one = matmul.two_products(x, weight, bias, y, other), matmul.linear(x, weight)
        assert two.dtype == one.dtype == (torch.bfloat16 if half else torch.float32)
        found = torch.autograd.grad([two, one], inputs, [grad.to(two.dtype), grad.to(one.dtype)])
        results.append((two.float(), one.float(), *found))
    for whole, half in zip(*results):
        assert half.dtype == torch.float32
        assert (whole - half).abs().max() <= 2e-2 * whole.abs().max()


def test_numbers_of_rows_that_batches_have_are_rounded_to_few() -> None:
    sizes = {rows.stop - rows.start for count in range(31_000, 31_600) for rows in matmul._windows(count)}
    assert sizes == {1024, 30_720}
