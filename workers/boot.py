"""The program that a worker process runs; see ``process`` for who starts it with which arguments.

Until ``sys.path`` is the consumer's, nothing is imported that is not built into the interpreter: a file of the user's
could have the name of any other module.
"""

import sys


def main() -> None:
    import marshal
    import os

    connection, arena, luggage, lifeline, index, count = map(int, sys.argv[1:7])
    offset, length = (int.from_bytes(os.pread(luggage, 8, at), "little") for at in (0, 8))
    preamble = marshal.loads(os.pread(luggage, length, offset))
    sys.path[:], sys.argv[:] = preamble["path"], preamble["argv"]
    try:
        from gristmill.workers.child import serve
    except BaseException:
        import traceback

        os.write(connection, b"\xff" + traceback.format_exc().encode(errors="replace"))
        os._exit(1)
    serve(connection, arena, luggage, lifeline, index, count, preamble)


if __name__ == "__main__":
    main()
