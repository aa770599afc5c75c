"""Which part of all draws each component of a mixture will have: components read ahead by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.mixtures.plans import Plan

if TYPE_CHECKING:
    from gristmill.dataset.mixtures.stream import Mix

_NEVER = 1e-6  # the share of draws that is assumed for a component of weight 0


def weigh(mix: Mix, i: int, index: int) -> None:
    """Pass component ``i``, which is drawn from at ``index``, its share, unless it has it."""
    if not mix.is_expected:
        if mix.was_asked:  # the first element does not wait for all parents
            expect(mix, mix.rate, 0.0, index)
        mix.was_asked = True
    if i in mix.unweighed:
        mix.unweighed.remove(i)
        weights = mix.plan.weights(index)
        if weights[i]:
            mix.parents[i].expect(mix.rate * weights[i] / sum(weights), None)


def expect(mix: Mix, rate: float, due: float | None, index: int) -> None:
    """Pass all components their shares, and let them read ahead, unless ``due`` is ``None``."""
    mix.rate = rate
    if due is None:
        return
    mix.is_expected = True
    weights = mix.plan.weights(index)
    total = sum(weights)
    first = {} if mix.plan.end is not None else _first_turns(mix.plan, index)
    for i, (parent, weight) in enumerate(zip(mix.parents, weights, strict=True)):
        if weight:
            mix.unweighed.discard(i)
            parent.expect(rate * weight / total, due + first.get(i, total / weight) / rate)
        else:
            parent.expect(rate * _NEVER, None)


def _first_turns(plan: Plan, start: int) -> dict[int, float]:
    """Return how many draws come before the first one of each component that comes soon."""
    first: dict[int, float] = {}
    for i, component in enumerate(plan.components(range(start, start + 2 * len(plan.names)))):
        first.setdefault(component, i)
    return first
