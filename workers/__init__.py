"""Worker processes: how they start, what travels between them and the consumer, and how they end.

The page `docs/workers.md` has a drawing of the messages, the states of a worker, and the files.
"""
