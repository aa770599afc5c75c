"""The names that bytecode uses: globals, and attributes and variables that it changes itself.

An object that counts its calls, opens a file when it is first used, or fills a cache, is the same
object afterwards. Its digest therefore excludes what its methods change while elements are
computed (see ``digests``).
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_MUTATORS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "fill"),
    *("insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft", "put"),
    *("remove", "resize", "reverse", "setdefault", "sort", "subtract", "update", "write"),
    *("difference_update", "symmetric_difference_update", "__setitem__", "__delitem__"),
}
_STORES = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_LOADS = (*_ATTRIBUTES, *_GLOBALS, "LOAD_DEREF")
_ASSIGNMENTS = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR")
_SETUP = ("__init__", "__new__", "__post_init__", "__setstate__")
# Methods that run while elements are computed, besides the special ones of Python.
_WORK = ("batch", "filter", "flat_map", "map", "map_with_index", "random_map")


class CodeNames(NamedTuple):
    """Names in a piece of code, and in the functions within it.

    Args:
        globals: those that it reads.
        loaded: these, attributes, and variables of enclosing functions that it reads.
        stored: attributes, globals and variables of enclosing functions that it assigns.
        mutated: those whose values it changes in place, by an index or a method of containers.
    """

    globals: frozenset[str]
    loaded: frozenset[str]
    stored: frozenset[str]
    mutated: frozenset[str]


@functools.lru_cache(maxsize=10_000)
def names_of(code: types.CodeType) -> CodeNames:
    """Returns the names in a piece of code."""
    found: list[set[str]] = [set(), set(), set(), {*_mutated(code)}]
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS:
            found[0].add(instruction.argval)
        if instruction.opname in _LOADS:
            found[1].add(instruction.argval)
        elif instruction.opname in _ASSIGNMENTS and instruction.argval not in code.co_cellvars:
            found[2].add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, inner in zip(found, names_of(constant), strict=True):
                names |= inner
    return CodeNames(*map(frozenset, found))


def changed_attributes(functions: Mapping[str, Iterable[types.CodeType]]) -> CodeNames:
    """Returns the names of attributes that methods change while elements are computed.

    Methods that only the constructor calls do not count, nor do methods that assign an attribute
    without reading it, which set what they are given.

    Args:
        functions: the code of the methods of a class, by name, those of its bases included.
    """
    names = {name: [names_of(code) for code in codes] for name, codes in functions.items()}

    def reached(firsts: Iterable[str]) -> set[str]:
        found: set[str] = set()
        left = [name for name in firsts if name in names]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [other for one in names[name] for other in one.loaded if other in names]
        return found

    by_setup = reached(_SETUP)
    working = reached(names.keys() - by_setup)
    stored: set[str] = set()
    mutated: set[str] = set()
    for name in working - {*_SETUP}:
        is_work = name.startswith("__") or name in _WORK
        for one in names[name]:
            stored |= one.stored if is_work else one.stored & one.loaded
            mutated |= one.mutated
    return CodeNames(frozenset(), frozenset(), frozenset(stored), frozenset(mutated))


def _mutated(code: types.CodeType) -> Iterator[str]:
    """Yield the names of values that are changed in place.

    The compiler records for each instruction from where to where in the source its expression
    reaches. An instruction that begins where ``self.log[key]`` or ``self.log.append`` begins is
    part of the value that is changed: ``self`` or ``self.log``.
    """
    instructions = [*dis.get_instructions(code)]
    aliases = _aliases(instructions)
    for place, instruction in enumerate(instructions):
        is_mutator = instruction.opname in _ATTRIBUTES and instruction.argval in _MUTATORS
        if not is_mutator and instruction.opname not in _STORES:
            continue
        start = _start(instruction)
        if start is None:  # Python was told to record no places
            yield from _loaded(instructions[:place])
            continue
        within = [
            (at, one)
            for at, one in enumerate(instructions[:place])
            if start <= (_start(one) or (0, 0)) and _end(one) <= _end(instruction)
        ]
        roots = [one for _, one in within if _start(one) == start]
        names = [one.argval for one in roots if one.opname in _LOADS]
        yield from names
        if not names and instructions[:place]:  # a local variable
            before = instructions[within[0][0] - 1 if within else place - 1]
            local = _local(roots[0], is_last=False) if roots else _local(before, is_last=True)
            yield from aliases.get(local, ())


def _loaded(instructions: Iterable[dis.Instruction]) -> Iterator[str]:
    """Yield all names that are loaded."""
    return (one.argval for one in instructions if one.opname in _LOADS)


def _aliases(instructions: list[dis.Instruction]) -> dict[str | None, set[str]]:
    """Returns the attributes and globals that are known by the names of local variables, too."""
    found: dict[str | None, set[str]] = {}
    for before, one in itertools.pairwise(instructions):
        if one.opname.startswith("STORE_FAST") and before.opname in _LOADS:
            found.setdefault(_local(one, is_last=False), set()).add(before.argval)
    return found


def _local(instruction: dis.Instruction | None, *, is_last: bool) -> str | None:
    """Returns the local variable of an instruction, which may have two since Python 3.13."""
    if instruction is None or "_FAST" not in instruction.opname:
        return None
    name = instruction.argval
    return name[-1 if is_last else 0] if isinstance(name, tuple) else name


def _start(instruction: dis.Instruction) -> tuple[int, int] | None:
    positions = instruction.positions
    if positions is None or positions.lineno is None or positions.col_offset is None:
        return None
    return positions.lineno, positions.col_offset


def _end(instruction: dis.Instruction) -> tuple[int, int]:
    positions: Any = instruction.positions
    return positions.end_lineno, positions.end_col_offset
