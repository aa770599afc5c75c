"""The observation of a pipeline that runs: counts, times, threads, workers and stalls."""
