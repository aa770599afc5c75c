"""The program that workers and their fork server run; ``process`` and ``fork_server`` start it and
document its arguments.

Until ``sys.path`` is the consumer's, nothing is imported that is not built into the interpreter: a
file of the user's could have the name of any other module.
"""

import sys


def main() -> None:
    import marshal
    import os

    numbers, settle = list(map(int, sys.argv[1:])), None
    if len(numbers) == 3:
        import gc

        gc.disable()  # until a worker is born: all of this stays
        try:
            sys.path[:], modules = marshal.loads(os.read(numbers[0], 1 << 20))
            from gristmill.workers.fork_server_child import fork_workers

            numbers, settle = fork_workers(modules, *numbers)  # returns in each of them
        except BaseException:
            os._exit(1)  # workers are started one by one, and say what is wrong
    connection, arena, payload, lifeline, index, count = numbers
    try:
        if settle is not None:
            settle()
        offset, length = (int.from_bytes(os.pread(payload, 8, at), "little") for at in (0, 8))
        preamble = marshal.loads(os.pread(payload, length, offset))
        sys.path[:], sys.argv[:] = preamble["path"], preamble["argv"]
        from gristmill.workers.child import serve
    except BaseException:
        import traceback

        os.write(connection, b"\xff" + traceback.format_exc().encode(errors="replace"))
        os._exit(1)
    serve(connection, arena, payload, lifeline, index, count, preamble)


if __name__ == "__main__":
    main()
