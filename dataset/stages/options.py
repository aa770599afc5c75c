"""``WithOptionsIterDataset``: settings of a whole pipeline."""

from __future__ import annotations

from typing import TypeVar

from gristmill.core.options import DatasetOptions
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.watching import watch_if_tracked

T = TypeVar("T")


class OptionsParameters(Parameters):
    options: DatasetOptions = field(in_checkpoint=False)


class WithOptionsIterDataset(IterDataset[T]):
    """Returns the parent with ``options`` applied to the whole pipeline, before and after this
    point.

    Several of them merge; for each setting the one nearest the output wins. State: the parent's.

    Args:
        parent: the dataset.
        options: the settings.

    Raises:
        TypeError: ``options`` is not a ``DatasetOptions``.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(3).to_iter_dataset()
        >>> list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.99)))
        [0, 1, 2]
    """

    _gm_passes_on = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number
    _gm_works_on = "nothing"

    def __init__(self, parent: object, options: DatasetOptions) -> None:
        super().__init__(parent)
        if not isinstance(options, DatasetOptions):
            raise TypeError(f"options must be a DatasetOptions, got {options!r:.200}")
        self.options = self._gm_own_options = options
        self._gm_parameters = OptionsParameters(options)

    def __iter__(self) -> DatasetIterator[T]:
        it = iterate(self._gm_parent)
        ctx = it._gm_ctx
        ctx.options = self.options.merge(ctx.options)
        watch_if_tracked(it, ctx.options)
        return it
