"""The graph of a pipeline: its stages, its texts and where these go."""
