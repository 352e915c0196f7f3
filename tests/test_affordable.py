"""What an emulated kernel is asked to run: the same checks and rules, by small calls."""

import re

import pytest

from attnspec.conformance.affordable import CHEAPEST, MOST_WORK, cheapest, left_out, work
from attnspec.conformance.catalogue import cases
from attnspec.conformance.selection import Selection
from attnspec.conformance.validate import Run, validate
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

ALL = Capabilities(features=tuple(FEATURES), cost="emulated")
FEW = Capabilities(dtypes=("float32",), cost="emulated")
KERNEL = """
import torch
from attnspec.spec.capabilities import Capabilities
class Slow:
    name = "slow"
    hardware = "an interpreter"
    capabilities = Capabilities(features=("scale",), dtypes=("float32",), cost="emulated")
    def __call__(self, query, key, value, scale=None):
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        return torch.softmax(scores, -1) @ value
kernel = Slow()
"""


def test_work_counts_tiles_and_a_backward_pass_as_four() -> None:
    problem = Problem(q_len=65, k_len=129, head_dim=8, batch=2, q_heads=3)
    assert work(problem) == 2 * 3 * 2 * 3
    assert work(problem.but(grad="output")) == 4 * 36
    assert work(problem.but(q_len=0)) == 0


@pytest.mark.parametrize("capabilities", [ALL, FEW])
@pytest.mark.parametrize("level", ["quick", "full"])
def test_every_check_and_rule_that_a_native_kernel_meets_is_kept(level: str, capabilities: Capabilities) -> None:
    undeclared = left_out(cases(level), Capabilities(**{**vars(capabilities), "cost": "native"}), level)
    native = [case for case in cases(level) if case.id not in undeclared]
    reasons = left_out(cases(level), capabilities, level)
    kept = [case for case in native if case.id not in reasons]
    assert {case.check for case in kept} == {case.check for case in native}
    assert {rule for case in kept for rule in case.rules} == {rule for case in native for rule in case.rules}
    assert len(kept) < len(native)


def test_only_the_cheapest_of_a_check_may_be_large() -> None:
    reasons = left_out(cases("quick"), ALL, "quick")
    large = [c for c in cases("quick") if c.draw is None and c.id not in reasons and work(c.problem) > 16]
    assert MOST_WORK["quick"] == 16
    assert 0 < len(large) <= CHEAPEST * len({case.check for case in large})
    assert {case.id for case in large} <= cheapest("quick", ALL)


def test_what_is_left_out_does_not_depend_on_the_choice() -> None:
    whole = Selection().left_out(ALL)
    part = Selection(dtypes=("bfloat16",))
    chosen = {case.id for case in part.cases()}
    assert part.left_out(ALL) == {case_id: reason for case_id, reason in whole.items() if case_id in chosen}


def test_a_named_case_is_never_too_large() -> None:
    large = next(case_id for case_id, reason in Selection().left_out(ALL).items() if "emulated" in reason)
    assert Selection(case_ids=(large,)).left_out(ALL) == {}


def test_a_run_tells_what_it_left_out(tmp_path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(KERNEL)
    run = validate(Run(f"{path}:kernel", Selection(rules=("softmax.weights",))))
    assert run.verdict.exit_code == 0
    assert run.kernel["hardware"] == "an interpreter"
    left = {r.id: r.reason or "" for r in run.results if "emulated" in (r.reason or "")}
    assert "output_matches_golden/plain-square-large-float32" in left
    assert all(re.search(r"more than 16 tiles, which level quick does not ask", reason) for reason in left.values())
    assert not any(r.declared for r in run.results if r.id in left)


def test_a_cost_that_the_spec_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="cost has 'free'; use one of native, emulated"):
        Capabilities(cost="free")
