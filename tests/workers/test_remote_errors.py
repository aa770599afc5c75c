import builtins
import dataclasses
import gc
import json
import linecache
import pickle
import subprocess
import sys
import threading
import traceback
import weakref

import numpy as np
import programs
import pytest

from gristmill.workers import remote_errors
from gristmill.workers.remote_errors import RemoteError, decode_error, encode_error


def travel(error):
    return decode_error(encode_error(error))


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError(f"{function} raises nothing")


def raise_it(error):
    raise error


def lines_of(error):
    return traceback.format_exception(error)


def places(error):
    return traceback.extract_tb(error.__traceback__)


def fields(error):
    """All that a built-in type keeps beside the ``__dict__``."""
    names = {
        name
        for cls in type(error).__mro__
        for name, value in vars(cls).items()
        if hasattr(type(value), "__set__")
    }
    names -= {
        "__dict__",
        "__weakref__",
        "__traceback__",
        "__cause__",
        "__context__",
        "__class__",
        "args",
    }
    return {name: getattr(error, name, "unset") for name in names}


ARGS = {"BaseExceptionGroup": [], "ExceptionGroup": []}  # below
ARGS |= {"UnicodeDecodeError": [("utf-8", b"ab\xff", 2, 3, "invalid start byte")]}
ARGS |= {"UnicodeEncodeError": [("ascii", "ab\xff", 2, 3, "ordinal not in range(128)")]}
ARGS |= {"UnicodeTranslateError": [("ab\xff", 2, 3, "no such letter")]}
ANY_ARGS = [(), ("message",), (2, "two"), (13, "denied", "a.txt"), (2, "gone", "a", None, "b")]


def built_in_errors():
    kinds = sorted(
        {
            x
            for x in vars(builtins).values()
            if isinstance(x, type) and issubclass(x, BaseException)
        },
        key=repr,
    )
    for cls in kinds:
        for args in ARGS.get(
            cls.__name__, ANY_ARGS[:2] if issubclass(cls, SyntaxError) else ANY_ARGS
        ):
            yield cls(*args)


def cut_short():
    error = BlockingIOError(11, "again")
    error.characters_written = 7
    raise error


REAL_LIFE = [
    lambda: open("/no/such/file"),  # noqa: SIM115, PTH123
    lambda: b"\xff".decode(),
    lambda: compile("a = = 1", "file.py", "exec"),
    lambda: json.loads("{"),
    lambda: subprocess.run([sys.executable, "-c", "exit(3)"], check=True),
    lambda: np.zeros(3) + np.zeros(4),
    lambda: misspelt,  # noqa: F821
    cut_short,
]


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}{b}")
        self.a = a


def errors_of_users():
    """Of classes that are local: in another process, there would be copies of them."""

    class Slots(ValueError):
        __slots__ = ("__hidden", "empty", "given")

        def __init__(self, given):
            self.given = given
            self.__hidden = None

    class KeywordsOnly(OSError):
        def __init__(self, *, path):
            super().__init__(2, "gone", path)
            self.path = path

    class OwnNew(Exception):
        def __new__(cls, *, name):
            return super().__new__(cls, name)

        def __init__(self, *, name):
            self.name = name

    @dataclasses.dataclass(frozen=True, slots=True)
    class FrozenSlots(Exception):
        code: int

    kinds = [
        type("Several", (IndexError, ValueError), {}),
        type("OwnArgs", (Exception,), {"args": "whatever"}),
        type(
            "OwnReduce", (Exception,), {"__reduce__": lambda self: (Exception, ("something else",))}
        ),
    ]
    odd = [Slots([1]), KeywordsOnly(path="a.txt"), OwnNew(name="n"), FrozenSlots(3)]
    return [TwoArguments(1, 2), *odd, *[kind(1) for kind in kinds]]


def test_errors_are_kept_without_calling_their_types(monkeypatch):
    for error in (*built_in_errors(), *map(caught, REAL_LIFE), *errors_of_users()):
        vars(error)["__notes__"] = ["a note"]  # add_note fails on the frozen ones
        copy = travel(error)
        assert type(copy) is type(error)
        assert BaseException.args.__get__(copy) == BaseException.args.__get__(error)
        assert (str(copy), repr(copy), vars(copy), fields(copy)) == (
            str(error),
            repr(error),
            vars(error),
            fields(error),
        )
        assert lines_of(copy) == lines_of(error)
        if error.__traceback__ is None:
            assert copy.__cause__ is copy.__context__ is copy.__traceback__ is None
        if type(error).__name__ == "Slots":
            assert (copy.given, copy._Slots__hidden, hasattr(copy, "empty")) == ([1], None, False)
    copy = travel(caught(lambda: json.no_such_function))
    assert (copy.name, copy.obj) == ("no_such_function", json)
    monkeypatch.setattr(remote_errors, "_MAX_BYTES", 1000)
    copy = travel(AttributeError("no such", obj={"records": np.zeros(1000)}, name="recrods"))
    assert copy.name == "recrods"
    assert repr(copy.obj).startswith("{'records': array([0., ")
    assert type(copy.obj) is not dict
    # Bytes and text are not shortened: the message of these errors is made from them.
    error = caught((b"a" * 2000 + b"\xff").decode)
    assert str(travel(error)) == str(error)


def class_with_a_lock():
    methods = {
        "lock": threading.Lock(),
        "__reduce__": lambda self: (revive, (self.args, self.worth_keeping)),
    }
    return type("WithALock", (ValueError,), {**methods, "__qualname__": "Local.WithALock"})


def revive(args, worth_keeping):
    error = class_with_a_lock()(*args)
    error.worth_keeping = worth_keeping
    return error


def test_values_that_cannot_travel_are_replaced_alone():
    lock = threading.Lock()
    bad = type("LoadsBadly", (), {"__reduce__": lambda self: (int, ("not a number",))})()
    error = TwoArguments("a", "b")
    error.args = ("text", lambda: 42, np.arange(3), {"nested": [np.float32(2)]}, lock, [lock], bad)
    error.lock, error.function = lock, lambda x: x + 1
    copy = travel(error)
    text, function, array, nested, lost, _, badly = copy.args
    assert (text, function(), array.tolist(), nested) == ("text", 42, [0, 1, 2], {"nested": [2.0]})
    assert (type(copy), copy.a, copy.function(1)) == (TwoArguments, "a", 2)
    assert repr(lost) == repr(copy.lock) == repr(lock) and dir(copy.lock) == []
    assert "not loaded" in repr(badly) and "invalid literal" in repr(badly)
    error.args = ("text", lock, 3)
    assert str(travel(error)) == str(error)


BAD = [
    RuntimeError("x"),
    StopIteration(),
    KeyboardInterrupt(),
    SystemExit(),
    RecursionError(),
    GeneratorExit(),
    MemoryError(),
]


@pytest.mark.parametrize("error", BAD, ids=repr)
def test_arguments_and_the_exception_itself_may_raise_anything(error):
    def fail(*args):
        raise error

    names = [
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__str__",
        "__repr__",
        "__eq__",
        "__hash__",
    ]
    evil = type("Evil", (), dict.fromkeys([*names, "__format__", "__len__"], fail))()
    copy = travel(ValueError("text", evil))
    assert (type(copy), copy.args[0]) == (ValueError, "text") and "Evil" in repr(copy.args[1])
    cls = type(
        "Bad",
        (ValueError,),
        dict.fromkeys([*names, "__setattr__"], fail) | {"message": property(fail)},
    )
    copy = travel(cls("text"))
    assert (type(copy), copy.args) == (cls, ("text",))

    class Meta(type):
        __reduce_ex__ = __getattribute__ = fail

    worst = Meta(
        "Worst", (Exception,), {"__getattribute__": fail, "__str__": fail, "__reduce_ex__": fail}
    )
    assert type(travel(caught(raise_it, worst("text")))) is RemoteError


def test_values_that_are_too_deep():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    copy = travel(ValueError("deep", deep))
    assert (type(copy), copy.args[0]) == (ValueError, "deep")
    while deep:  # or else taking it down recurses as well
        (deep,) = deep
    unreachable = type(
        "Unreachable", (Exception,), {"__getattribute__": lambda self, name: {}[name]}
    )
    copy = travel(caught(raise_it, unreachable("text")))
    assert (type(copy), BaseException.args.__get__(copy)) == (unreachable, ("text",))


def outer_failure():
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            error.add_note("the note of the first")
            raise TwoArguments(1, 2) from error
    except TwoArguments:
        raise OSError(2, "gone", "a.txt")  # noqa: B904 (the context is the point)


def test_the_chain_of_causes_comes_along():
    error = caught(outer_failure)
    copy = travel(error)
    inner = copy.__context__
    assert (
        type(copy) is FileNotFoundError and copy.__cause__ is None and not copy.__suppress_context__
    )
    assert type(inner) is TwoArguments and inner.a == 1 and inner.__suppress_context__
    assert inner.__cause__ is inner.__context__
    assert inner.__cause__.__notes__ == ["the note of the first"]
    assert lines_of(copy) == lines_of(error) == lines_of(travel(copy))
    among_values = travel(RuntimeError("outer", {"inner": error})).args[1]["inner"]
    assert lines_of(among_values) == lines_of(error)
    error.__context__, error.__suppress_context__ = KeyError(1), True  # as "from None" makes it
    copy = travel(error)
    assert copy.__cause__ is None and copy.__suppress_context__ and copy.__context__.args == (1,)
    a, b = ValueError("a"), TypeError("b")
    a.__cause__, b.__cause__, a.__context__ = b, a, a
    a.args = ("a", b)
    b.me = [b]
    copy = travel(a)
    assert copy.__cause__.__cause__ is copy.__context__ is copy and copy.args[1] is copy.__cause__
    assert copy.args[1].me == [copy.__cause__]
    error = None
    for number in range(1500):
        link = ValueError(number)
        link.__cause__ = error
        error = link
    copy, length = travel(error), 0
    while copy is not None:
        assert copy.args == (1499 - length,)
        copy, length = copy.__cause__, length + 1
    assert length == 1000


class OwnGroup(ExceptionGroup):
    def __new__(cls, members, code):
        self = super().__new__(cls, f"code {code}", members)
        self.code = code
        return self

    def derive(self, members):
        return OwnGroup(members, self.code)


GROUPS = {
    "plain": lambda members: ExceptionGroup("plain", members),
    "own": lambda members: OwnGroup(members, 7),
    "base": lambda members: BaseExceptionGroup("base", (*members, KeyboardInterrupt())),
    "nested": lambda members: ExceptionGroup(
        "nested", [ExceptionGroup("inner", members), members[0]]
    ),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_groups(kind):
    error = caught(
        raise_it, GROUPS[kind]([caught(outer_failure), caught(raise_it, TwoArguments(1, 2))])
    )
    error.add_note("a note")
    copy = travel(error)
    for look in (
        type,
        vars,
        lines_of,
        lambda group: (group.message, [*map(type, group.exceptions)], type(group.args[1])),
    ):
        assert look(copy) == look(error)
    assert kind == "own" or tuple(copy.args[1]) == copy.exceptions
    assert copy.subgroup(FileNotFoundError).message == error.message


class Failing:
    def method(self):
        return caught(outer_failure) and [1, 2][10 + 20]


def through_several():
    return (lambda: Failing().method())()


def test_frames_show_files_lines_and_functions_of_the_worker():
    error = caught(through_several)
    copy = travel(error)
    tb = copy.__traceback__
    assert places(copy) == places(error)
    assert traceback.format_tb(tb) == traceback.format_tb(error.__traceback__)
    last = places(copy)[-1]
    assert (last.filename, last.name, last.line) == (
        __file__,
        "method",
        "return caught(outer_failure) and [1, 2][10 + 20]",
    )
    frames = [frame for frame, _ in traceback.walk_tb(tb)]
    assert (frames[-1].f_code.co_name, frames[-1].f_code.co_qualname) == (
        "method",
        "Failing.method",
    )
    assert [frame.f_locals for frame in frames] == [{}] * 4

    def again():
        raise copy.with_traceback(tb)

    assert [len(places(caught(again))) for _ in range(3)] == [6, 6, 6]
    error.__context__ = caught(through_several)
    names = ["caught", "through_several", "<lambda>", "method"]
    for skip in range(5):  # of the outermost ones
        copy = decode_error(encode_error(error, skip_frames=skip))
        assert [frame.name for frame in places(copy)] == names[skip:]
        assert [frame.name for frame in places(copy.__context__)] == names
    assert decode_error(encode_error(error, skip_frames=10)).__traceback__ is None


def recurse(n):
    return recurse(n + 1)


def test_frames_that_are_too_many_or_cannot_be_read():
    code = compile("def gone():\n  raise KeyError(\n    1\n  )\n", "/no/such/file.py", "exec")
    names = {}
    exec(code, names)
    (line,) = traceback.format_tb(travel(caught(names["gone"])).__traceback__)[1:]
    assert line == '  File "/no/such/file.py", line 2, in gone\n'

    error = caught(recurse, 0)
    data = encode_error(error)
    frames, whole = places(decode_error(data)), places(error)
    assert len(data) < 50_000 and (len(frames), frames[:50], frames[-50:]) == (
        101,
        whole[:50],
        whole[-50:],
    )
    assert frames[50].name == f"... {len(whole) - 100} frames left out ..."
    script = """if True:
        import traceback
        from gristmill.workers.remote_errors import decode_error, encode_error
        try:
            1 + 1 / 0
        except ZeroDivisionError as error:
            for each in (error, decode_error(encode_error(error))):
                traceback.print_exception(each)
    """
    command = [sys.executable, "-X", "no_debug_ranges", "-c", script]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr.splitlines()
    half = len(lines) // 2  # from Python 3.13 on with the line of the program
    assert lines[:half] == lines[half:] and half >= 3 and not any(["^" in line for line in lines])


def test_lines_of_a_program_without_a_file(monkeypatch):
    source, names = "def fail():\n\n  raise error\n", {"error": class_with_a_lock()("the message")}
    exec(compile(source, "<a cell>", "exec"), names)
    data = encode_error(caught(names["fail"]))  # without the source
    monkeypatch.setitem(
        linecache.cache,
        "<a cell>",
        (len(source), None, source.splitlines(keepends=True), "<a cell>"),
    )
    copy = decode_error(data)
    assert type(copy) is RemoteError
    assert '  File "<a cell>", line 3, in fail\n    raise error\n' in str(copy)
    *_, (frame, _) = traceback.walk_tb(copy.__traceback__)
    assert (frame.f_lineno, frame.f_code.co_firstlineno, frame.f_back) == (3, 1, None)


def test_nothing_of_the_consumer_is_kept_alive():
    class Anything:
        pass

    def receive(data):
        anything = Anything()
        gone.append(weakref.ref(anything))
        return decode_error(data)

    gone = []
    data = encode_error(caught(raise_it, TwoArguments(1, 2)))
    gc.disable()
    try:
        error = receive(data)
        assert error.__traceback__ is not None and gone[0]() is None
        gone.append(weakref.ref(error))
        del error
        assert gone[1]() is None
    finally:
        gc.enable()


def test_what_cannot_be_rebuilt_is_a_remote_error():
    # which cannot be pickled, nor its instances, as they lack the attribute
    cls = class_with_a_lock()
    error = caught(raise_it, cls("the message"))
    error.__cause__ = caught(outer_failure)
    error.add_note("a note")
    copy, message = travel(error), str(travel(error))
    assert type(copy) is RemoteError and isinstance(copy, RuntimeError)
    assert message.startswith(f"{__name__}.Local.WithALock: the message\n")
    assert traceback.format_tb(error.__traceback__)[-1] in message
    assert copy.__notes__ == ["a note"]
    assert copy.__suppress_context__
    assert type(copy.__cause__) is FileNotFoundError
    assert traceback.format_tb(copy.__traceback__) == traceback.format_tb(error.__traceback__)
    for again in (pickle.loads(pickle.dumps(copy)), travel(copy)):
        assert type(again) is RemoteError and again.args == copy.args
    first = ValueError("first")  # a link does no harm to the others
    first.__cause__ = error
    error.__cause__ = KeyError("third")
    copy = travel(first)
    links = type(copy), type(copy.__cause__), repr(copy.__cause__.__cause__)
    assert links == (ValueError, RemoteError, "KeyError('third')")
    error.worth_keeping = "this"  # and now it can be pickled in its own way
    copy = travel(error)
    assert (type(copy).__name__, copy.args) == ("WithALock", ("the message",))
    assert vars(copy) == {"worth_keeping": "this", "__notes__": ["a note"]}

    group = type("Group", (ExceptionGroup,), {"lock": threading.Lock()})
    message = str(travel(group("many", [caught(outer_failure), ValueError("second")])))
    assert ".Group: many (2 sub-exceptions)" in message and "in outer_failure" in message
    assert "    builtins.FileNotFoundError: [Errno 2] gone" in message
    assert "    builtins.ValueError: second" in message
    for data in (
        b"",
        b"nonsense",
        pickle.dumps([]),
        pickle.dumps(None),
        encode_error(KeyError(1))[:-10],
    ):
        assert "could not be read" in str(decode_error(data))


CONSUMER = """
    import sys, traceback
    import gristmill as gm
    from gristmill.workers.remote_errors import RemoteError
    class MyError(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a}{b}")
    class MyGroup(ExceptionGroup):
        pass
    def fail(how):
        if how == "group":
            raise MyGroup("group", [MyError(3, 4)])
        if how == "made there":
            raise type("MadeThere", (MyError,), {})(1, 2)
        import only_there
        if how == "value":
            raise ValueError("text", only_there.Value())
        only_there.fail()
    def in_worker(how):
        ds = gm.MapDataset.source([how]).map(fail).to_iter_dataset()
        options = gm.MultiprocessingOptions(1, executor="processes")
        try:
            next(iter(ds.mp_prefetch(options, lambda i, n: sys.path.append(sys.argv[1]))))
        except Exception as error:
            return error
    group, made, lost, value = map(in_worker, ["group", "made there", "only there", "value"])
    assert (
        type(group) is MyGroup
        and type(group.exceptions[0]) is MyError
        and group.exceptions[0].args == ("34",)
    ), group
    assert isinstance(made, MyError) and type(made).__name__ == "MadeThere" and made.args == ("12",)
    assert type(lost) is RemoteError, lost
    assert str(lost).startswith(
        "only_there.ThereError: fails\\n"
    ) and 'only_there.py", line 4, in fail' in str(lost), lost
    assert [frame.name for frame in traceback.extract_tb(lost.__traceback__)][-2:] == [
        "fail",
        "fail",
    ]
    assert type(value) is ValueError and value.args[0] == "text"
    assert "No module named 'only_there'" in repr(value.args[1]), value
"""
ONLY_THERE = """
class ThereError(Exception): pass
class Value: pass
def fail(): raise ThereError("fails")
"""


def test_between_processes(tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "only_there.py").write_text(ONLY_THERE)
    assert programs.output(tmp_path, CONSUMER, tmp_path / "path") == []
