"""Error context of exceptions, and tracebacks without the frames of the library."""
