"""Laws of single numbers, as users write them: `3`, `{uniform: [1, 3]}`, `{quantiles: {5: 0.3, 95: 5.6}}`.

A law holds parameters only; the generator it draws from is handed in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, Self, cast

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)

from antiphon.workload.fitted import QUANTILES

NORMAL_P90 = 1.2815515594457831
"""The standard normal's 90th percentile."""

Rng = np.random.Generator


def a_number(value: object, info: ValidationInfo) -> object:
    """YAML's `yes` and '3' are no numbers here, whatever pydantic could make of them."""
    if isinstance(value, bool | str):
        raise ValueError(f"{value!r} is not a number")
    return value


Number = Annotated[float, BeforeValidator(a_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Probability = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, BeforeValidator(a_number), Field(ge=1)]


class Spec(BaseModel):
    """What users write: frozen, and a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Constant(Spec):
    """Always this."""

    constant: NotNegative

    def draw(self, rng: Rng) -> float:
        return self.constant


class Uniform(Spec):
    """Anything from the first to the second, all alike."""

    uniform: tuple[NotNegative, NotNegative]

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.uniform[0] > self.uniform[1]:
            raise ValueError(
                f"goes from {self.uniform[0]:g} down to {self.uniform[1]:g}; write the lower first"
            )
        return self

    def draw(self, rng: Rng) -> float:
        return float(rng.uniform(*self.uniform))


class Mean(Spec):
    mean: Positive


class Exponential(Spec):
    """Memoryless, by its mean."""

    exponential: Mean

    def draw(self, rng: Rng) -> float:
        return float(rng.exponential(self.exponential.mean))


class MeanAndCv(Spec):
    """`cv` is the coefficient of variation, standard deviation over mean."""

    mean: Positive
    cv: Positive


class Gamma(Spec):
    """Gamma, by mean and coefficient of variation; cv 1 is exponential."""

    gamma: MeanAndCv

    def draw(self, rng: Rng) -> float:
        shape = self.gamma.cv**-2
        return float(rng.gamma(shape, self.gamma.mean / shape))


class MedianAndP90(Spec):
    median: Positive
    p90: Positive

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.p90 < self.median:
            raise ValueError(f"p90 ({self.p90:g}) is below the median ({self.median:g})")
        return self


class Lognormal(Spec):
    """Lognormal, by median and 90th percentile."""

    lognormal: MedianAndP90

    def draw(self, rng: Rng) -> float:
        median, p90 = self.lognormal.median, self.lognormal.p90
        return median * math.exp(math.log(p90 / median) / NORMAL_P90 * float(rng.standard_normal()))


class Quantiles(Spec):
    """Percentile -> value, linear between; beyond the outermost percentiles, their values."""

    quantiles: Annotated[dict[Annotated[Number, Field(ge=0, le=100)], NotNegative], Field(min_length=2)]

    @model_validator(mode="after")
    def check(self) -> Self:
        values = [self.quantiles[percentile] for percentile in sorted(self.quantiles)]
        if values != sorted(values):
            raise ValueError("values must not fall as percentiles rise")
        return self

    def draw(self, rng: Rng) -> float:
        return at_percentile(self.quantiles, 100 * float(rng.random()))


class Weighted(Spec):
    values: Annotated[tuple[NotNegative, ...], Field(min_length=1)]
    weights: tuple[NotNegative, ...] | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values but {len(self.weights)} weights")
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("the weights sum to zero")
        return self


class Choice(Spec):
    """One of these values, each as likely as its weight; without weights all alike."""

    choice: Weighted

    def draw(self, rng: Rng) -> float:
        return self.choice.values[pick(self.choice.weights or (1.0,) * len(self.choice.values), rng)]


class Fitted(Spec):
    """Percentiles fitted to a public data set, by name (see `workload.fitted`)."""

    fitted: str

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.fitted not in QUANTILES:
            raise ValueError(f"unknown fit {self.fitted!r}; known: {', '.join(sorted(QUANTILES))}")
        return self

    def draw(self, rng: Rng) -> float:
        return at_percentile(QUANTILES[self.fitted], 100 * float(rng.random()))


def at_percentile(quantiles: Mapping[float, float], percentile: float) -> float:
    points = sorted(quantiles.items())
    return float(np.interp(percentile, [point[0] for point in points], [point[1] for point in points]))


def pick(weights: tuple[float, ...], rng: Rng) -> int:
    """An index, each as likely as its weight: one uniform number, always."""
    edges = list(accumulate(weights))
    return min(bisect_right(edges, float(rng.random()) * edges[-1]), len(edges) - 1)


NAMES = ("constant", "uniform", "exponential", "gamma", "lognormal", "quantiles", "choice", "fitted")


def a_law(value: Any) -> Any:
    """A bare number is a constant."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"constant": value}
    return value


def kind_of(value: Any) -> str | None:
    """The one key of what is written `{kind: ...}`, or the first field of its model."""
    if isinstance(value, Spec):
        return next(iter(type(value).model_fields))
    if not isinstance(value, Mapping):
        return None
    keys = [str(key) for key in cast(Mapping[object, object], value)]
    return keys[0] if len(keys) == 1 else None


def one_of(what: str, names: tuple[str, ...]) -> Discriminator:
    """Chooses among models that are written `{kind: ...}`."""
    message = f"expected {what}, `{{kind: ...}}` with kind one of {', '.join(names)}"
    return Discriminator(kind_of, custom_error_type="kind", custom_error_message=message)


Law = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Exponential, Tag("exponential")]
    | Annotated[Gamma, Tag("gamma")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Quantiles, Tag("quantiles")]
    | Annotated[Choice, Tag("choice")]
    | Annotated[Fitted, Tag("fitted")],
    one_of("a number or a law", NAMES),
    BeforeValidator(a_law),
]
