"""The catalogue of known mistakes of a backward pass whose forward pass is right, the likeliest first."""

from __future__ import annotations

from attnspec.conformance.diagnosis.backward.mistake import BackwardMistake, again
from attnspec.conformance.diagnosis.backward.modifiers import OF_SINKS, OF_SLOPES, OF_SOFTCAP
from attnspec.conformance.diagnosis.backward.readers import READERS
from attnspec.conformance.diagnosis.backward.scores import SCORES
from attnspec.conformance.diagnosis.mistakes import CATALOGUE

AGAIN = tuple(wrong for mistake in CATALOGUE if not mistake.rounds for wrong in again(mistake))
BACKWARD: tuple[BackwardMistake, ...] = (*SCORES, *READERS, *OF_SOFTCAP, *OF_SINKS, *OF_SLOPES, *AGAIN)
