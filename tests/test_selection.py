"""Which cases run, and that each has one name that finds it again."""

from __future__ import annotations

import pytest
from conftest import CORE_CASE

from attnspec.conformance.catalogue import CHECKS, EVERY_CASE, LEVELS, case_named, cases
from attnspec.conformance.selection import Selection, shard
from attnspec.spec.dtypes import ALIASES, FORMATS
from attnspec.spec.errors import InputError, did_you_mean
from attnspec.spec.profiles import PROFILES
from attnspec.spec.rules import all_rules

RULES = sorted({rule for case in cases("quick") for rule in case.rules})


@pytest.mark.parametrize("level", LEVELS)
def test_no_two_cases_have_one_id(level: str) -> None:
    ids = [case.id for case in cases(level)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("level", LEVELS)
def test_every_case_is_found_by_its_id(level: str) -> None:
    assert [case for case in cases(level) if case_named(case.id) != case] == []


def test_full_holds_every_quick_case() -> None:
    quick, full = ({case for case in cases(level) if case.draw is None} for level in ("quick", "full"))
    assert quick < full


def test_full_draws_more_of_what_quick_draws() -> None:
    quick, full = ({(c.check, c.draw.domain): c.draw.examples for c in cases(level) if c.draw} for level in LEVELS)
    assert quick.keys() == full.keys()
    assert all(full[each] > count for each, count in quick.items())


def test_every_case_enforces_rules_that_exist() -> None:
    assert {rule for case in cases("full") for rule in case.rules} <= set(all_rules())


def test_every_case_enforces_a_rule() -> None:
    assert [case.id for case in cases("full") if not case.rules] == []


@pytest.mark.parametrize("level", LEVELS)
def test_every_check_has_cases(level: str) -> None:
    assert {case.check for case in cases(level)} == {check.name for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_states_what_it_proves(check: object) -> None:
    assert check.sentence.endswith(".")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gradients_stay_within_budget/q=3/k=5/d=8", "the check needs grad in the case"),
        ("absent_keys_never_show/q=3/k=5/d=8", "the check needs lengths in the case"),
        ("order_of_keys_does_not_matter/q=3/k=5/d=8/lengths=ragged", "does not know what a call with lengths gives"),
        ("output_matches_golden/gradients-causal-float32", "the case has gradients"),
        ("gradients_match_golden/plain-wide-float32", "the case has no gradients"),
    ],
)
def test_a_case_that_its_check_knows_nothing_of_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        case_named(name)


def test_a_case_outside_the_levels_has_a_name_too() -> None:
    case = case_named("visible_set_is_exact/q=3/k=1000/d=8/dtype=bf16/causal=lower_right")
    assert case.id == "visible_set_is_exact/q=3/k=1000/d=8/dtype=bfloat16/causal=lower_right"
    assert "mask.causal-lower-right" in case.rules


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_chooses_its_cases(name: str) -> None:
    chosen = Selection(profiles=(name,)).cases()
    assert [case for case in chosen if name not in case.profiles] == []
    assert len(chosen) == sum(name in case.profiles for case in cases("quick"))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_chooses_the_cases_that_enforce_it(name: str) -> None:
    assert Selection(rules=(name,)).cases() == tuple(
        case for case in cases("quick") if name in (*case.rules, *EVERY_CASE)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_dtype_chooses_its_cases(name: str) -> None:
    assert {case.problem.dtype for case in Selection(dtypes=(name,)).cases()} == {name}


@pytest.mark.parametrize(("short", "name"), ALIASES.items())
def test_a_short_name_of_a_dtype_is_as_good(short: str, name: str) -> None:
    assert Selection(dtypes=(short,)).cases() == Selection(dtypes=(name,)).cases()


def test_names_of_one_kind_add_up_and_kinds_narrow() -> None:
    both = Selection(profiles=("masks", "grouped")).cases()
    assert len(both) > len(Selection(profiles=("masks",)).cases())
    assert {case.problem.dtype for case in Selection(profiles=("masks",), dtypes=("bf16",)).cases()} == {"bfloat16"}


def test_cases_are_chosen_by_id_in_the_order_given() -> None:
    ids = ("output_matches_golden/plain-square-float32", CORE_CASE)
    assert tuple(case.id for case in Selection(case_ids=ids).cases()) == ids


def test_a_case_that_is_named_twice_runs_once() -> None:
    again = CORE_CASE.replace("dtype=float32", "dtype=fp32")
    assert len(Selection(case_ids=(CORE_CASE, CORE_CASE, again)).cases()) == 1


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_shards_part_the_cases(parts: int) -> None:
    shards = [Selection(shard=(i, parts)).cases() for i in range(1, parts + 1)]
    assert sorted(case.id for part in shards for case in part) == sorted(case.id for case in cases("quick"))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize(("text", "meaning"), [("1/1", (1, 1)), ("3/4", (3, 4))])
def test_a_shard_is_read(text: str, meaning: tuple[int, int]) -> None:
    assert shard(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "1", "1/", "/2", "a/b", "-1/2", "1/2/3", "1.0/2", "²/4", "9" * 5000 + "/1", " 1/2"]
)
def test_a_malformed_shard_is_told(text: str) -> None:
    with pytest.raises(InputError, match="use I/N"):
        shard(text)


@pytest.mark.parametrize("shard", [(0, 1), (2, 1), (0, 0), (5, 4)])
def test_a_shard_outside_its_parts_is_told(shard: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="with I from 1 to N"):
        Selection(shard=shard).cases()


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(level="slow"), "unknown level 'slow': use one of quick, full"),
        (Selection(profiles=("corr",)), "unknown profile 'corr': use one of core"),
        (Selection(rules=("mask.boolean",)), "unknown rule 'mask.boolean': see `attnspec list rules`"),
        (Selection(dtypes=("int8",)), "unknown dtype 'int8': use one of float32"),
        (Selection(profiles=("double",), dtypes=("float32",)), "no case is left"),
        (Selection(case_ids=(CORE_CASE,), shard=(2, 2)), "no case is left"),
        (Selection(case_ids=("",)), "must begin with a check"),
        (Selection(case_ids=("inputs_stay_unchanged",)), "must begin with a check"),
        (Selection(case_ids=("nonsense/q=1/k=1/d=1",)), "must begin with a check"),
        (Selection(case_ids=("inputs_stay_unchanged/",)), "unknown token ''"),
        (Selection(case_ids=("inputs_stay_unchanged/q=1/k=2",)), "lacks d="),
        (Selection(case_ids=("inputs_stay_unchanged/q=1/k=2/d=x",)), "'d=x'"),
        (Selection(case_ids=("inputs_stay_unchanged/q=1/k=2/d=4/hq=3/hkv=2",)), "3 query heads over 2 key heads"),
        (Selection(case_ids=("output_matches_golden/nonsense",)), "unknown golden case 'nonsense'"),
        (Selection(profiles=("coer",)), "; did you mean 'core'?"),
        (Selection(rules=("mask.causal-uper-left",)), "; did you mean 'mask.causal-upper-left'?"),
        (Selection(case_ids=("inputs_stay_unchange/q=1/k=1/d=1",)), "; did you mean 'inputs_stay_unchanged'?"),
        (
            Selection(case_ids=("output_matches_golden/lengths-raged-float32",)),
            "; did you mean 'lengths-ragged-float32'?",
        ),
    ],
)
def test_a_wrong_name_is_one_line_that_says_what_is_right(selection: Selection, said: str) -> None:
    with pytest.raises(InputError) as caught:
        selection.cases()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_guessed_where_no_name_is_near() -> None:
    assert did_you_mean("nonsense", ("core", "masks")) == ""
    assert did_you_mean("", ("core", "masks")) == ""
