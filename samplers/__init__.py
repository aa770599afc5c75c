"""Samplers: which record comes next, and with which random stream."""

from gristmill.samplers.base import Sampler
from gristmill.samplers.index import IndexSampler
from gristmill.samplers.iterable import IterableSampler
from gristmill.samplers.sequential import SequentialSampler

__all__ = ["IndexSampler", "IterableSampler", "Sampler", "SequentialSampler"]
