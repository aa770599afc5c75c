"""Which part of the data a process reads."""

from gristmill.core.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split

__all__ = ["NoSharding", "ShardByJaxProcess", "ShardOptions", "even_split"]
