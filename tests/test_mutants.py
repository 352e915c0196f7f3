"""The mutant house is in order: every mutant is its base with one change, cites what exists, and covers its kind."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mutants import FAMILIES, all_mutants, mutant_named
from mutants.house import HONEST, Mutant, honest_name, honest_targets, kernel_of

from attnspec.conformance.diagnosis.backward.mistakes import BACKWARD
from attnspec.conformance.diagnosis.mistakes import CATALOGUE
from attnspec.conformance.targets import resolve
from attnspec.spec.rules import all_rules

HOUSE = Path(__file__).parent / "mutants" / "house.py"
FAULT_FAMILIES = (  # of the survey of public faults; a call with dense tensors has nothing of the others
    "backward",
    "causal-geometry",
    "fully-masked-row",
    "gqa-heads",
    "integer-overflow",
    "lse-or-split-merge",
    "mask-broadcast-or-dtype",
    "masked-value-leak",
    "precision-or-range",
    "race-or-nondeterminism",
    "scale-softcap-bias",
    "sliding-window-bound",
    "softmax-max-or-sentinel",
    "strides-or-layout",
    "tail-tile-or-block-multiple",
    "validation-or-degenerate",
    "varlen-or-paged",
)
FAULT_KINDS = (  # of the survey's examples, those that a call with dense tensors and no dropout can show
    "all-inf-mask-block",
    "backward-block-mask-not-transposed",
    "backward-ignores-causal",
    "backward-nan",
    "bf16-softmax",
    "blockmask-longer-than-seq",
    "bool-mask-as-additive",
    "causal-mask-hides-past",
    "causal-top-left-vs-bottom-right",
    "chunked-prefill-offset",
    "dbias-broadcast-last-writer",
    "fallback-path-drops-option",
    "fastpath-bias-nan",
    "finite-sentinel-mask",
    "finite-sentinel-max",
    "fp16-accumulate",
    "fully-masked-row-garbage",
    "fully-masked-row-nan",
    "fwd-bwd-mask-mismatch",
    "gqa-grad-not-summed",
    "gqa-head-order",
    "gqa-mask-oob",
    "grad-stride-assumed",
    "head-dim-hard-coded",
    "input-aliased",
    "input-mutated",
    "int16-index-overflow",
    "int32-index-overflow",
    "large-logit-nan",
    "leading-block-masked",
    "lse-paths-disagree",
    "lse-wrong-base",
    "mask-add-vs-replace",
    "mask-broadcast-ignored",
    "mask-on-wrong-axis",
    "mask-tail-out-of-bounds",
    "mask-transposed",
    "masked-bf16-wrong",
    "masked-row-lse-finite",
    "merge-both-empty-nan",
    "merge-exp-overflow",
    "nan-in-masked-value",
    "nan-input-swallowed",
    "noncontiguous-grad-ignored",
    "noncontiguous-stride-ignored",
    "nondeterministic",
    "online-softmax-init",
    "output-permuted",
    "padding-only-rank",
    "paths-disagree-on-masked-row",
    "pattern-match-wrong-layout",
    "qk-v-head-dim-swap",
    "qlen-ne-klen",
    "quantised-kv",
    "scale-inverted",
    "silently-ignored-argument",
    "sink-double-count",
    "sink-with-empty-tile",
    "softcap-order",
    "split-kv-merge",
    "split-kv-merge-uninitialised",
    "tail-tile-not-masked",
    "tail-tile-uninitialised",
    "window-branch-ignores-causal",
    "window-off-by-one",
    "zero-length-kv",
)


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in all_mutants()).items() if count > 1] == []


def test_no_two_mutants_are_the_same() -> None:
    sources = Counter((mutant.base, mutant.source()) for mutant in all_mutants())
    assert [base for (base, _), count in sources.items() if count > 1] == []


def test_every_family_has_its_mutants() -> None:
    assert {family: bool(table) for family, table in FAMILIES.items()} == dict.fromkeys(FAMILIES, True)
    assert len(all_mutants()) >= 130


def test_every_kind_of_public_fault_is_there() -> None:
    there = {mutant.kind.partition("/")[2] for mutant in all_mutants()}
    assert sorted(set(FAULT_KINDS) - there) == []


def test_every_mutant_cites_a_rule_and_a_kind() -> None:
    rules = all_rules()
    assert [mutant.name for mutant in all_mutants() if mutant.rule not in rules] == []
    families = {
        mutant.name: mutant.kind.partition("/")
        for mutant in all_mutants()
        if not mutant.kind.startswith("none public: ")
    }
    assert [name for name, (family, _, kind) in families.items() if family not in FAULT_FAMILIES or not kind] == []


def test_every_mistake_of_a_mutant_is_in_a_catalogue() -> None:
    known = {mistake.name for mistake in (*CATALOGUE, *BACKWARD)}
    assert [mutant.name for mutant in all_mutants() if mutant.mistake not in (None, *known)] == []


def test_every_mutant_claims_what_its_base_claims() -> None:
    base_of = {"declared": "attention_base_two"}  # the one base whose kernel is called otherwise
    bases = {mutant.base for mutant in all_mutants()}
    claims = {b: resolve(f"{HONEST / b}.py:{base_of.get(b, 'attention')}").capabilities for b in bases}
    assert [m.name for m in all_mutants() if kernel_of(m).capabilities != claims[m.base]] == []


def test_a_change_must_fit_its_base() -> None:
    mutant = Mutant("x", "plain", "not in there", "", "none public: x", "mask.bool")
    with pytest.raises(ValueError, match="'not in there' stands 0 times in plain, not once"):
        mutant.source()


def test_an_unknown_mutant_is_named() -> None:
    with pytest.raises(SystemExit, match="no mutant is called 'x'"):
        mutant_named("x")


def test_a_mutant_can_be_written_out(tmp_path: Path) -> None:
    file = tmp_path / "mutant.py"
    subprocess.run([sys.executable, HOUSE, "scale-missing", file], check=True)
    assert file.read_text(encoding="utf-8") == mutant_named("scale-missing").source()


def test_the_honest_house_is_large_and_its_kernels_have_names_of_their_own() -> None:
    names = [honest_name(target) for target in honest_targets()]
    assert len(names) == len(set(names)) >= 22
