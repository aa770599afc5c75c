"""Executors of the shards of a pipeline: the caller, threads, worker processes, Ray actors."""
