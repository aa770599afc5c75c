"""Numbers of all pipelines of a process, for Prometheus."""
