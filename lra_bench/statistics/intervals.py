"""Intervals of scores: over examples, over seeds, over anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a share of ``n`` independent examples; (0, 1) where there are none.

    Wilson 1927, J. Amer. Statist. Assoc. 22. Raises ``ValueError`` where ``successes`` lies outside 0 to ``n``.
    """
    from scipy.special import ndtri

    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    z = float(ndtri((1 + level) / 2))
    share = successes / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    # The bounds at no and at all successes are 0 and 1 exactly; rounding must not push them past.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def wilson_over_rows(successes: ArrayLike, counts: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """The Wilson interval of a share of items that come in rows, whose items are not independent of each other.

    ``successes`` and ``counts`` are those of each row. ``n`` is the number of independent items that would scatter as
    the rows do, at most all items, and the number of rows where all items succeed or none does. Korn and Graubard
    1998, Survey Methodology 24. Raises ``ValueError`` where there are no items.
    """
    import numpy as np

    right, scored = np.asarray(successes, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    right, scored = right[scored > 0], scored[scored > 0]
    if not scored.size:
        raise ValueError("an interval over rows needs a row with a scored item")
    rows, items = len(scored), float(scored.sum())
    share = float(right.sum()) / items
    scatter = float(((right - share * scored) ** 2).sum()) / items**2 * rows / max(rows - 1, 1)
    effective = share * (1 - share) / scatter if scatter > 0 else float(rows)
    n = min(effective, items)
    return wilson(share * n, n, level)


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of ``values``, such as scores of seeds; needs two of them (``ValueError``)."""
    import numpy as np

    if len(values) < 2:
        raise ValueError("an interval of a mean needs two values or more")
    sample = np.asarray(values, dtype=np.float64)
    half = float(t_quantile((1 + level) / 2, len(sample) - 1)) * float(sample.std(ddof=1)) / len(sample) ** 0.5
    return float(sample.mean()) - half, float(sample.mean()) + half


def t_quantile(share: float, degrees: Any) -> Any:
    """The quantile of Student's distribution below which a ``share`` of it lies, for each number of ``degrees``."""
    from scipy.special import stdtrit  # scipy.stats takes a second to load

    return stdtrit(degrees, share)


def bootstrap(
    sums: ArrayLike, counts: ArrayLike, seed: int, level: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean over items that come in rows, by drawing whole rows.

    ``sums`` and ``counts`` are those of each row: what is bounded is all sums over all counts. Items of one row are not
    independent, rows are. The same for one ``seed``. Efron 1979, Ann. Statist. 7. Raises ``ValueError`` where there are
    no rows.
    """
    import numpy as np

    values, weights = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if not values.size:
        raise ValueError("a bootstrap needs rows")
    generator = np.random.default_rng(seed)
    drawn = (generator.integers(0, values.size, values.size) for _ in range(draws))
    means = [values[rows].sum() / weights[rows].sum() for rows in drawn]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
