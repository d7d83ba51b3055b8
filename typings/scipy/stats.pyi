from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

class _Distribution:
    def ppf(self, q: Any, *parameters: Any) -> Any: ...

t: _Distribution
norm: _Distribution
binom: _Distribution
chi2: _Distribution

class _Interval(NamedTuple):
    low: float
    high: float

class _Bootstrapped:
    confidence_interval: _Interval
    standard_error: float

class _TTest:
    statistic: float
    pvalue: float
    def confidence_interval(self, confidence_level: float = 0.95) -> _Interval: ...

class _MannWhitney:
    statistic: float
    pvalue: float

def trim_mean(a: np.ndarray, proportiontocut: float, axis: int | None = 0) -> Any: ...
def bootstrap(
    data: Sequence[np.ndarray],
    statistic: Callable[..., Any],
    *,
    n_resamples: int = 9999,
    batch: int | None = None,
    vectorized: bool | None = None,
    paired: bool = False,
    axis: int = 0,
    confidence_level: float = 0.95,
    method: str = "BCa",
    rng: Any = None,
    random_state: Any = None,
) -> _Bootstrapped: ...
def ttest_1samp(a: Any, popmean: float) -> _TTest: ...
def mannwhitneyu(x: Any, y: Any, *, method: str = "auto") -> _MannWhitney: ...
