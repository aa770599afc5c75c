"""States as values, and the files that keep them."""
