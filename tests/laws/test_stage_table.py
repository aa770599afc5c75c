"""The table of stages is complete: a stage that the laws do not see fails here."""

from entry import nodes
from stage_table import ITER_ENTRIES, MAP_ENTRIES, stage_classes

from gristmill.dataset.bases.node import ancestors


def test_every_stage_is_in_the_table():
    seen = {type(ds) for entry in [*MAP_ENTRIES, *ITER_ENTRIES] for ds in ancestors(entry.make())}
    seen |= {type(node) for entry in ITER_ENTRIES for node in nodes(iter(entry.make()))}
    assert stage_classes() - seen == set()
    assert len(stage_classes()) > 20  # the search itself finds something
