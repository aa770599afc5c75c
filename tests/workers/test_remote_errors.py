import builtins
import dataclasses
import gc
import json
import pickle
import subprocess
import sys
import threading
import traceback
import weakref

import numpy as np
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


def fields(error):
    """All that a built-in type keeps beside the ``__dict__``."""
    names = {name for cls in type(error).__mro__ for name, value in vars(cls).items() if hasattr(type(value), "__set__")}
    names -= {"__dict__", "__weakref__", "__traceback__", "__cause__", "__context__", "__class__", "args"}
    return {name: getattr(error, name, "unset") for name in names}


# Built-in types

ARGS = {
    "UnicodeDecodeError": [("utf-8", b"ab\xff", 2, 3, "invalid start byte")],
    "UnicodeEncodeError": [("ascii", "ab\xff", 2, 3, "ordinal not in range(128)")],
    "UnicodeTranslateError": [("ab\xff", 2, 3, "no such letter")],
    "BaseExceptionGroup": [],  # below
    "ExceptionGroup": [],
}
ANY_ARGS = [(), ("message",), (2, "two"), (13, "denied", "a.txt"), (2, "gone", "a", None, "b")]
BUILT_IN = sorted({x for x in vars(builtins).values() if isinstance(x, type) and issubclass(x, BaseException)}, key=repr)


def check_same(copy, error):
    assert type(copy) is type(error)
    assert BaseException.args.__get__(copy) == BaseException.args.__get__(error)
    assert (str(copy), repr(copy)) == (str(error), repr(error))
    assert vars(copy) == vars(error)
    assert fields(copy) == fields(error)


@pytest.mark.parametrize("cls", BUILT_IN)
def test_every_built_in_type(cls):
    for args in ARGS.get(cls.__name__, ANY_ARGS[:2] if issubclass(cls, SyntaxError) else ANY_ARGS):
        error = cls(*args)
        error.add_note("a note")
        copy = travel(error)
        check_same(copy, error)
        assert vars(copy) == {"__notes__": ["a note"]}
        assert copy.__cause__ is copy.__context__ is copy.__traceback__ is None


def raise_name_error():
    return misspelt  # noqa: F821


def cut_short():
    error = BlockingIOError(11, "again")
    error.characters_written = 7
    raise error


@pytest.mark.parametrize(
    "function",
    [
        lambda: open("/no/such/file"),  # noqa: SIM115, PTH123
        lambda: b"\xff".decode(),
        lambda: "\xff".encode("ascii"),
        lambda: __import__("no_such_module"),
        lambda: compile("a = = 1", "file.py", "exec"),
        lambda: sys.exit(123),
        lambda: next(iter(())),
        lambda: json.loads("{"),
        lambda: subprocess.run([sys.executable, "-c", "exit(3)"], check=True),
        lambda: {}["key"],
        lambda: (1).imaginary,
        lambda: np.zeros(3).reshape(2, 2),
        lambda: np.zeros(3) + np.zeros(4),
        raise_name_error,
        cut_short,
    ],
)
def test_what_is_raised_in_real_life(function):
    error = caught(function)
    copy = travel(error)
    check_same(copy, error)
    assert traceback.format_exception(copy) == traceback.format_exception(error)


def test_the_object_of_an_attribute_error_travels_by_value():
    error = caught(lambda: json.no_such_function)
    copy = travel(error)
    assert (copy.name, copy.obj) == ("no_such_function", json)


def test_a_huge_object_of_an_attribute_error_does_not_travel(monkeypatch):
    monkeypatch.setattr(remote_errors, "_MAX_BYTES", 1000)
    source = {"records": np.zeros(1000)}
    copy = travel(AttributeError("no such", obj=source, name="recrods"))
    assert copy.name == "recrods"
    assert repr(copy.obj).startswith("{'records': array([0., ")
    assert type(copy.obj) is not dict
    # Of bytes and text nothing is left out: the message of these errors is made from them.
    error = caught((b"a" * 2000 + b"\xff").decode)
    assert str(travel(error)) == str(error)


# Types of users


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}{b}")
        self.a = a


class Duplicates(Exception):
    """Pickles and loads, but as another one."""

    def __init__(self, text, level=1):
        super().__init__(f"[{level}] {text}")


class NoArguments(Exception):
    def __init__(self):
        super().__init__("made", "up")


class Slots(ValueError):
    __slots__ = ("__hidden", "empty", "given")

    def __init__(self, given):
        self.given = given
        self.__hidden = None

    def hidden(self):
        return self.__hidden


class KeywordsOnly(OSError):
    def __init__(self, *, path):
        super().__init__(2, "gone", path)
        self.path = path


class OwnNew(Exception):
    def __new__(cls, *, name):
        return super().__new__(cls, name)

    def __init__(self, *, name):
        self.name = name


class OwnReduce(Exception):
    def __reduce__(self):
        return Exception, ("something else",)


class BadReduce(Exception):
    def __reduce__(self):
        raise RuntimeError("not me")


class Several(IndexError, ValueError):
    pass


class OwnArgs(Exception):
    args = "whatever"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots(Exception):
    code: int


MADE = [
    *(TwoArguments(1, 2), Duplicates("text"), NoArguments(), Slots([1]), KeywordsOnly(path="a.txt"), OwnNew(name="n")),
    *(OwnReduce(1), BadReduce(1), Several(1), OwnArgs(1), Frozen(3), FrozenSlots(3)),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_types_of_users_are_kept_without_calling_them(error):
    vars(error)["__notes__"] = ["a note"]  # add_note fails on the frozen ones
    check_same(travel(error), error)


def test_slots():
    copy = travel(Slots("value"))
    assert (copy.given, copy.hidden(), hasattr(copy, "empty")) == ("value", None, False)


def test_local_classes():
    class Local(Exception):
        pass

    assert type(travel(Local(1))) is Local  # in another process, it would be a copy of the class


def class_with_a_lock():
    class WithALock(ValueError):
        lock = threading.Lock()

        def __reduce__(self):
            return revive, (self.args, self.worth_keeping)

    return WithALock


def revive(args, worth_keeping):
    error = class_with_a_lock()(*args)
    error.worth_keeping = worth_keeping
    return error


def test_an_exception_that_pickles_unlike_its_class():
    error = class_with_a_lock()(1, 2)
    error.worth_keeping = "this"
    error.add_note("a note")
    copy = travel(error)
    assert type(copy).__name__ == "WithALock"
    assert copy.args == (1, 2)
    assert vars(copy) == {"worth_keeping": "this", "__notes__": ["a note"]}


# Values


def test_values_travel_by_value():
    error = ValueError("text", lambda: 42, np.arange(3), {"nested": [np.float32(2)]})
    error.function = lambda x: x + 1
    copy = travel(error)
    assert copy.args[0] == "text"
    assert copy.args[1]() == 42
    np.testing.assert_array_equal(copy.args[2], np.arange(3))
    assert copy.args[3] == {"nested": [2.0]}
    assert copy.function(1) == 2


def test_what_cannot_be_pickled_is_replaced_alone():
    lock = threading.Lock()
    error = TwoArguments("a", "b")
    error.args = ("text", lock, 3, [lock])
    error.lock, error.kept = lock, "kept"
    copy = travel(error)
    assert type(copy) is TwoArguments
    assert str(copy) == str(error)
    assert (copy.args[0], copy.args[2]) == ("text", 3)
    assert repr(copy.args[1]) == repr(copy.lock) == repr(lock)
    assert (copy.a, copy.kept) == ("a", "kept")
    assert "text" not in dir(copy.lock)


class LoadsBadly:
    def __reduce__(self):
        return int, ("not a number",)


def test_what_cannot_be_loaded_is_replaced_alone():
    copy = travel(KeyError("text", LoadsBadly()))
    assert type(copy) is KeyError
    assert copy.args[0] == "text"
    assert "not loaded" in repr(copy.args[1])
    assert "invalid literal" in repr(copy.args[1])


class Evil:
    """Raises whatever is done to it."""

    def __init__(self, error):
        self.error = error

    def fail(self, *args):
        raise self.error

    __reduce_ex__ = __repr__ = __str__ = __eq__ = __hash__ = __format__ = __len__ = fail


BAD = [RuntimeError("x"), StopIteration(), KeyboardInterrupt(), SystemExit(), RecursionError(), GeneratorExit(), MemoryError()]


@pytest.mark.parametrize("error", BAD, ids=repr)
def test_arguments_and_the_exception_itself_may_raise_anything(error):
    copy = travel(ValueError("text", Evil(error)))
    assert type(copy) is ValueError
    assert copy.args[0] == "text"
    assert "Evil" in repr(copy.args[1])

    def fail(*args):
        raise error

    names = ["__reduce__", "__reduce_ex__", "__getstate__", "__str__", "__repr__", "__eq__", "__hash__", "__setattr__"]
    cls = type("Bad", (ValueError,), dict.fromkeys(names, fail) | {"message": property(fail)})
    copy = travel(cls("text"))
    assert type(copy) is cls
    assert copy.args == ("text",)


def test_a_value_that_is_too_deep():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    copy = travel(ValueError("deep", deep))
    assert type(copy) is ValueError
    assert copy.args[0] == "deep"
    while deep:  # or else taking it down recurses as well
        (deep,) = deep


class Unreachable(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)


def test_an_exception_without_attributes():
    copy = travel(caught(raise_it, Unreachable("text")))
    assert type(copy) is Unreachable
    assert BaseException.args.__get__(copy) == ("text",)


def raise_it(error):
    raise error


# Links


def outer_failure():
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            error.add_note("the note of the first")
            raise TwoArguments(1, 2) from error
    except TwoArguments:
        raise OSError(2, "gone", "a.txt")  # noqa: B904 (the context is the point)


def test_the_chain_comes_along():
    error = caught(outer_failure)
    copy = travel(error)
    assert type(copy) is FileNotFoundError
    assert copy.__cause__ is None
    assert not copy.__suppress_context__
    assert type(copy.__context__) is TwoArguments
    assert copy.__context__.a == 1
    assert copy.__context__.__suppress_context__
    assert copy.__context__.__cause__ is copy.__context__.__context__
    assert copy.__context__.__cause__.__notes__ == ["the note of the first"]
    assert traceback.format_exception(copy) == traceback.format_exception(error)


def test_from_none():
    def fail():
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError(2) from None

    copy = travel(caught(fail))
    assert copy.__cause__ is None
    assert copy.__suppress_context__
    assert copy.__context__.args == (1,)


def test_cycles():
    a, b = ValueError("a"), TypeError("b")
    a.__cause__, b.__cause__, a.__context__ = b, a, a
    a.args = ("a", b)
    b.me = [b]
    copy = travel(a)
    assert copy.__cause__.__cause__ is copy.__context__ is copy
    assert copy.args[1] is copy.__cause__
    assert copy.args[1].me == [copy.__cause__]


def test_an_exception_among_the_values_keeps_its_traceback():
    inner = caught(outer_failure)
    error = RuntimeError("outer", {"inner": inner})
    copy = travel(error).args[1]["inner"]
    assert traceback.format_exception(copy) == traceback.format_exception(inner)


def test_a_very_long_chain_is_cut():
    error = None
    for number in range(5000):
        link = ValueError(number)
        link.__cause__ = error
        error = link
    copy = travel(error)
    length = 0
    while copy is not None:
        assert copy.args == (4999 - length,)
        copy, length = copy.__cause__, length + 1
    assert length == 1000


# Groups


class OwnGroup(ExceptionGroup):
    def __new__(cls, members, code):
        self = super().__new__(cls, f"code {code}", members)
        self.code = code
        return self

    def derive(self, members):
        return OwnGroup(members, self.code)


def make_group(kind):
    members = [caught(outer_failure), caught(raise_it, TwoArguments(1, 2))]
    if kind == "own":
        raise OwnGroup(members, 7)
    if kind == "base":
        raise BaseExceptionGroup("base", (*members, KeyboardInterrupt()))
    if kind == "nested":
        raise ExceptionGroup("nested", [ExceptionGroup("inner", members), members[0]])
    raise ExceptionGroup("plain", members)


@pytest.mark.parametrize("kind", ["plain", "own", "base", "nested"])
def test_groups(kind):
    error = caught(make_group, kind)
    error.add_note("a note")
    copy = travel(error)
    assert type(copy) is type(error)
    assert copy.message == error.message
    assert [type(member) for member in copy.exceptions] == [type(member) for member in error.exceptions]
    assert type(copy.args[1]) is type(error.args[1])
    assert kind == "own" or tuple(copy.args[1]) == copy.exceptions
    assert vars(copy) == vars(error)
    assert traceback.format_exception(copy) == traceback.format_exception(error)
    assert copy.subgroup(FileNotFoundError).message == error.message


def test_a_group_that_cannot_be_rebuilt_says_what_was_in_it():
    class Group(ExceptionGroup):
        lock = threading.Lock()

    copy = travel(Group("many", [caught(outer_failure), ValueError("second")]))
    assert type(copy) is RemoteError
    assert ".Group: many (2 sub-exceptions)" in str(copy)
    assert "    builtins.FileNotFoundError: [Errno 2] gone" in str(copy)
    assert "in outer_failure" in str(copy)
    assert "    builtins.ValueError: second" in str(copy)


# Tracebacks


class Failing:
    def method(self):
        return caught(outer_failure) and [1, 2][10 + 20]


def through_several():
    return (lambda: Failing().method())()


def test_frames_show_the_files_lines_and_functions_of_the_worker():
    error = caught(through_several)
    copy = travel(error)
    assert traceback.extract_tb(copy.__traceback__) == traceback.extract_tb(error.__traceback__)
    assert traceback.format_tb(copy.__traceback__) == traceback.format_tb(error.__traceback__)
    last = traceback.extract_tb(copy.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "method")
    assert last.line == "return caught(outer_failure) and [1, 2][10 + 20]"
    code = [frame.f_code for frame, _ in traceback.walk_tb(copy.__traceback__)][-1]
    assert (code.co_name, code.co_qualname) == ("method", "Failing.method")
    assert [frame.f_locals for frame, _ in traceback.walk_tb(copy.__traceback__)] == [{}] * 4


def test_outer_frames_can_be_left_out():
    error = caught(through_several)
    error.__context__ = caught(through_several)
    names = ["caught", "through_several", "<lambda>", "method"]
    for skip in range(5):
        copy = decode_error(encode_error(error, skip_frames=skip))
        assert [frame.name for frame in traceback.extract_tb(copy.__traceback__)] == names[skip:]
        assert [frame.name for frame in traceback.extract_tb(copy.__context__.__traceback__)] == names
    assert decode_error(encode_error(error, skip_frames=10)).__traceback__ is None


def test_files_that_cannot_be_read_here():
    code = compile("def gone():\n  raise KeyError(\n    1\n  )\n", "/no/such/file.py", "exec")
    names = {}
    exec(code, names)
    (line,) = traceback.format_tb(travel(caught(names["gone"])).__traceback__)[1:]
    assert line == '  File "/no/such/file.py", line 2, in gone\n'


NO_COLUMNS = """
import traceback
from gristmill.workers.remote_errors import decode_error, encode_error

def fail():
    return 1 + 1 / 0

try:
    fail()
except ZeroDivisionError as error:
    for each in (error, decode_error(encode_error(error))):
        traceback.print_exception(each)
"""


def test_code_without_columns(tmp_path):
    (tmp_path / "script.py").write_text(NO_COLUMNS)
    command = [sys.executable, "-X", "no_debug_ranges", tmp_path / "script.py"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr.splitlines()
    assert len(lines) == 12  # none has carets
    assert lines[:6] == lines[6:]


def recurse(n):
    return recurse(n + 1)


def test_long_recursions_are_shortened():
    error = caught(recurse, 0)
    data = encode_error(error)
    assert len(data) < 50_000
    frames = traceback.extract_tb(decode_error(data).__traceback__)
    whole = traceback.extract_tb(error.__traceback__)
    assert len(frames) == 101
    assert frames[:50] == whole[:50]
    assert frames[-50:] == whole[-50:]
    assert frames[50].name == f"... {len(whole) - 100} frames left out ..."


def test_raising_again_does_not_grow():
    error = travel(caught(through_several))
    tb = error.__traceback__

    def again():
        raise error.with_traceback(tb)

    assert [len(traceback.extract_tb(caught(again).__traceback__)) for _ in range(3)] == [6, 6, 6]


def test_what_arrives_can_travel_again():
    error = travel(caught(outer_failure))
    copy = travel(error)
    assert type(copy) is FileNotFoundError
    assert traceback.format_exception(copy) == traceback.format_exception(error)
    remote = travel(caught(raise_it, class_with_a_lock()("text")))
    again = travel(remote)
    assert type(again) is type(remote) is RemoteError
    assert again.args == remote.args


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
        assert error.__traceback__ is not None
        assert gone[0]() is None
        gone.append(weakref.ref(error))
        del error
        assert gone[1]() is None
    finally:
        gc.enable()


# What cannot be rebuilt


def test_remote_error():
    cls = class_with_a_lock()  # which cannot be pickled, nor its instances, as they lack the attribute
    error = caught(raise_it, cls("the message"))
    error.__cause__ = caught(outer_failure)
    error.add_note("a note")
    copy = travel(error)
    assert type(copy) is RemoteError
    assert isinstance(copy, RuntimeError)
    message = str(copy)
    assert message.startswith(f"{__name__}.class_with_a_lock.<locals>.WithALock: the message\n")
    assert traceback.format_tb(error.__traceback__)[-1] in message
    assert copy.__notes__ == ["a note"]
    assert type(copy.__cause__) is FileNotFoundError
    assert copy.__suppress_context__
    assert traceback.format_tb(copy.__traceback__) == traceback.format_tb(error.__traceback__)
    assert pickle.loads(pickle.dumps(copy)).args == copy.args


def test_a_link_that_cannot_be_rebuilt_does_no_harm_to_the_others():
    error = ValueError("first")
    error.__cause__ = class_with_a_lock()("second")
    error.__cause__.__cause__ = KeyError("third")
    copy = travel(error)
    assert type(copy) is ValueError
    assert type(copy.__cause__) is RemoteError
    assert repr(copy.__cause__.__cause__) == "KeyError('third')"


def test_everything_fails():
    def fail(*args):
        raise KeyboardInterrupt

    class Meta(type):
        __reduce_ex__ = __getattribute__ = fail

    cls = Meta("Worst", (Exception,), {"__getattribute__": fail, "__str__": fail, "__reduce_ex__": fail})
    copy = travel(caught(raise_it, cls("text")))
    assert type(copy) is RemoteError


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps([]), pickle.dumps(None), encode_error(KeyError(1))[:-10]])
def test_data_that_cannot_be_read(data):
    assert "could not be read" in str(decode_error(data))


# From process to process

WORKER = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from gristmill.workers.pickling import remember_received_classes
from gristmill.workers.remote_errors import encode_error
function = pickle.load(sys.stdin.buffer)
remember_received_classes()
try:
    function()
except BaseException as error:
    sys.stdout.buffer.write(encode_error(error, skip_frames=1))
"""

CONSUMER = """
import enum, pickle, subprocess, sys, traceback
from gristmill.workers import pickling
from gristmill.workers.remote_errors import RemoteError, decode_error

class Colour(enum.Enum):
    RED = 1

class MyError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}{b}")
        self.colour = Colour.RED

class MyGroup(ExceptionGroup):
    pass

def chained():
    try:
        raise MyError(1, 2)
    except MyError as error:
        raise MyGroup("group", [error, MyError(3, 4), KeyError(5)]) from error

def only_there():
    import only_there
    only_there.fail()

def value_only_there():
    import only_there
    raise ValueError("text", only_there.Value())

def made_there():
    class MadeThere(MyError):
        pass
    raise MadeThere(1, 2)

def in_worker(function):
    command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
    child = subprocess.run(command, input=pickling.dumps(function), stdout=subprocess.PIPE, check=True, timeout=60)
    return decode_error(child.stdout)

error = in_worker(chained)
assert type(error) is MyGroup, error
assert type(error.exceptions[0]) is type(error.exceptions[1]) is MyError
assert error.__cause__ is error.exceptions[0]
assert error.exceptions[1].args == ("34",)
assert error.__cause__.colour is Colour.RED
names = [(frame.filename, frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
assert names == [(__file__, "chained", 'raise MyGroup("group", [error, MyError(3, 4), KeyError(5)]) from error')], names

error = in_worker(made_there)
assert isinstance(error, MyError) and type(error).__name__ == "MadeThere" and error.args == ("12",)

error = in_worker(only_there)
assert type(error) is RemoteError, error
assert str(error).startswith("only_there.ThereError: fails\\n"), error
assert 'only_there.py", line 8, in fail' in str(error), error
assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["only_there", "fail"]

error = in_worker(value_only_there)
assert type(error) is ValueError and error.args[0] == "text"
assert "No module named 'only_there'" in repr(error.args[1]), error

raise in_worker(chained)
"""

ONLY_THERE = """
class ThereError(Exception):
    pass

class Value:
    pass

def fail(): raise ThereError("fails")
"""


def test_between_processes(tmp_path):
    (tmp_path / "script.py").write_text(CONSUMER)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "only_there.py").write_text(ONLY_THERE)
    command = [sys.executable, tmp_path / "script.py", WORKER, tmp_path / "path"]
    child = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100)
    lines = child.stderr.splitlines()
    assert lines[-1].split() == ["+------------------------------------"], child.stderr
    assert lines[0] == "Traceback (most recent call last):"
    assert "    raise MyError(1, 2)" in lines
    assert "The above exception was the direct cause of the following exception:" in child.stderr
