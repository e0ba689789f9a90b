"""Reads one argument of a call into the block, and checks all that the record relies on.

Every function gives false for an argument that the record is not for; nothing is raised here, as the Python path
says what is wrong with an argument, if something is.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.entry import layout
from tessera.entry.code.writer import Function
from tessera.entry.layout import API, ARG, ARRAY, AXIS, TENSOR

_ENTRY = (("ptr", "arg"), ("ptr", "object"), ("ptr", "block"), ("ptr", "api"))


def functions() -> list[Function]:
    """Return the functions that `@read_argument` needs, and that one."""
    return [_axes(), *(make(name) for name, make in _READERS.items()), _argument()]


def _axes() -> Function:
    """Write the check of an address, sizes and strides against the guards, and put them into the block."""
    f = Function(
        "read_axes",
        "i1",
        [("ptr", "arg"), ("ptr", "block"), ("i64", "address"), ("ptr", "sizes"), ("ptr", "strides"), ("i64", "shift")],
    )
    misplaced = f.op("and", "%address", f.load("%arg", ARG["align_mask"]))
    f.unless_give(f.op("icmp eq", misplaced, f.load("%arg", ARG["align"])), "false")
    f.store("%address", f.at("%block", f.load("%arg", ARG["pointer"])))
    rank = f.load("%arg", ARG["rank"])
    axes = f.load("%arg", ARG["axes"], "ptr")
    own_sizes = f.at("%block", f.load("%arg", ARG["sizes"]))
    own_strides = f.at(own_sizes, f.op("shl", rank, 3))
    remainder = f.op("sub", f.op("shl", 1, "%shift"), 1)
    with f.when(f.op("icmp ult", "%address", layout.LEAST_ADDRESS)):  # of an array without memory, or without elements
        count = f.variable("i64", "1")
        with f.count_up(rank) as axis:
            f.store(f.op("mul", f.load(count), f.load("%sizes", f.op("shl", axis, 3))), count)
        f.unless_give(f.op("icmp eq", f.load(count), 0), "false")
    beyond = f.variable("i64", "1")  # the stride a dimension of one element gets, as a contiguous array's
    with f.count_up(rank) as step:
        axis = f.op("sub", f.op("sub", rank, step), 1)
        offset = f.op("shl", axis, 3)
        size = f.load("%sizes", offset)
        raw = f.load("%strides", offset)
        f.unless_give(f.op("icmp eq", f.op("and", raw, remainder), 0), "false")
        single = f.op("icmp eq", size, 1)
        stride = f.value(f"select i1 {single}, i64 {f.load(beyond)}, i64 {f.op('ashr', raw, '%shift')}")
        guard = f.at(axes, f.op("mul", axis, layout.AXIS_BYTES))
        _check_axis(f, guard, size, stride)
        f.store(size, f.at(own_sizes, offset))
        f.store(stride, f.at(own_strides, offset))
        extent = f.value(f"call i64 @llvm.smax.i64(i64 {size}, i64 1)")
        f.store(f.op("mul", stride, extent), beyond)
    f.give("true")
    return f


def _check_axis(f: Function, guard: str, size: str, stride: str) -> None:
    wanted = f.load(guard, AXIS["size"])
    fits = f.op("or", f.op("icmp eq", wanted, -1), f.op("icmp eq", wanted, size), "i1")
    fits = f.op("and", fits, _class_fits(f, size, guard, AXIS["zero"], AXIS["some"]), "i1")
    known = f.load(guard, AXIS["stride"])
    free = f.op("icmp eq", known, layout.ANY_STRIDE)
    exact = f.op("and", f.op("xor", free, "true", "i1"), f.op("icmp eq", known, stride), "i1")
    apart = f.op("icmp ugt", stride, 1)
    divides = _class_fits(f, stride, guard, AXIS["stride_zero"], AXIS["stride_some"])
    free = f.op("and", free, f.op("and", apart, divides, "i1"), "i1")
    fits = f.op("and", fits, f.op("or", exact, free, "i1"), "i1")
    f.unless_give(fits, "false")
    # A kernel must not store to elements that share an address.
    repeated = f.op("and", f.op("icmp eq", stride, 0), f.op("icmp sgt", size, 1), "i1")
    written = f.op("icmp ne", f.load("%arg", ARG["written"]), 0)
    overlaps = f.op("and", repeated, written, "i1")
    f.unless_give(f.op("xor", overlaps, "true", "i1"), "false")


def _class_fits(f: Function, value: str, guard: str, zero: int, some: int) -> str:
    """Return whether the bits of one mask are 0 and, if there is a second mask, one of its bits is not."""
    none = f.op("icmp eq", f.op("and", value, f.load(guard, zero)), 0)
    mask = f.load(guard, some)
    any_bit = f.op("icmp ne", f.op("and", value, mask), 0)
    return f.op("and", none, f.op("or", any_bit, f.op("icmp eq", mask, 0), "i1"), "i1")


def _numpy(name: str) -> Function:
    f = Function(name, "i1", _ENTRY)
    wanted = f.load("%arg", ARG["flags"])
    flags = f.value(f"zext i32 {f.load('%object', ARRAY['flags'], 'i32')} to i64")
    rank = f.value(f"sext i32 {f.load('%object', ARRAY['rank'], 'i32')} to i64")
    fits = f.op("icmp eq", f.load("%object", ARRAY["dtype"]), f.load("%arg", ARG["dtype"]))
    fits = f.op("and", fits, f.op("icmp eq", rank, f.load("%arg", ARG["rank"])), "i1")
    fits = f.op("and", fits, f.op("icmp eq", f.op("and", flags, wanted), wanted), "i1")
    f.unless_give(fits, "false")
    f.give(
        f.call(
            "i1",
            "@read_axes",
            ("ptr", "%arg"),
            ("ptr", "%block"),
            ("i64", f.load("%object", ARRAY["data"])),
            ("ptr", f.load("%object", ARRAY["sizes"], "ptr")),
            ("ptr", f.load("%object", ARRAY["strides"], "ptr")),
            ("i64", f.load("%arg", ARG["shift"])),
        )
    )
    return f


def _dlpack(name: str) -> Function:
    """Read a PyTorch tensor through its exchange function, which takes no reference and no lock."""
    f = Function(name, "i1", _ENTRY)
    inner = f.load("%object", f.load("%arg", ARG["inner"]), "ptr")
    mark = f.load(inner, f.load("%arg", ARG["mark"]))
    plain = f.op("icmp eq", f.op("and", mark, f.load("%arg", ARG["mark_mask"])), 0)
    f.unless_give(plain, "false")  # a lazily negated view
    tensor = f.array("i8", layout.TENSOR_BYTES)
    status = f.call("i32", f.load("%arg", ARG["read"], "ptr"), ("ptr", "%object"), ("ptr", tensor))
    with f.when(f.op("icmp ne", status, 0, "i32")):
        f.do(f.load("%api", API["clear"], "ptr"))
        f.give("false")
    f.give(_tensor(f, tensor))
    return f


def _tensor(f: Function, tensor: str) -> str:
    """Check a `DLTensor`; gives whether it fits."""
    rank = f.value(f"sext i32 {f.load(tensor, TENSOR['rank'], 'i32')} to i64")
    dtype = f.value(f"zext i32 {f.load(tensor, TENSOR['dtype'], 'i32')} to i64")
    address = f.op("add", f.load(tensor, TENSOR["data"]), f.load(tensor, TENSOR["offset"]))
    strides = f.load(tensor, TENSOR["strides"], "ptr")
    fits = f.op("icmp eq", dtype, f.load("%arg", ARG["dtype"]))
    fits = f.op("and", fits, f.op("icmp eq", rank, f.load("%arg", ARG["rank"])), "i1")
    device = f.op("icmp eq", f.load(tensor, TENSOR["device"]), f.load("%arg", ARG["device"]))
    fits = f.op("and", fits, device, "i1")
    strided = f.op("or", f.op("icmp ne", strides, "null", "ptr"), f.op("icmp eq", rank, 0), "i1")
    f.unless_give(f.op("and", fits, strided, "i1"), "false")
    return f.call(
        "i1",
        "@read_axes",
        ("ptr", "%arg"),
        ("ptr", "%block"),
        ("i64", address),
        ("ptr", f.load(tensor, TENSOR["sizes"], "ptr")),
        ("ptr", strides),
        ("i64", 0),
    )


def _device(name: str) -> Function:
    """Read one of Tessera's own device arrays, which holds its `DLTensor` in a bytes object."""
    f = Function(name, "i1", _ENTRY)
    held = f.load("%object", f.load("%arg", ARG["inner"]), "ptr")
    f.unless_give(f.op("icmp ne", held, "null", "ptr"), "false")
    f.give(_tensor(f, f.at(held, layout.BYTES_DATA)))
    return f


def _kind_of(f: Function) -> str:
    return f.load("%object", layout.OBJECT_TYPE)


def _is(f: Function, kind: str, name: str) -> str:
    return f.op("icmp eq", kind, f.load("%api", API[name]))


def _real(f: Function) -> str:
    """Return the address of a double: a float's value, or an int's; leaves the function for anything else."""
    number = f.variable("double", "0.0")
    kind = _kind_of(f)
    floating = f.op("or", _is(f, kind, "float_type"), _is(f, kind, "float64_type"), "i1")
    with f.when(floating):
        f.store(f.load("%object", layout.FLOAT_VALUE, "double"), number, kind="double")
    with f.when(f.op("xor", floating, "true", "i1")):
        f.unless_give(_is(f, kind, "long_type"), "false")
        made = f.call("double", f.load("%api", API["long_double"], "ptr"), ("ptr", "%object"))
        with f.when(f.value(f"fcmp oeq double {made}, -1.0")):
            error = f.call("ptr", f.load("%api", API["occurred"], "ptr"))
            with f.when(f.op("icmp ne", error, "null", "ptr")):
                f.do(f.load("%api", API["clear"], "ptr"))
                f.give("false")
        f.store(made, number, kind="double")
    return number


def _put(f: Function, value: str) -> None:
    f.store(value, f.at("%block", f.load("%arg", ARG["pointer"])))
    f.give("true")


def _float64(name: str) -> Function:
    f = Function(name, "i1", _ENTRY)
    _put(f, f.load(_real(f)))
    return f


def _narrowed(f: Function) -> tuple[str, str]:
    """Return a double rounded to f32; leaves the function where a finite number has none."""
    wide = f.load(_real(f), kind="double")
    narrow = f.value(f"fptrunc double {wide} to float")
    finite = f.value(f"fcmp one double {f.value(f'call double @llvm.fabs.f64(double {wide})')}, {_INFINITE}")
    lost = f.value(f"fcmp oeq float {f.value(f'call float @llvm.fabs.f32(float {narrow})')}, {_INFINITE}")
    f.unless_give(f.op("xor", f.op("and", finite, lost, "i1"), "true", "i1"), "false")
    return narrow, f.value(f"bitcast float {narrow} to i32")


_INFINITE = "0x7FF0000000000000"


def _float32(name: str) -> Function:
    f = Function(name, "i1", _ENTRY)
    _, bits = _narrowed(f)
    _put(f, f.value(f"zext i32 {bits} to i64"))
    return f


def _bfloat16(name: str) -> Function:
    """Write the rounding of f32 to the nearest bf16, ties to even; infinities and NaN are left to Python."""
    f = Function(name, "i1", _ENTRY)
    narrow, bits = _narrowed(f)
    magnitude = f.value(f"call float @llvm.fabs.f32(float {narrow})")
    f.unless_give(f.value(f"fcmp olt float {magnitude}, {_INFINITE}"), "false")
    odd = f.op("and", f.op("lshr", bits, 16, "i32"), 1, "i32")
    rounded = f.op("add", bits, f.op("add", odd, 0x7FFF, "i32"), "i32")
    _put(f, f.value(f"zext i32 {f.op('lshr', rounded, 16, 'i32')} to i64"))
    return f


def _float16(name: str) -> Function:
    f = Function(name, "i1", _ENTRY)
    wide = f.load(_real(f), kind="double")
    packed = f.variable("i64", "0")
    status = f.call("i32", f.load("%api", API["pack_half"], "ptr"), ("double", wide), ("ptr", packed), ("i32", 1))
    with f.when(f.op("icmp ne", status, 0, "i32")):
        f.do(f.load("%api", API["clear"], "ptr"))
        f.give("false")
    _put(f, f.load(packed))
    return f


def _integer(name: str) -> Function:
    """Write the reading of an int or bool that lies in a range of signed 64-bit numbers."""
    f = Function(name, "i1", _ENTRY)
    kind = _kind_of(f)
    f.unless_give(f.op("or", _is(f, kind, "long_type"), _is(f, kind, "bool_type"), "i1"), "false")
    beyond = f.variable("i32", "0")
    number = f.call("i64", f.load("%api", API["long_value"], "ptr"), ("ptr", "%object"), ("ptr", beyond))
    fits = f.op("icmp eq", f.load(beyond, kind="i32"), 0, "i32")
    fits = f.op("and", fits, f.op("icmp sge", number, f.load("%arg", ARG["low"])), "i1")
    f.unless_give(f.op("and", fits, f.op("icmp sle", number, f.load("%arg", ARG["high"])), "i1"), "false")
    _put(f, number)
    return f


def _boolean(name: str) -> Function:
    f = Function(name, "i1", _ENTRY)
    f.unless_give(_is(f, _kind_of(f), "bool_type"), "false")
    true = f.op("icmp eq", "%object", f.load("%api", API["true"], "ptr"), "ptr")
    _put(f, f.value(f"zext i1 {true} to i64"))
    return f


def _same(name: str) -> Function:
    f = Function(name, "i1", _ENTRY)
    f.give(f.op("icmp eq", "%object", f.load("%arg", ARG["low"], "ptr"), "ptr"))
    return f


def _equal(name: str) -> Function:
    """Compare with an int or string: only such comparisons run no code of the program."""
    f = Function(name, "i1", _ENTRY)
    wanted = f.load("%arg", ARG["low"], "ptr")
    with f.when(f.op("icmp eq", "%object", wanted, "ptr")):
        f.give("true")
    f.unless_give(f.op("icmp eq", _kind_of(f), f.load("%arg", ARG["type"])), "false")
    equal = f.call("i32", f.load("%api", API["compare"], "ptr"), ("ptr", "%object"), ("ptr", wanted), ("i32", 2))
    f.give(f.op("icmp eq", equal, 1, "i32"))
    return f


_READERS: dict[str, Callable[[str], Function]] = {
    "read_numpy": _numpy,
    "read_dlpack": _dlpack,
    "read_device": _device,
    "read_float64": _float64,
    "read_float32": _float32,
    "read_float16": _float16,
    "read_bfloat16": _bfloat16,
    "read_integer": _integer,
    "read_boolean": _boolean,
    "read_same": _same,
    "read_equal": _equal,
}
"""The reader of each kind, in the order of their numbers in `layout`."""


def _argument() -> Function:
    f = Function("read_argument", "i1", _ENTRY)
    kind = f.load("%arg", ARG["kind"])
    with f.when(f.op("icmp ule", kind, layout.DEVICE)):
        own = _kind_of(f)
        first = f.op("icmp eq", own, f.load("%arg", ARG["type"]))
        other = f.op("icmp eq", own, f.load("%arg", ARG["other_type"]))
        f.unless_give(f.op("or", first, other, "i1"), "false")
    labels = [f.fresh("kind") for _ in _READERS]
    cases = " ".join(f"i64 {number}, label %{label}" for number, label in enumerate(labels))
    unknown = f.fresh("unknown")
    f.line(f"switch i64 {kind}, label %{unknown} [ {cases} ]")
    for name, label in zip(_READERS, labels, strict=True):
        f.label(label)
        args: list[tuple[str, str | int]] = [(of, f"%{param}") for of, param in _ENTRY]
        f.line(f"ret i1 {f.call('i1', f'@{name}', *args)}")
    f.label(unknown)
    f.give("false")
    return f
