"""The side of a worker: its task, and workers in threads of this process."""
