"""The names of ``gristmill.experimental``."""

from gristmill.experimental import *  # noqa: F403
