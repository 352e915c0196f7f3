"""One entry of a gradient, from the rows that add to it: where it is rational, where it is safely irrational.

Row i, whose visible keys j have weights p_j, adds to an entry, but for the factor below,

    sum_j p_j x_j - (sum_j p_j c_j) (sum_l p_l a_l)

with exact numbers x, c and a. Of the gradient of a score, p_j (a_j - delta + dlse) with delta = sum_l p_l a_l, c_j is
the multiplier and x_j = c_j (a_j + dlse). Of a weight, x_j is the multiplier and c is 0.

The keys of a row fall into groups of exactly equal score; e_g = exp(s_g - s_0), with s_0 the largest score, and group
g has n_g keys. With W = sum_g n_g e_g and X, C, A the sums of x, c, a in the groups, what the row adds is

    N / D,   N = W sum_g X_g e_g - (sum_g C_g e_g) (sum_g A_g e_g),   D = W^2;   N = sum_g X_g e_g,   D = W without c.

Multiplied out, N = sum_s N_s exp(s) and D = sum_s D_s exp(s) with distinct exponents s <= 0, and both are divided by
D_0. Rows with the same D are added. The s are algebraic numbers, so by Lindemann-Weierstrass no combination of the
exp(s) with rational coefficients is 0 unless all coefficients are. Hence, with

    N / D = b + M / D,   b = N_0,   M_s = N_s - b D_s,

these rows add the rational number b where all M_s are 0, and a transcendental number otherwise. The entry is

    factor * (sum of the b + sum of the M / D),   factor = scale for query and key, else 1,

or a sum of such, each with its factor (module `latent`). It is rational where no M remains and the b that have an
irrational factor add up to 0. It is on no rounding boundary where no M remains and they do not, or where one M
remains. Two or more M that remain belong to
rows with different D, and this argument does not settle whether their sum is a boundary: if it is, the entry is
undecided at the cap, unless it is 0, which balls narrower than the smallest subnormal decide. Splitting off the b lets
the sign of a vanishing offset settle a tie, as in module `ties`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flint import arb, fmpq

from attnspec.reference.exact.precision import until_decided
from attnspec.reference.exact.rounding import NEGLIGIBLE_EXPONENT, round_ball, round_near, round_to
from attnspec.reference.exact.scale import Scale
from attnspec.spec.dtypes import Format

Gap = tuple[fmpq, fmpq]
"""The number x / sqrt(radicand) + y as (x, y); radicand is that of the scale, and x is 0 where it is 1."""

Sum = dict[Gap, fmpq]
"""The sum of coefficient * exp(gap)."""

ZERO: Gap = (fmpq(0), fmpq(0))

LARGEST_DENOMINATOR = Fraction(2) ** (-NEGLIGIBLE_EXPONENT - 1100)
"""A rational number with a smaller denominator is on a rounding boundary, a multiple of 2^-1075, or farther from all
boundaries than 2^NEGLIGIBLE_EXPONENT."""


@dataclass(frozen=True)
class Addend:
    """What one row adds to an entry: sum_j p_j x_j - (sum_j p_j c_j) (sum_l p_l a_l).

    groups: gap to the row's largest score, and the visible keys that have it; direct: x_j of some keys, 0 of the
    others; carried: c_j likewise; products: a_l of every key.
    """

    groups: Mapping[Gap, Sequence[int]]
    direct: Mapping[int, fmpq]
    carried: Mapping[int, fmpq]
    products: Sequence[fmpq]

    def quotient(self) -> Quotient:
        """Return N / D, with D_0 = 1."""
        total = {gap: fmpq(len(keys)) for gap, keys in self.groups.items()}
        direct = self._grouped(self.direct)
        if not self.carried:
            return Quotient(divided(direct, total[ZERO]), divided(total, total[ZERO]))
        numerator = product(total, direct)
        for gap, coefficient in product(self._grouped(self.carried), self._grouped(self.products)).items():
            add_term(numerator, gap, -coefficient)
        denominator = product(total, total)
        return Quotient(divided(numerator, denominator[ZERO]), divided(denominator, denominator[ZERO]))

    def _grouped(self, numbers: Mapping[int, fmpq] | Sequence[fmpq]) -> Sum:
        """Return sum_g exp(gap) (sum of the numbers in the group), without groups that have none."""
        given = numbers if isinstance(numbers, Mapping) else dict(enumerate(numbers))
        result: Sum = {}
        for gap, keys in self.groups.items():
            for key in keys:
                if key in given:
                    add_term(result, gap, given[key])
        return result


@dataclass(frozen=True)
class Quotient:
    """A quotient N / D of two sums of exponentials, with D_0 = 1."""

    numerator: Sum
    denominator: Sum

    def split(self) -> tuple[fmpq, Quotient]:
        """Return b and M / D."""
        base = self.numerator.get(ZERO, fmpq(0))
        rest = dict(self.numerator)
        for gap, coefficient in self.denominator.items():
            add_term(rest, gap, -base * coefficient)
        return base, Quotient({gap: m for gap, m in rest.items() if m != 0}, self.denominator)

    def ball(self, radicand: int) -> arb:
        """Return the quotient as a ball of the working precision."""
        return sum_ball(self.numerator, radicand) / sum_ball(self.denominator, radicand)


def settle(addends: Iterable[Addend], factor: Scale, radicand: int, fmt: Format, start: int, what: str) -> float:
    """Return factor times the sum of the addends, rounded.

    radicand: that of the gaps; start: bits of the first try; what: the entry, for messages. Raises UndecidedError at
    the precision cap.
    """
    return settle_sum([(addends, factor)], radicand, fmt, start, what)


def settle_sum(
    parts: Iterable[tuple[Iterable[Addend], Scale]], radicand: int, fmt: Format, start: int, what: str
) -> float:
    """Return the sum of several sums of addends, each times a factor of its own, rounded.

    radicand: that of the gaps and of every factor that is irrational; start, what and errors are those of `settle`.
    """
    rational, irrational = Fraction(0), Fraction(0)  # of all b times their factors; of these, over sqrt(radicand)
    offsets: list[tuple[Quotient, Scale]] = []
    for addends, factor in parts:
        for base, rest in (quotient.split() for quotient in collected(addends)):
            times = Fraction(int(base.p), int(base.q)) * factor.rational
            if factor.radicand == 1:
                rational += times
            else:
                irrational += times
            if rest.numerator:
                offsets.append((rest, factor))
    if not offsets and not irrational:
        return round_to(rational, fmt)

    def attempt() -> float | None:
        offset = sum((rest.ball(radicand) * factor_ball(factor) for rest, factor in offsets), arb(0))
        if not irrational and rational.denominator < LARGEST_DENOMINATOR:
            return round_near(rational, offset, fmt)
        offset += factor_ball(Scale(irrational, radicand))
        return round_ball(offset + factor_ball(Scale(rational)), fmt)

    return until_decided(attempt, start, what)


def collected(addends: Iterable[Addend]) -> list[Quotient]:
    """Return the sum of the addends as quotients with different denominators."""
    quotients: dict[frozenset[tuple[Gap, fmpq]], Quotient] = {}
    for addend in addends:
        new = addend.quotient()
        kept = quotients.setdefault(frozenset(new.denominator.items()), Quotient({}, new.denominator))
        for gap, coefficient in new.numerator.items():
            add_term(kept.numerator, gap, coefficient)
    return list(quotients.values())


def product(left: Sum, right: Sum) -> Sum:
    """Return the product of two sums."""
    result: Sum = {}
    for (x, y), coefficient in left.items():
        for (x_right, y_right), other in right.items():
            add_term(result, (x + x_right, y + y_right), coefficient * other)
    return result


def divided(terms: Sum, divisor: fmpq) -> Sum:
    """Return a sum divided by a number."""
    return {gap: coefficient / divisor for gap, coefficient in terms.items()}


def add_term(terms: Sum, gap: Gap, coefficient: fmpq) -> None:
    """Add coefficient * exp(gap) to a sum."""
    terms[gap] = terms.get(gap, fmpq(0)) + coefficient


def sum_ball(terms: Sum, radicand: int) -> arb:
    """Return a sum as a ball of the working precision."""
    root = arb(radicand).rsqrt()
    return sum(((root * x + y).exp() * coefficient for (x, y), coefficient in terms.items()), arb(0))


def factor_ball(scale: Scale) -> arb:
    """Return the scale as a ball of the working precision."""
    return arb(scale.rational.numerator) / arb(scale.rational.denominator) * arb(scale.radicand).rsqrt()
