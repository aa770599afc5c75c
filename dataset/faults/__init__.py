"""``tolerate``: error budgets, within which failing elements are skipped or replaced.

- ``tolerate``: the stages, of map datasets and of streams.
- ``budget``: the arguments, which errors they are about, and the limits.
- ``skip``: the stream that skips outputs of its parent. ``read``: the stream that reads a map
  dataset in which stages tolerate faults, and counts these.
- ``counts``: the counts in positions and states. ``known``: what a state says of elements that are
  computed again.
- ``lanes``, ``shards``: budgets of several lanes, and of shards whose number changes.
- ``attempts``: what a thread notes while it computes one element of a map dataset.

Guarantees:

1. A fault is counted once, at its place in delivery, by the process that delivers. Threads, blocks
   and workers that meet it earlier do not count it. In a lane, the consumer of all lanes applies
   ``max_rate`` and ``max_total``, over all of them; ``max_consecutive`` applies to the lane.
2. Which elements are skipped depends on the records alone. A stage downstream that replays elements
   after a restore has a record of those that were skipped or replaced. They are skipped again
   without an attempt, and an error of any other element is raised.
3. Totals are part of the position, and never go back: they continue in the next epoch.
4. An error beyond the budget leaves the iterator where it was, and comes again.
5. A stage covers the stages up to the previous ``tolerate``: what that one lets through is raised.
"""
