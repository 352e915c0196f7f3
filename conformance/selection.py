"""Which cases run: by level, profile, rule, dtype, case and shard."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.conformance.affordable import left_out
from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import EVERY_CASE, case_named, cases
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError
from attnspec.spec.profiles import profile
from attnspec.spec.rules import rule

LONGEST_NUMBER = 9  # digits of a shard


@dataclass(frozen=True)
class Selection:
    """What the user asked for; an empty tuple is everything. shard: (i, n), the i-th of n parts, i from 1."""

    level: str = "quick"
    profiles: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    case_ids: tuple[str, ...] = ()
    shard: tuple[int, int] = (1, 1)
    seed: int = 0

    @property
    def whole(self) -> bool:
        """Whether whole profiles are chosen, so that a verdict may speak of them. Rule: `profile.claims`."""
        return not (self.rules or self.dtypes or self.case_ids) and self.shard == (1, 1)

    def left_out(self, capabilities: Capabilities) -> dict[str, str]:
        """Return why cases of the selection are not run on a kernel, by their ids (see `affordable`)."""
        return left_out(self.cases(), capabilities, self.level, bool(self.case_ids))

    def cases(self) -> tuple[Case, ...]:
        """Return the cases, in order. Raises InputError for an unknown name, and where no case is left."""
        profiles = [profile(name) for name in self.profiles]
        rules = {rule(name).id for name in self.rules}
        dtypes = {format_named(name).name for name in self.dtypes}
        named = dict.fromkeys(case_named(case_id) for case_id in self.case_ids) or cases(self.level, self.seed)
        chosen = [
            case
            for case in named
            if (not profiles or any(p.holds(case.problem, case.return_lse) for p in profiles))
            and (not rules or rules.intersection((*case.rules, *EVERY_CASE)))
            and (not dtypes or case.problem.dtype in dtypes)
        ]
        index, parts = self.shard
        if not 1 <= index <= parts:
            raise InputError(f"shard {index}/{parts}: use I/N with I from 1 to N")
        chosen = chosen[index - 1 :: parts]
        if not chosen:
            raise InputError("no case is left: loosen --profile, --rule, --dtype, --case or --shard")
        return tuple(chosen)


def shard(text: str) -> tuple[int, int]:
    """Read `I/N`. Raises InputError."""
    index, slash, parts = text.partition("/")
    if not slash or not all(number.isdecimal() and len(number) <= LONGEST_NUMBER for number in (index, parts)):
        raise InputError(f"shard {text[:40]!r}: use I/N, such as 1/4")
    return int(index), int(parts)
