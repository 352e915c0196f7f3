"""The catalogue of known mistakes, the likeliest first: of several that fit equally, the first is named."""

from __future__ import annotations

from attnspec.conformance.diagnosis.hiding import HIDING
from attnspec.conformance.diagnosis.lengths import LENGTHS
from attnspec.conformance.diagnosis.mistake import Mistake
from attnspec.conformance.diagnosis.reading import READING
from attnspec.conformance.diagnosis.rounding import ROUNDING
from attnspec.conformance.diagnosis.sinking import SINKING
from attnspec.conformance.diagnosis.slopes import SLOPES
from attnspec.conformance.diagnosis.softcap import SOFTCAP
from attnspec.conformance.diagnosis.weighing import WEIGHING
from attnspec.conformance.diagnosis.windows import WINDOWS

CATALOGUE: tuple[Mistake, ...] = (
    *(*HIDING, *LENGTHS, *WINDOWS, *SOFTCAP, *SLOPES, *SINKING, *WEIGHING, *READING, *ROUNDING),
)
