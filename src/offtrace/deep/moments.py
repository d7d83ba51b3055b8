"""Running means and variances, by which a stream normalises what it sees and scales its rewards."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Moments(NamedTuple):
    """The moments of all samples so far, each like a sample (Welford 1962)."""

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Array
    squares: Array
    """Σ (sample − mean)²."""

    @property
    def variance(self) -> Array:
        """The sample variance; 1 before there are two samples."""
        return jnp.where(self.count < 2, 1.0, self.squares / jnp.maximum(self.count - 1.0, 1.0))

    def with_sample(self, sample: Array, when: Array | bool = True) -> Moments:
        """Take in a sample where `when` holds."""
        count = self.count + jnp.where(when, 1.0, 0.0)
        off = jnp.where(when, sample - self.mean, 0.0)
        mean = self.mean + off / jnp.maximum(count, 1.0)
        return Moments(count, mean, self.squares + off * (sample - mean))

    def normalised(self, values: Array) -> Array:
        """(values − mean) / deviation."""
        return (values - self.mean) * self.scale

    @property
    def scale(self) -> Array:
        """1 / deviation."""
        return 1.0 / jnp.sqrt(self.variance + 1e-8)


def none(shape: tuple[int, ...] = ()) -> Moments:
    """Make the moments of no sample at all."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))
