"""The engine of streams: positions are values, a running stage is a generator."""
