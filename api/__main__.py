"""``python -m gristmill``."""

import sys

from gristmill.diagnostics.cli import main

if __name__ == "__main__":
    sys.exit(main())
