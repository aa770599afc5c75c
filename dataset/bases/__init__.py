"""What a stage is made of: nodes of the graph, the harness of iterators, and what several stages have in common."""
