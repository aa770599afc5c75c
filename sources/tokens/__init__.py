"""Files of tokens, as trainers of language models write them, read document by document or window
by window.
"""

from gristmill.sources.tokens.source import TokenSource

__all__ = ["TokenSource"]
