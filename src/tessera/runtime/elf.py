"""Object code that needs nothing from elsewhere but functions, as kernels are, made executable in this process.

LLVM's linker takes any object. But it takes longer to import than the rest of a cached kernel's first call, and it ends
the process where code and constants of one object come to lie 2 GiB apart, as happens in a process with much memory.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from typing import NamedTuple

from tessera.errors import CompilerFault
from tessera.runtime.host import architecture

_RELOCATABLE, _X86_64 = 1, 62
_CODE_OR_DATA, _SYMBOLS, _RELOCATIONS, _PLAIN_RELOCATIONS = 1, 2, 4, 9
_UNWINDING = 0x70000001
"""SHT_X86_64_UNWIND: tables for exceptions, which never pass through kernels."""
_WRITABLE, _LOADED = 1, 2
_TO_PLACE = (2, 4)
"""R_X86_64_PC32 and R_X86_64_PLT32: 32 bits, relative to their own place."""
_CALLED = 4
"""R_X86_64_PLT32 stands at calls."""
_GLOBAL_FUNCTION = 0x12
_JUMP = b"\xff\x25" + bytes(4)
"""`jmp [rip + 0]`: to the address that follows, however far away that is."""
_STUB_BYTES = 16


class Section(NamedTuple):
    """A section header of a 64-bit ELF file, by its own fields."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class Symbol(NamedTuple):
    """An entry of a symbol table."""

    name: str
    info: int
    section: int
    value: int


class Image(NamedTuple):
    """The code of a function, with all that it needs; it runs wherever it lies.

    Args:
        data: the code and its constants.
        entry: where the function begins.
        align: what its address is a multiple of.
    """

    data: bytes
    entry: int
    align: int


class MappedObject:
    """Object code in memory of its own, executable while this lives.

    Args:
        memory: the mapping.
        functions: addresses by name.
    """

    def __init__(self, memory: object, functions: dict[str, int]) -> None:
        self._memory = memory
        self._functions = functions

    def address(self, symbol: str) -> int:
        """Return the address of a function.

        Raises:
            CompilerFault: `link-failed` when the object has no such function.
        """
        if symbol not in self._functions:
            raise CompilerFault(f"the object code has no function {symbol}", code="link-failed")
        return self._functions[symbol]


def sections_of(code: bytes) -> list[Section]:
    """Return the section headers of a 64-bit ELF file."""
    (offset,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    return [Section(*struct.unpack_from("<IIQQQQIIQQ", code, offset + place * size)) for place in range(count)]


def symbols_of(code: bytes, sections: list[Section]) -> list[Symbol]:
    """Return the symbols of an object, in the order of its table."""
    found: list[Symbol] = []
    for table in sections:
        if table.kind != _SYMBOLS:
            continue
        strings = sections[table.link].offset
        for at in range(table.offset, table.offset + table.size, 24):
            name, info, _, section, value = struct.unpack_from("<IBBHQ", code, at)
            end = code.index(b"\0", strings + name)
            found.append(Symbol(code[strings + name : end].decode(), info, section, value))
    return found


def functions_of(code: bytes) -> tuple[str, ...]:
    """Return the global functions that an object defines."""
    symbols = symbols_of(code, sections_of(code))
    return tuple(symbol.name for symbol in symbols if symbol.info == _GLOBAL_FUNCTION and symbol.section)


def image_of(code: bytes, name: str) -> Image | None:
    """Return a function of an object, None where it needs anything from elsewhere.

    Args:
        code: an object for x86-64.
        name: the function.
    """
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 0x10) != (_RELOCATABLE, _X86_64):
        return None
    sections = sections_of(code)
    places, symbols = _places(sections), symbols_of(code, sections)
    if places is None or any(one.name and not one.section for one in symbols):
        return None
    image = _image(code, sections, places, symbols)
    if image is None:
        return None
    entry = next(places[one.section] + one.value for one in symbols if one.name == name)
    return Image(bytes(image), entry, max(sections[number].align for number in places))


def map_object(code: bytes) -> MappedObject | None:
    """Return an object made executable, None where it needs what only LLVM's linker does.

    That is another format or machine, data of a library, data that can be written.

    Args:
        code: an object made for this machine.
    """
    if not sys.platform.startswith("linux") or architecture() != "x86_64" or code[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        if struct.unpack_from("<HH", code, 0x10) != (_RELOCATABLE, _X86_64):
            return None
        sections = sections_of(code)
        places = _places(sections)
        symbols = symbols_of(code, sections)
        image = None if places is None else _image(code, sections, places, symbols)
    except (struct.error, ValueError, IndexError, KeyError):  # damaged: LLVM says how
        return None
    return None if places is None or image is None else _mapped(image, symbols, places)


def _places(sections: list[Section]) -> dict[int, int] | None:
    """Return where each section goes that is loaded, by its number; None where one needs more than a place."""
    places: dict[int, int] = {}
    end = 0
    for number, section in enumerate(sections):
        if section.kind == _PLAIN_RELOCATIONS:
            return None
        if section.flags & _LOADED and section.size and section.kind != _UNWINDING:
            if section.kind != _CODE_OR_DATA or section.flags & _WRITABLE or section.align > mmap.PAGESIZE:
                return None
            places[number] = end = -(-end // max(section.align, 1)) * max(section.align, 1)
            end += section.size
    return places


def _image(code: bytes, sections: list[Section], places: dict[int, int], symbols: list[Symbol]) -> bytearray | None:
    """Return the sections at their places, relocated; None where a relocation needs something else."""
    image = bytearray(max(place + sections[number].size for number, place in places.items()))
    for number, place in places.items():
        section = sections[number]
        data = code[section.offset : section.offset + section.size]
        if len(data) != section.size:
            raise ValueError("the file ends early")
        image[place : place + section.size] = data
    stubs: dict[str, int] = {}
    for table in sections:
        if table.kind != _RELOCATIONS or table.info not in places:
            continue
        for at in range(table.offset, table.offset + table.size, 24):
            offset, kind, number, addend = struct.unpack_from("<QIIq", code, at)
            symbol, place = symbols[number], places[table.info] + offset
            if kind == _CALLED and not symbol.section:
                target = _stub(image, stubs, symbol.name)
            else:
                target = places[symbol.section] + symbol.value if symbol.section in places else None
            if kind not in _TO_PLACE or target is None:
                return None
            struct.pack_into("<i", image, place, target + addend - place)
    return image


def _stub(image: bytearray, stubs: dict[str, int], name: str) -> int | None:
    """Return where a jump to a function of the process stands, put there at its first call; None without one."""
    if name not in stubs:
        address = _address_of(name)
        if address is None:
            return None
        stubs[name] = -(-len(image) // _STUB_BYTES) * _STUB_BYTES
        image += bytes(stubs[name] - len(image)) + _JUMP + struct.pack("<Q", address)
    return stubs[name]


def _address_of(name: str) -> int | None:
    function = getattr(ctypes.CDLL(None), name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def _mapped(image: bytearray, symbols: list[Symbol], places: dict[int, int]) -> MappedObject | None:
    memory = mmap.mmap(-1, len(image), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(image)
    held = ctypes.c_char.from_buffer(memory)  # keeps the mapping
    base = ctypes.addressof(held)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(image)), mmap.PROT_READ | mmap.PROT_EXEC):
        return None  # a system that forbids it
    found = {
        symbol.name: base + places[symbol.section] + symbol.value
        for symbol in symbols
        if symbol.info == _GLOBAL_FUNCTION and symbol.section in places
    }
    return MappedObject(held, found)
