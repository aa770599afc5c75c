"""Datasets as users write them, of the numbers below ``n``: nothing calls ``super().__init__``."""

from gristmill.dataset import DatasetIterator, IterDataset, MapDataset


class BareMap(MapDataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        assert type(index) is int
        return index % self.n


class BareStream(IterDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return BareIterator(self.n)


class BareIterator(DatasetIterator):
    def __init__(self, n):
        self.n = n
        self.position = 0

    def __next__(self):
        if self.position == self.n:
            raise StopIteration
        self.position += 1
        return self.position - 1

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = 99  # a wrong state is noticed halfway
        self.position = state["position"]


class Given(IterDataset):
    """Its iterators are what a function makes."""

    _element_spec = None  # in place of a property

    def __init__(self, make, spec=None):
        self.make, self._element_spec = make, spec

    def __iter__(self):
        return self.make()


class Plain(BareStream):
    """Its iterators have no state."""

    def __iter__(self):
        return iter(range(self.n))
