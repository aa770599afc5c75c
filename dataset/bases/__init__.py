"""Base classes of stages: nodes of the graph, the harness of iterators, and code that several
stages share.
"""
