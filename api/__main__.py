"""``python -m gristmill``."""

import sys

from gristmill.diagnostics.cli import main
from gristmill.diagnostics.cli.commands import RUN_AS_GRAIN

if __name__ == "__main__":
    if (
        sys.argv[1:2] == [RUN_AS_GRAIN]
        and len(sys.argv) > 2
        and sys.argv[2] not in ("-h", "--help")
    ):
        from gristmill.install import run_as_grain

        run_as_grain(sys.argv[2:])
    else:
        sys.exit(main())
