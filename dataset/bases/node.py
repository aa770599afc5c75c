"""The graph of datasets and iterators: parents, and the seed that follows from a position in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from gristmill.core import hooks
from gristmill.core.cached import cached, replaceable
from gristmill.core.inert import STATS
from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.core.seeds import check_seed, derive_seed
from gristmill.core.state import shown
from gristmill.dataset.bases.migration_hints import lookup_with_hint
from gristmill.dataset.bases.parameters import NONE, Parameters, parameters_of

S = TypeVar("S")


class Node:
    """Base of datasets and iterators: their inputs, and their answers about themselves."""

    _gm_node_family: ClassVar[str]  # the class that users know it by
    # On the class, so that a user's subclass that does not call ``super().__init__`` has it too.
    _gm_parents: tuple[Any, ...] = ()
    _gm_parameters: Parameters = NONE  # what it was made with, but its parents
    # Those that are given at this point of the pipeline.
    _gm_own_options: DatasetOptions | None = None
    _gm_drops = False  # whether this step may drop elements of its parent
    _gm_source: Any = None  # that it reads

    # Users' classes may read these, as in Grain, and may use the names for something else.
    _stats = STATS  # to report to

    @replaceable
    def _parents(self) -> tuple[Any, ...]:
        return self._gm_parents

    @replaceable
    def _parent(self) -> Any:
        return self._gm_parent

    # What the engine reads has names that are reserved for it.
    @property
    def _gm_parent(self) -> Any:
        return only_parent(self)

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        """The existing inputs, datasets or iterators: the call makes none."""
        return self._gm_parents

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        """The same for descriptions, where streams are described by their iterators."""
        return self._gm_draws_from

    @property
    def _gm_observed_upstream(self) -> Sequence[Any]:
        """The same for observers, without pipelines that it opens by itself."""
        return self._gm_parents

    @property
    def _gm_work_options(self) -> Sequence[Any]:
        """Options that users gave, of how much of it runs at once and how far ahead."""
        return ()

    def __repr__(self) -> str:
        from gristmill.dataset.descriptions.display import chain_text

        return chain_text(self)

    def __str__(self) -> str:
        return self._gm_stage_text() if self._gm_shows_chain else repr(self)

    @property
    def _gm_shows_chain(self) -> bool:
        """True if its ``repr`` is the text of the whole chain."""
        return type(self).__repr__ is Node.__repr__

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        """The parameters that determine the elements."""
        return parameters_of(self).described()

    @property
    def _gm_source_files(self) -> list[str] | None:
        """Texts that distinguish the files of its source."""
        return None

    @property
    def _gm_component_names(self) -> Sequence[str] | None:
        """Of a mixture, if its components have names."""
        return None

    @property
    def _gm_components(self) -> Mapping[str, Any] | None:
        """The iterators of these components, for descriptions."""
        return None

    @property
    def _gm_stage_name(self) -> str | None:
        """Its name in checkpoints; ``None``: elements and states are as without it."""
        return type(self).__name__

    @property
    def _gm_class_name(self) -> str:
        """The name of its class, as users know it."""
        return type(self).__name__

    def _gm_stage_text(self) -> str:
        """Returns its class and parameters."""
        name, text = self._gm_class_name, parameters_of(self).text()
        return f"{name}({text})" if text else name

    def _gm_chain_text(self) -> str:
        """Returns its name in the text of a chain, below its inputs."""
        return str(self)


class DatasetNode(Node):
    """Base of ``MapDataset`` and ``IterDataset``."""

    _gm_migration_hints: ClassVar[
        Mapping[str, str]
    ] = {}  # by name, for attributes of other libraries
    _gm_seed_point: int | None = None  # the seed given at this point of the pipeline
    # Whether it counts in the distance of a seed (what does not has one parent).
    _gm_adds_step = True
    _gm_is_share = False  # whether it is a worker's part of its parent
    _gm_mixes_over: int | None = None  # elements among which it mixes, where these are not all
    _gm_starts_workers = False  # whether its iterators start processes
    _gm_reads_blocks = False  # whether it asks who reads for blocks that are kept (see ``kept``)
    # attributes that worker threads do not copy (see ``thread_payload``)
    _gm_shared_by_threads: ClassVar[tuple[str, ...]] = ()
    _gm_makes_batches = False  # whether an element has a row for each of those that it is made of
    _gm_takes_apart = False  # an element of its parent may become several
    # whether a user's function may drop elements, which is not known without calling it
    _gm_may_drop = False
    # which faults of the upstream stages are skipped (see ``gristmill.dataset.faults``)
    _gm_tolerance: Any = None

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return self._gm_parents

    @replaceable
    def parents(self) -> tuple[Any, ...]:
        """Returns the datasets that this one is made of."""
        return self._gm_parents

    @replaceable
    def _default_seed(self) -> np.uint32 | None:
        return self._gm_default_seed

    @cached
    def _gm_default_seed(self) -> np.uint32 | None:
        return default_seed(self)

    @cached
    def _gm_record_source(self) -> str:
        """Returns the name of the source of the records that it reads."""
        return str(self)

    @replaceable
    def _element_spec(self) -> Any:
        """Returns the spec of an element. Optional for users' datasets."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say what its elements look like: define a property"
            " _element_spec that returns a pytree of ShapeDtypeStruct"
        )

    if not TYPE_CHECKING:  # with it, type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            inherited = getattr(super(), "__getattr__", None)  # of another base of a user's class
            if inherited:
                return inherited(name)
            return lookup_with_hint(object.__getattribute__, self, name)

    @property
    def _gm_is_mixed_in_lanes(self) -> bool:
        """True if its lanes are mixtures of the lanes of a mixture's components."""
        return False

    @property
    def _gm_makes_choices(self) -> bool:
        """True if its stream makes other choices than those of ``_gm_tolerance``."""
        return False

    @property
    def _gm_opens_unknown(self) -> bool:
        """True if a function makes datasets when it opens them."""
        return False

    @property
    def _gm_reads_many(self) -> bool:
        """True if it reads several records of a source in one call."""
        return False

    @property
    def _gm_changes_in_lanes(self) -> bool:
        """True if a lane of it is another stage over the lanes of its parents."""
        return False

    def _repr_html_(self) -> str:
        return hooks.pipeline_html(self)

    def _gm_over(self, replaced: Callable[[Any], Any]) -> Any:
        """Returns this stage over other parents: a copy with the same default seed. A stage that
        stores something else derived from its parents is constructed again.

        Args:
            replaced: gives what takes the place of a parent, or of anything made of parents that an
                attribute holds; other values as they are.
        """
        new = copy.copy(self)
        attributes = vars(new)
        attributes.update({name: replaced(value) for name, value in attributes.items()})
        attributes.setdefault("_gm_default_seed", default_seed(self))
        return new

    def _gm_computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        """Returns this stage computed by other threads or workers, or itself."""
        return self

    def pipe(self, func: Callable[..., S], /, *args: Any, **kwargs: Any) -> S:
        """Returns ``func(self, *args, **kwargs)``: applies any function of a dataset in a chain of
        methods.

        Example:
            >>> from gristmill.dataset import MapDataset
            >>> MapDataset.range(3).pipe(len)
            3
        """
        return func(self, *args, **kwargs)


def computed_by(
    ds: DatasetNode, *, threads: ReadOptions | None = None, num_workers: int | None = None
) -> Any:
    """Returns ``ds`` computed by other threads or workers; itself if that cannot be."""
    return ds._gm_computed_by(threads, num_workers)


def spec_of(ds: DatasetNode) -> Any:
    """Returns the spec of an element of ``ds``."""
    return ds._element_spec


def _spec_of_first_parent(stage: DatasetNode) -> Any:
    return spec_of(stage._gm_parents[0])


# ``_element_spec`` of stages that pass elements on as they are
spec_of_first_parent = property(_spec_of_first_parent)


def as_parents(parents: object, *kinds: type) -> tuple[Any, ...]:
    """Returns ``parents`` as a tuple: one object of one of ``kinds``, or an iterable of such."""
    if isinstance(parents, kinds):
        found = (parents,)
    elif isinstance(parents, Iterable):
        found = tuple(parents)
    else:
        found = None
    if found is None or not all([issubclass(kind, kinds) for kind in {type(p) for p in found}]):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"parents must be a {names} or a sequence of them, got {shown(parents)}")
    return found


def parents_of(node: Node) -> tuple[Any, ...]:
    return node._gm_parents


def upstream_for_observers(node: DatasetNode) -> Sequence[Any]:
    """Returns the inputs that an observer counts together with a dataset or iterator."""
    return node._gm_observed_upstream


class NoSingleParentError(ValueError, AttributeError):
    """Also an ``AttributeError``, so that ``hasattr(node, "_parent")`` is false."""


def only_parent(node: Node) -> Any:
    if len(node._gm_parents) != 1:
        raise NoSingleParentError(
            f"{node._gm_class_name} must have exactly one parent here, it has"
            f" {len(node._gm_parents)}"
        )
    return node._gm_parents[0]


def default_seed(dataset: DatasetNode) -> np.uint32 | None:
    """Returns the seed that follows from ``ds.seed(...)`` upstream and the position."""
    entropy = seed_entropy(dataset)
    return np.uint32(derive_seed(entropy)) if entropy else None


def seed_entropy(dataset: DatasetNode) -> list[int]:
    """Returns the seeds nearest upstream, breadth first, each with its distance in stages: ``[seed,
    steps, seed, steps, …]``. Nothing upstream of a seed counts.
    """
    entropy: list[int] = []
    level, steps = [dataset], 0
    while level:
        above: list[DatasetNode] = []
        for node in level:
            while not node._gm_adds_step:
                node = only_parent(node)
            if node._gm_seed_point is None:
                above.extend(node._gm_parents)
            else:
                entropy += [node._gm_seed_point, steps]
        level, steps = above, steps + 1
    return entropy


def random_seed(stage: DatasetNode, seed: int | None, name: str, *, bits: int | None = None) -> int:
    """Returns the seed of a random stage: the one given, below ``2**bits``, or the default seed."""
    if seed is not None:
        return check_seed(seed, bits=bits)
    default = stage._gm_default_seed
    if default is None:
        raise ValueError(f"{name} needs a seed: pass seed=..., or call ds.seed(seed) before it")
    return int(default)


def tolerances(ds: DatasetNode) -> list[Any]:
    """Returns the tolerances of ``ds`` and everything upstream."""
    return [node._gm_tolerance for node in ancestors(ds) if node._gm_tolerance is not None]


def tolerates(ds: DatasetNode, *, may_open: bool = True) -> bool:
    """Return true if a stage of ``ds`` or upstream tolerates faults, or one of a dataset that it
    opens; ``may_open`` where a stage opens datasets that are not known yet.
    """
    nodes = [*ancestors(ds)]
    if any([node._gm_tolerance is not None for node in nodes]):
        return True
    if may_open and any([node._gm_opens_unknown for node in nodes]):
        return True
    opened = [x for node in nodes for x in node._gm_draws_from if not node._gm_parents]
    return any([tolerates(x, may_open=may_open) for x in opened])


def ancestors(ds: Node) -> Iterator[Any]:
    """Yields ``ds`` and everything upstream, each object once."""
    seen: set[int] = set()
    todo = [ds]
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            todo.extend(node._gm_parents)


def reads_once(ds: DatasetNode) -> bool:
    """True if a source of ``ds`` may not give the same record again."""
    return any([node._gm_reads_once for node in ancestors(ds)])


def mixes_in_lanes(ds: DatasetNode) -> bool:
    """Return true if lanes of a pipeline are other shares than every n-th element."""
    return any([node._gm_is_mixed_in_lanes for node in ancestors(ds)])


def makes_choices(ds: DatasetNode) -> bool:
    """Return true if a stage of a pipeline makes choices, which replaying stages record."""
    return any([node._gm_tolerance is not None or node._gm_makes_choices for node in ancestors(ds)])


def changes_in_lanes(ds: DatasetNode) -> bool:
    """Return true if a stage of a pipeline is another one in lanes."""
    return any([node._gm_changes_in_lanes for node in ancestors(ds)])


def dropping_steps(ds: DatasetNode) -> list[Any]:
    """Returns the stages that may drop elements, of ``ds`` and everything upstream."""
    return [node for node in ancestors(ds) if node._gm_drops]


def may_drop(ds: DatasetNode) -> bool:
    """Returns true if code of users in ``ds`` or upstream may drop elements by ``None``."""
    return any([node._gm_may_drop or not is_of_library(node) for node in ancestors(ds)])


def is_of_library(stage: DatasetNode) -> bool:
    """True if ``stage`` is of a class of this library: the behaviour of a subclass is unknown."""
    return type(stage).__module__.partition(".")[0] == "gristmill"
