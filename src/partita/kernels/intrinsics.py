"""Single machine instructions that numba has no name for: 16-bit floats, wide products, bit counts, prefetch."""
# mypy: ignore-errors

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

read_at = types.ExternalFunction("pread", types.int64(types.int32, types.uint64, types.uint64, types.int64))
"""POSIX's: a file descriptor, an address, a number of bytes and a place in the file; bytes read, -1 for an error."""
write_at = types.ExternalFunction("pwrite", types.int64(types.int32, types.uint64, types.uint64, types.int64))
"""The same for bytes that are written."""


@intrinsic
def widen(typing_context, value):
    """A float as it is; a uint16 with the bits of a float16, or an int16 with those of a bfloat16, as that float32."""
    if isinstance(value, types.Float):
        return value(value), lambda context, builder, signature, args: args[0]
    if value not in (types.uint16, types.int16):
        return None

    def generate(context, builder, signature, args):
        if value == types.uint16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
        bits = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(args[0], bits), bits(16)), ir.FloatType())

    return types.float32(value), generate


@intrinsic
def narrow(typing_context, value, array):
    """A float as an element of ``array``: as it is, or as the bits of the nearest bfloat16 where those are int16."""
    if not isinstance(value, types.Float) or not isinstance(array, types.Array):
        return None
    if array.dtype == value:
        return value(value, array), lambda context, builder, signature, args: args[0]
    if array.dtype != types.int16 or value != types.float32:
        return None

    def generate(context, builder, signature, args):
        wide = ir.IntType(32)
        bits = builder.bitcast(args[0], wide)
        odd = builder.and_(builder.lshr(bits, wide(16)), wide(1))  # ties go to the even one
        rounded = builder.lshr(builder.add(builder.add(bits, wide(0x7FFF)), odd), wide(16))
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(nan, wide(0x7FC0), rounded), ir.IntType(16))

    return types.int16(value, array), generate


@intrinsic
def power_of_two(typing_context, exponent):
    """2^n of a whole float32 n from -126 to 127, made of its bits."""
    if exponent != types.float32:
        return None

    def generate(context, builder, signature, args):
        bits = ir.IntType(32)
        biased = builder.add(builder.fptosi(args[0], bits), bits(127))
        return builder.bitcast(builder.shl(biased, bits(23)), ir.FloatType())

    return types.float32(exponent), generate


@intrinsic
def multiply_high(typing_context, a, b):
    """``floor(a * b / 2^64)`` of two uint64."""
    if a != types.uint64 or b != types.uint64:
        return None

    def generate(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(a, b), generate


@intrinsic
def leading_zeros(typing_context, value):
    """Number of leading zero bits of a uint64 that is not 0."""
    if value != types.uint64:
        return None

    def generate(context, builder, signature, args):
        return builder.ctlz(args[0], ir.IntType(1)(1))

    return types.uint64(value), generate


@intrinsic
def count_bits(typing_context, value):
    """Number of bits of a uint64 that are 1, int64."""
    if value != types.uint64:
        return None

    def generate(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(value), generate


@intrinsic
def prefetch(typing_context, array, offset):
    """Ask for the cache line of element ``offset`` (counted in C order) of a contiguous array; any offset is safe."""
    if not (isinstance(array, types.Array) and array.layout == "C" and isinstance(offset, types.Integer)):
        return None

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        builder.call(instruction, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
