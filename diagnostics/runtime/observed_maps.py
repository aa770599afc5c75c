"""Observes the datasets that an iterator reads by index: in copies that count, since pipelines
share the datasets themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from gristmill.dataset.bases.node import (
    DatasetNode,
    ancestors,
    dropping_steps,
    upstream_for_observers,
)
from gristmill.dataset.bases.observing import Computed, Instrument, Method
from gristmill.dataset.slicing import PipelineEditor
from gristmill.diagnostics.runtime.jax_profiles import annotated
from gristmill.diagnostics.runtime.probe import CountersOfThreads, Probe, counting, name_of


class ObservedMaps(PipelineEditor):
    """Copies of the map datasets of a pipeline, which count.

    Args:
        ds: the dataset that is read.
        probe: that of ``ds``; its inputs are those of what is upstream.
        lanes: the observer's.
        timed: returns a method that also measures, if calls of a stage are timed.
        annotates: whether calls appear in the profile that JAX is taking.
    """

    def __init__(
        self,
        ds: Any,
        probe: Probe,
        lanes: CountersOfThreads,
        timed: Callable[[Method, Probe], Method],
        *,
        annotates: bool,
    ) -> None:
        super().__init__()
        self._read = ds
        self._lanes = lanes
        self._annotates = annotates
        self._timed = timed
        self._probes = {id(ds): probe}
        self._gather(ds, probe)
        self._sparse = {id(node) for node in ancestors(ds) if dropping_steps(node)}

    def _gather(self, ds: Any, probe: Probe) -> None:
        for parent, parent_probe in zip(upstream_for_observers(ds), probe.inputs, strict=False):
            self._probes.setdefault(id(parent), parent_probe)
            self._gather(parent, parent_probe)

    def _copied(self, ds: Any, replaced: Callable[[Any], Any]) -> Any:
        # over parents of the same lengths, so a copy will do for all
        return DatasetNode._gm_over(ds, replaced)

    def _replace(self, ds: Any) -> Any:
        if id(ds) not in self._probes:
            return ds
        new = self._over_replaced(ds)
        new._gm_set_instrument(lambda original: self._instrument_of(ds, new, original))
        return new

    def _instrument_of(self, ds: Any, new: Any, original: Method) -> Instrument:
        probe, lanes = self._probes[id(ds)], self._lanes
        probe.name = name_of(ds)
        if self._annotates:
            original = annotated(original, probe, "__getitem__", is_read_ahead=ds is self._read)
        return counting(
            original,
            itertools.repeat(new).__next__,  # threads that read ahead know nothing else of it
            probe,
            lanes,
            timed_original=self._timed(original, probe),
            is_sparse=id(ds) in self._sparse,
            unobserved=partial(_computed, ds) if ds is self._read else None,
        )


def _computed(ds: Any, indices: Any) -> Computed:
    return Computed.of(ds._gm_items(indices))
