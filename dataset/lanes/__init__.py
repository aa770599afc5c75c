"""Lanes as the consumer sees them: computed by itself, by threads, processes or Ray actors."""
