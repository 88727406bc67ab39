"""Modules of untyped graphs: what their forward takes, and how their layers are given blocks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn.layers.convolutions import is_convolution
from partita.nn.layers.gcn import SymmetricNorm
from partita.nn.stage import Stage

Style = Literal["blocks", "edge_index"]
"""What a module's forward takes: ``(blocks, x)``, as in DGL, or ``(x, edge_index)``, as in PyG."""

SIGNATURES = (
    "forward(self, blocks, x), with one block per layer, the input-side one first; or forward(self, x, edge_index), "
    "whose PyG convolutions are called once per layer"
)


def style_of(module: nn.Module) -> Style:
    """What a module's forward takes.

    Raises:
        ConfigError: neither ``blocks`` first nor ``edge_index``.
    """
    names = list(inspect.signature(module.forward).parameters)
    if "edge_index" in names[1:2]:
        return "edge_index"
    if names[:1] in (["blocks"], ["mfgs"]) and len(names) > 1:
        return "blocks"
    raise ConfigError(
        f"forward takes ({', '.join(names)}), which Partita cannot call",
        where=f"model {type(module).__name__}",
        fix=f"Write {SIGNATURES}",
    )


def _convolutions(module: nn.Module) -> list[nn.Module]:
    """PyG's convolutions in a module, those inside another one left out."""
    if is_convolution(type(module)):
        return [module]
    return [found for child in module.children() for found in _convolutions(child)]


@contextmanager
def watched(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The convolutions in the order in which they are called inside the block."""
    calls: list[nn.Module] = []
    hooks = [each.register_forward_pre_hook(lambda conv, _: calls.append(conv)) for each in _convolutions(module)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def by_layer(module: nn.Module, blocks: Sequence[Block]) -> Iterator[list[nn.Module]]:
    """Inside the block the n-th call of a PyG convolution computes the n-th of ``blocks``; yields the calls so far."""
    calls: list[nn.Module] = []

    def before(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        calls.append(conv)
        if len(calls) > len(blocks):
            fix = f"Set layers={len(calls)} or more"
            raise ConfigError(f"the model calls more convolutions than layers={len(blocks)}", where="layers", fix=fix)
        block, given = blocks[len(calls) - 1], dict(kwargs)
        x = args[0] if args else given.pop("x")
        x = x[0] if isinstance(x, (tuple, list)) else x
        if x.shape[0] != block.num_src:
            raise ConfigError(
                f"convolution {len(calls)} of the model is given {x.shape[0]} rows, but its layer has {block.num_src}",
                where=f"model {type(module).__name__}",
                fix="Call the convolutions one after the other, each on the rows that the one before returned",
            )
        given.pop("edge_index", None)
        if _is_gcn(conv):
            given.pop("edge_weight", None)
            return (x, _with_loops(block)), {**given, "edge_weight": _gcn_weights(block).to(x.dtype)}
        return ((x, x[: block.num_dst]), block.edge_index(), *args[2:]), given

    def after(conv: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        return out[: blocks[len(calls) - 1].num_dst]

    with ExitStack() as stack:
        for conv in _convolutions(module):
            stack.callback(conv.register_forward_pre_hook(before, with_kwargs=True).remove)
            if _is_gcn(conv):
                _check_gcn(conv)
                stack.callback(conv.register_forward_hook(after).remove)
                stack.callback(setattr, conv, "normalize", conv.normalize)
                conv.normalize = False  # type: ignore[assignment]
        yield calls


def _is_gcn(conv: nn.Module) -> bool:
    """Whether it is PyG's GCNConv, whose edge weights are those of Partita's ``gcn``."""
    return type(conv).__name__ == "GCNConv"


def _check_gcn(conv: nn.Module) -> None:
    """Refuse a GCNConv that weights edges in another way.

    Raises:
        ConfigError: it does.
    """
    if conv.improved or not conv.add_self_loops or not conv.normalize:
        raise ConfigError(
            "a GCNConv with improved=True, add_self_loops=False or normalize=False needs other edge weights than "
            "Partita puts on sampled edges",
            where=f"model, {conv}",
            fix="Leave these arguments out",
        )


def _with_loops(block: Block) -> Tensor:
    """The block's edges, then one from every destination to itself."""
    own = torch.arange(block.num_dst, device=block.indptr.device)
    return torch.cat([block.edge_index(), torch.stack([own, own])], dim=1)


def _gcn_weights(block: Block) -> Tensor:
    """The weights of :func:`_with_loops`."""
    assert block.weight is not None
    assert block.self_weight is not None
    return torch.cat([block.weight, block.self_weight])


def set_coefficients(stages: nn.ModuleList, calls: Sequence[nn.Module]) -> None:
    """Ask for GCN's edge weights on the blocks of its layers."""
    for stage, conv in zip(stages, calls):
        if isinstance(stage, Stage) and _is_gcn(conv):
            stage.layer.coefficients = SymmetricNorm()  # type: ignore[misc]


def small_blocks(seeds: int, layers: int) -> tuple[list[Block], Tensor]:
    """Blocks of a graph in which node v has the in-neighbors v + 2 and v + 5; and the nodes of the first one."""
    nodes, blocks = list(range(seeds)), list[Block]()
    for _ in range(layers):
        destinations, at = len(nodes), {node: place for place, node in enumerate(nodes)}
        edges = [at.setdefault(node + step, len(at)) for node in nodes for step in (2, 5)]
        nodes = list(at)
        dst = torch.tensor(nodes[:destinations])
        blocks.insert(
            0,
            Block(
                dst=dst,
                src=torch.tensor(nodes),
                indptr=torch.arange(destinations + 1) * 2,
                indices=torch.tensor(edges, dtype=torch.int32),
                dst_original=dst,
                weight=torch.full((len(edges),), 0.3),
                self_weight=torch.full((destinations,), 0.3),
            ),
        )
    return blocks, torch.tensor(nodes)
