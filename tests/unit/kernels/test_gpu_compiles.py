"""The GPU kernels compile for a device with the arguments that the cases launch them with. That needs no device."""

from __future__ import annotations

import sys

import gpu_cases
import pytest
import torch
from gpu_imports import gpu_kernels, replace_launch

TYPES = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
TARGET = ("cuda", 90, 32)  # an H100 or H200
FEW = (
    "dropout-0.3-float32", "edge_dropout-0.3-float32", "permutation-300", "sample-10-False-False-int32",
    "sample-10-True-False-int64", "sample-3-False-True-int32", "sample_many_of_long_rows-129-False-False",
    "sample_by_relation-False-False-uint8", "sample_by_relation-False-False-uint16",
    "gcn-True-True-float32", "gather-float16-float32-True", "gradients-float32-mean-2", "maxima-float32-int32",
)  # fmt: skip


def argument_type(value):
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def launches(checks, patch):
    """The distinct launches of some cases: module, kernel, types of the arguments, constants, warps."""
    from partita.kernels.gpu.launch import launch

    found = {}

    def note(kernel, grid, like, *arguments, num_warps=4, **constants):
        function = kernel.fn
        types = []
        for name, value in zip(kernel.arg_names, arguments):
            specialized = name not in (kernel.kwargs["do_not_specialize"] or ())
            if value is None or (specialized and value is not True and isinstance(value, int) and value == 1):
                types.append(value)  # a constant
            else:
                even = isinstance(value, torch.Tensor) or (specialized and value % 16 == 0)
                types.append((argument_type(value), even))
        key = (function.__module__, function.__name__, tuple(types), tuple(constants.items()), num_warps)
        found[key] = None
        launch(kernel, grid, like, *arguments, num_warps=num_warps, **constants)

    replace_launch(patch, note)
    for check in checks:
        check("cpu")
    return list(found)


def compile_for_a_device(module, name, types, constants, num_warps):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(sys.modules[module], name)
    signature = dict.fromkeys(kernel.arg_names, "constexpr")
    values, attributes = dict(constants), {}
    for place, (argument, given) in enumerate(zip(kernel.arg_names, types)):
        if isinstance(given, tuple):
            signature[argument] = given[0]
            if given[1]:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            values[argument] = given
    source = ASTSource(kernel, signature, values, attributes)
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget(*TARGET), options=options)


def all_compile(checks, tmp_path, monkeypatch, kind):
    with gpu_kernels(interpreted=True), monkeypatch.context() as patch:
        wanted = {kind(launch): launch for launch in launches(checks, patch)}
    names = {launch[1] for launch in wanted.values()}
    with gpu_kernels(interpreted=False), monkeypatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        for launch in wanted.values():
            assert compile_for_a_device(*launch).asm["cubin"], launch
    return names


def test_every_kernel_compiles(tmp_path, monkeypatch):
    cases = {param.id: param.values[0] for param in (*gpu_cases.DRAWS, *gpu_cases.SAMPLES, *gpu_cases.ROWS)}
    names = all_compile([cases[name] for name in FEW], tmp_path, monkeypatch, lambda launch: launch[1])
    assert {name.removesuffix("_kernel") for name in names} == {
        "row_bounds", "bounds", "take", "degrees_and_norms", "pick_with", "pick_few", "pick_many", "arrival_times",
        "permute",
        "drop_rows", "drop_edges", "gather", "aggregate", "weight_grad", "segment_max", "segment_max_backward",
    }  # fmt: skip


@pytest.mark.slow
def test_every_kernel_compiles_for_all_arguments(tmp_path, monkeypatch):
    cases = [param.values[0] for param in (*gpu_cases.DRAWS, *gpu_cases.SAMPLES, *gpu_cases.ROWS)]
    all_compile(cases, tmp_path, monkeypatch, lambda launch: launch)
