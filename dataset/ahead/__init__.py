"""Computing elements before they are wanted."""
