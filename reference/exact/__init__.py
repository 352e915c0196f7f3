"""The second oracle: attention evaluated in exact and ball arithmetic, every result proven correctly rounded.

It is written apart from the float64 reference and shares no code with it, so that an error in one shows as a
disagreement. Finite inputs only; the price is time, about a fifth of a second for one head of 130 x 130 x 128.
"""

from attnspec.reference.exact.attention import ExactResult, attention
from attnspec.reference.exact.precision import UndecidedError
from attnspec.reference.exact.rounding import round_ball, round_near, round_to

__all__ = ["ExactResult", "UndecidedError", "attention", "round_ball", "round_near", "round_to"]
