"""Worker processes: how they start, what travels between them and us, and how they end."""
