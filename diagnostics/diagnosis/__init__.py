"""The bottleneck of a pipeline, what to change, and how well it mixes."""
