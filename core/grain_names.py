"""Names by which other libraries recognise objects of Grain.

Keras takes an object for a dataset of Grain if one of its classes has one of these names, in a
module with "grain" in its path.
"""


class MapDataset:
    """The base of ``gristmill.MapDataset``."""

    __slots__ = ()


class IterDataset:
    """The base of ``gristmill.IterDataset``."""

    __slots__ = ()


class DataLoader:
    """The base of ``gristmill.DataLoader``."""

    __slots__ = ()
