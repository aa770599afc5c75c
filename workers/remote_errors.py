"""The transfer of an exception from a worker to the consumer.

An exception is taken apart into its class, its arguments, its fields (what built-in types and
``__slots__`` hold, the links to other exceptions among them), its ``__dict__`` and the places of
its frames. It is put together again without its constructor, whose arguments are unknown.

1. ``encode_error`` never raises, even if the code of the exception or of its arguments does.
2. ``decode_error`` never raises either, and what it returns is of the original's type wherever that
   can be had.
3. Each part travels by itself: one that cannot does no harm to the others. A ``LostValue`` has its
   place.
4. An exception met in several places (a cause that is an argument too, a cycle) is one exception
   afterwards, too.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import pickle
import reprlib
import textwrap
import traceback
from collections.abc import Callable
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType, TracebackType
from typing import Any, NamedTuple, TypeVar

from gristmill.workers.pickling import CloudPickler

_T = TypeVar("_T")
_Part = bytes | str  # a pickle; or the repr of what could not be pickled
# File, name, qualified name, first line of the code, (line, last line, column, its end).
_Frame = tuple[str, str, str, int, tuple[int, int, int, int]]
_Block = tuple[int, str, list[_Frame]]  # of a text: depth among groups, head, frames
_Field = GetSetDescriptorType | MemberDescriptorType

_MAX_FRAMES = 100  # of one traceback, half of them the outermost
_MAX_ERRORS = 1000  # that hang together
# of a value that is not text: the ``obj`` of an AttributeError may be a whole source
_MAX_BYTES = 1 << 26

_HEAPTYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not one of the types that are compiled into Python
# its descriptors get and set what a class may hide or forbid (such as a frozen one)
_BASE: Any = vars(BaseException)
_GROUP: Any = vars(BaseExceptionGroup)
_NOT_FIELDS = {"args", "__dict__", "__traceback__", "__class__", "__weakref__"}
_UNSET = object()

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 200


class RemoteError(RuntimeError):
    """An exception of a worker that could not be rebuilt here: its type, message and traceback as
    text.
    """


class LostValue:
    """Has the place, and the ``repr``, of an argument or attribute that could not travel with its
    exception.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def __dir__(self) -> list[str]:
        # or else a traceback would say of an AttributeError's lost ``obj``: did you mean '_text'?
        return []


class _ErrorNode(NamedTuple):
    """One of the exceptions that hang together."""

    text: list[_Block]  # for a RemoteError
    maker: _Part  # of _blank's arguments, or of the exception
    args: list[_Part]
    fields: dict[str, _Part]
    attributes: dict[str, _Part]
    frames: list[_Frame]


def encode_error(error: BaseException, skip_frames: int = 0) -> bytes:
    """Returns ``error`` and all exceptions that hang on it as bytes for ``decode_error``.

    Never raises. No local variables of the frames travel.

    Args:
        error: any exception.
        skip_frames: number of outermost frames of its traceback to omit.
    """
    try:
        return pickle.dumps(_Encoder(error).nodes(skip_frames))
    except BaseException:
        return pickle.dumps([_ErrorNode(_safe_blocks(error, []), "", [], {}, {}, [])])


def decode_error(data: bytes) -> BaseException:
    """Returns the exception that ``encode_error`` was given, ready for ``raise``; a ``RemoteError``
    if all else fails.

    Its frames show the worker's files, lines and functions. Never raises. As each ``raise`` adds
    frames, a caller that raises it more than once keeps ``tb = error.__traceback__`` and says
    ``raise error.with_traceback(tb)``.

    Example:
        >>> error = decode_error(encode_error(KeyError("colour")))
        >>> error
        KeyError('colour')
    """
    text = "the error of a worker could not be read"
    try:
        nodes = pickle.loads(data)
        text = _text(nodes[0].text)
        return _Decoder(nodes).decode()
    except Exception:
        return RemoteError(text)


class _Encoder:
    def __init__(self, error: BaseException) -> None:
        self._errors = [error]
        self._numbers = {id(error): 0}

    def nodes(self, skip_frames: int) -> list[_ErrorNode]:
        # The list grows while it is read.
        return [
            self._node(error, 0 if number else skip_frames)
            for number, error in enumerate(self._errors)
        ]

    def _node(self, error: BaseException, skip_frames: int) -> _ErrorNode:
        values = {name: _read(field, error) for name, field in _fields(type(error)).items()}
        frames: list[_Frame] = _safely([], _frames, error, skip_frames)
        return _ErrorNode(
            _safe_blocks(error, frames),
            self._maker(error),
            [self._part(value) for value in _BASE["args"].__get__(error)],
            {name: self._part(value) for name, value in values.items() if value is not _UNSET},
            {
                name: self._part(value)
                for name, value in _BASE["__dict__"].__get__(error).items()
                if type(name) is str
            },
            frames,
        )

    def _maker(self, error: BaseException) -> _Part:
        """Returns the part that makes the class, or else the exception as it wants to be
        pickled.
        """
        part: _Part = ""
        with contextlib.suppress(BaseException):
            recipe = (type(error), *_group_args(error))
            _blank(*recipe)
            part = self._part(recipe)
        return part if isinstance(part, bytes) else self._part(error, whole=error)

    def _part(self, value: object, whole: BaseException | None = None) -> _Part:
        try:
            file = _BoundedFile(math.inf if isinstance(value, (bytes, str)) else _MAX_BYTES)
            _ErrorPickler(file, self._number, whole).dump(value)
            return file.getvalue()
        except BaseException:
            return _shown(value)

    def _number(self, error: BaseException) -> int:
        if id(error) not in self._numbers:
            if len(self._errors) == _MAX_ERRORS:
                raise pickle.PicklingError("too many exceptions")
            self._numbers[id(error)] = len(self._errors)
            self._errors.append(error)
        return self._numbers[id(error)]


class _ErrorPickler(CloudPickler):
    """Writes numbers for exceptions, but for ``whole``."""

    def __init__(
        self, file: io.BytesIO, number: Callable[[BaseException], int], whole: BaseException | None
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number = number
        self._whole = whole

    def persistent_id(self, value: Any) -> int | None:
        return (
            self._number(value)
            if issubclass(type(value), BaseException) and value is not self._whole
            else None
        )


class _BoundedFile(io.BytesIO):
    def __init__(self, max_bytes: float) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise pickle.PicklingError("too large")
        return super().write(data)


class _Decoder:
    def __init__(self, nodes: list[_ErrorNode]) -> None:
        self._nodes = nodes
        self._errors: dict[int, BaseException] = {}
        self._rebuilt: set[int] = set()

    def decode(self) -> BaseException:
        for number, node in enumerate(self._nodes):
            error = self.error(number)
            if number in self._rebuilt:
                _BASE["args"].__set__(error, tuple(map(self._value, node.args)))
            _BASE["__dict__"].__get__(error).update(
                {name: self._value(part) for name, part in node.attributes.items()}
            )
            for name, field in _fields(type(error)).items():
                if name in node.fields:
                    _write(field, error, self._value(node.fields[name]))
            _BASE["__traceback__"].__set__(error, _safely(None, _traceback, node.frames))
        return self.error(0)

    def error(self, number: int) -> BaseException:
        if number not in self._errors:
            self._errors[number] = RemoteError(_text(self._nodes[number].text))
            with contextlib.suppress(Exception):  # a RemoteError is what it remains then
                made = self._value(self._nodes[number].maker)
                made = _blank(*made) if isinstance(made, tuple) else made
                if isinstance(made, BaseException):
                    self._errors[number] = made
                    self._rebuilt.add(number)
        return self._errors[number]

    def _value(self, part: _Part) -> object:
        if isinstance(part, str):
            return LostValue(part)
        try:
            return _ErrorUnpickler(io.BytesIO(part), self.error).load()
        except Exception as failure:
            return LostValue(f"<not loaded: {_shown(failure)}>")


class _ErrorUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, error: Callable[[int], BaseException]) -> None:
        super().__init__(file)
        self._error = error

    def persistent_load(self, number: int) -> BaseException:
        return self._error(number)


def _safely(otherwise: _T, function: Callable[..., _T], *args: object) -> _T:
    """For what runs code of users, which may raise anything."""
    try:
        return function(*args)
    except BaseException:
        return otherwise


def _blank(cls: Any, *args: object) -> object:
    """An instance of ``cls`` that only the ``__new__`` of a built-in type has seen."""
    base = cls
    while base.__flags__ & _HEAPTYPE:
        base = base.__base__
    return base.__new__(cls, *args)


def _fields(cls: type) -> dict[str, _Field]:
    fields = {
        f"{_name(owner)}.{name}": value
        for owner in cls.__mro__
        for name, value in vars(owner).items()
        if issubclass(type(value), _Field) and name not in _NOT_FIELDS
    }
    # Last, because setting __cause__ sets it.
    return dict(sorted(fields.items(), key=lambda item: item[0].endswith("__suppress_context__")))


def _read(field: _Field, error: BaseException) -> object:
    return _safely(_UNSET, field.__get__, error)


def _write(field: _Field, error: BaseException, value: object) -> None:
    with contextlib.suppress(Exception):  # nothing says which fields are read-only
        # a None that is set differs from the one of a fresh OSError
        if _read(field, error) is not value:
            field.__set__(error, value)


def _name(cls: type) -> str:
    return _safely("an exception", lambda: f"{cls.__module__}.{cls.__qualname__}")


def _shown(value: object) -> str:
    return _safely(f"<{_name(type(value))} object>", lambda: str.__str__(_repr.repr(value)))


def _group_args(error: BaseException) -> tuple[Any, ...]:
    """Message and members of a group, of other exceptions nothing."""
    names = ("message", "exceptions") if issubclass(type(error), BaseExceptionGroup) else ()
    return tuple(_GROUP[name].__get__(error) for name in names)


def _safe_blocks(error: BaseException, frames: list[_Frame]) -> list[_Block]:
    return _safely([(0, _name(type(error)), [])], _blocks, error, frames, 0)


def _blocks(error: BaseException, frames: list[_Frame], depth: int) -> list[_Block]:
    message = _safely("<its __str__ raises>", str, error)
    head = f"{_name(type(error))}: {message}\n\nThe worker's traceback (most recent call last):\n"
    members = [member for group in _group_args(error)[1:] for member in group]
    return [
        (depth, head, frames),
        *[block for x in members for block in _blocks(x, _frames(x, 0), depth + 1)],
    ]


def _text(blocks: list[_Block]) -> str:
    """Returns the text of blocks, in the consumer: a worker has no lines of a notebook's cells."""
    texts = [
        (depth, head + "".join(traceback.format_tb(_traceback(frames))))
        for depth, head, frames in blocks
    ]
    return "\n".join([textwrap.indent(text, "    " * depth) for depth, text in texts])


def _frames(error: BaseException, skip_frames: int) -> list[_Frame]:
    links: list[TracebackType] = []
    tb = _BASE["__traceback__"].__get__(error)
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    links = links[skip_frames:]
    left_out = len(links) - _MAX_FRAMES
    if left_out <= 0:
        return list(map(_frame, links))
    gap = f"... {left_out} frames left out ..."
    half = _MAX_FRAMES // 2
    return [
        *map(_frame, links[:half]),
        ("<...>", gap, gap, 1, (1, 1, -1, -1)),
        *map(_frame, links[-half:]),
    ]


def _frame(link: TracebackType) -> _Frame:
    code, line = link.tb_frame.f_code, link.tb_lineno or 1
    start, end, column, end_column = next(
        islice(code.co_positions(), max(link.tb_lasti // 2, 0), None), (None,) * 4
    )
    if (
        start != line
        or end is None
        or column is None
        or end_column is None
        or (start, column) > (end, end_column)
    ):
        end, column, end_column = line, -1, -1
    return (
        code.co_filename,
        code.co_name,
        code.co_qualname,
        code.co_firstlineno,
        (line, end, column, end_column),
    )


def _traceback(frames: list[_Frame]) -> TracebackType | None:
    tb = None
    for file, name, qualname, first_line, (line, end, column, end_column) in reversed(frames):
        tree = ast.parse("lambda: (yield)", mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = (
                    line,
                    end,
                    column,
                    end_column,
                )
        # IPython, and Python from 3.13 on, find the source of a program without a file by the first
        # line of the code.
        tree.body.lineno = tree.body.end_lineno = first_line
        tree.body.col_offset = tree.body.end_col_offset = 0
        namespace: dict[str, object] = {}
        function = eval(compile(tree, file, "eval"), namespace)
        code = function.__code__ = function.__code__.replace(co_name=name, co_qualname=qualname)
        shown = (line, end, column, end_column) if column >= 0 else (line, line, None, None)
        # The frame of a suspended generator is at its line and has no caller, so it keeps no frame
        # of the library alive.
        namespace["generator"] = generator = function()
        next(generator)
        tb = TracebackType(tb, generator.gi_frame, 2 * list(code.co_positions()).index(shown), line)
    return tb
