"""Each check of the backward pass finds the fault it is there for and names its rule; what a kernel's gradients are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from mutants import mutant_named
from mutants.house import honest_name, honest_targets, kernel_of
from mutants.truth import remembered

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import case_named, cases
from attnspec.conformance.checks.gradients import with_cause, without_one_option
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.problem import Problem

GOLDEN, BUDGET, SUM = (
    "gradients_match_golden",
    "gradients_stay_within_budget",
    "gradients_of_a_sum_stay_within_budget",
)
HIDDEN, LAYOUT = "hidden_keys_get_no_gradient", "layout_of_what_flows_back_does_not_matter"
REPEAT = "gradients_repeat_bit_for_bit"
FAULTS = [  # mutant, the check that must find it, the rule that must be named
    ("grad-hidden-keeps-a-weight", HIDDEN, "backward.hidden"),
    ("recompute-without-causal", HIDDEN, "backward.hidden"),
    ("grad-query-unscaled", GOLDEN, "backward.query"),
    ("grad-key-unscaled", GOLDEN, "backward.key"),
    ("grad-value-unnormalised", GOLDEN, "backward.value"),
    ("grad-bias-none", GOLDEN, "backward.bias"),
    ("grad-bias-transposed-where-square", BUDGET, "backward.bias"),
    ("recompute-query-summed-in-16-bits", SUM, "backward.query"),
    ("recompute-key-summed-in-16-bits", SUM, "backward.key"),
    ("recompute-value-summed-in-16-bits", SUM, "backward.value"),
    ("grad-output-read-in-storage-order", LAYOUT, "contract.layouts"),
    ("grad-output-of-a-sum-is-1", LAYOUT, "contract.layouts"),
    ("grad-output-scaled-in-place", LAYOUT, "contract.inputs-unchanged"),
    ("grad-query-scaled-in-place", LAYOUT, "contract.inputs-unchanged"),
    ("grad-query-buffer-not-zeroed", REPEAT, "contract.deterministic"),
    ("grad-key-in-any-order", REPEAT, "contract.deterministic"),
    ("grad-query-in-a-shared-buffer", REPEAT, "contract.no-alias"),
]
CAUSES = [  # mutant, the rule of the option that its backward pass lacks
    ("grad-lse-dropped", "backward.lse"),
    ("grad-group-mean", "backward.grouped"),
    ("grad-of-batch-0-only", "backward.broadcast"),
    ("grad-bias-first-reader", "backward.broadcast"),
    ("recompute-empty-row-unguarded", "backward.empty-row"),
    ("recompute-tail-scored-0", "backward.recompute-range"),
    ("recompute-pads-score-0-when-masked", "backward.recompute-range"),
    ("recompute-products-overflow-16-bits", "accuracy.gradients-overflow"),
    ("recompute-keys-of-all-lengths", "key-lengths.visible"),
    ("recompute-without-causal", "backward.matches-forward"),
    ("recompute-without-mask", "backward.matches-forward"),
    ("grad-scale-is-the-default", "backward.matches-forward"),
]
DIFFERENTIABLE = {  # honest kernels with gradients of everything
    "backward_exp2",
    "backward_heads_stored",
    "backward_in_parts",
    "backward_method",
    "closed_form",
    "expanded_heads",
    "recompute",
}
PLAIN = Problem(q_len=5, k_len=7, head_dim=8, q_heads=2, grad="output", seed=1)
BIASED = Problem.parse("q=5/k=7/d=8/mask=float.k.random/grad/seed=1")
Method = Callable[[Call, Result], Any]


@pytest.fixture(autouse=True)
def _truth_remembered(one_thread: None) -> Iterator[None]:
    """Many kernels are judged by the same truth."""
    with remembered():
        yield


def honest(name: str) -> Kernel:
    """Return an honest kernel by its short name."""
    return resolve(next(target for target in honest_targets() if honest_name(target) == name))


def outcome(kernel: Kernel, case: Case) -> Violation | NotSupported | None:
    """Run a case; return how it ended early, None where it passes."""
    torch.default_generator.manual_seed(0)
    try:
        run_case(kernel, case)
    except (Violation, NotSupported) as early:
        return early
    return None


def rules_named(kernel: Kernel, check: str) -> Iterator[str]:
    """Yield the rules that a check's quick cases name, one after another."""
    for case in cases("quick"):
        if case.check == check and isinstance(found := outcome(kernel, case), Violation):
            yield found.rule


@pytest.mark.parametrize(("mutant", "check", "rule"), FAULTS)
def test_the_check_finds_the_fault_and_names_the_rule(mutant: str, check: str, rule: str) -> None:
    assert rule in rules_named(kernel_of(mutant_named(mutant)), check)


@pytest.mark.parametrize(("mutant", "rule"), CAUSES)
def test_an_option_that_the_backward_lacks_is_named(mutant: str, rule: str) -> None:
    kernel = kernel_of(mutant_named(mutant))
    chosen = [case for case in cases("quick") if case.check == BUDGET and worth_trying(case.problem, rule)]
    found = [f for case in chosen if isinstance(f := outcome(kernel, case), Violation)]
    assert rule in {f.rule for f in found}
    assert all("has the right ones" in f.what for f in found if f.rule == rule)


def worth_trying(problem: Problem, rule: str) -> bool:
    """Whether a problem has an option of the rule."""
    return rule in {of for of, _, _ in without_one_option(problem)}


@pytest.mark.parametrize("name", sorted(DIFFERENTIABLE))
def test_an_honest_backward_gives_every_gradient(name: str) -> None:
    kernel = honest(name)
    chosen = [case for case in cases("quick") if case.check == BUDGET and case.problem.causal != "lower_right"]
    named = ("key_lengths", "window_size", "softcap", "sinks", "alibi_slopes")  # that these kernels do not take
    chosen = [case for case in chosen if not case.problem.features().intersection(named)]
    refused = [case.id for case in chosen if outcome(kernel, case) is not None]
    assert refused == []


def test_what_is_wrong_forward_too_is_no_fault_of_the_backward() -> None:
    right = honest("expanded_heads")
    kernel = replace(right, run=lambda q, k, v, is_causal=False, **options: right.run(q, k, v, **options))
    found = outcome(kernel, case_named(f"{BUDGET}/q=33/k=70/d=64/causal/grad/seed=1"))
    assert isinstance(found, Violation)
    assert found.rule == "accuracy.output-within-budget"


def test_a_gradient_that_is_hardly_off_keeps_its_rule() -> None:
    kernel = kernel_of(mutant_named("grad-lse-dropped"))
    problem = PLAIN.but(grad="lse")
    slight, large = (Violation("backward.query", "x", (), off) for off in (3.9, 4.1))
    assert with_cause(kernel, problem, slight) is slight
    assert with_cause(kernel, problem, large).rule == "backward.lse"


def test_a_fault_without_an_option_keeps_its_rule() -> None:
    found = outcome(kernel_of(mutant_named("grad-delta-missing")), case_named(f"{BUDGET}/{PLAIN}"))
    assert isinstance(found, Violation)
    assert (found.rule, "without" in found.what) == ("backward.query", False)


def test_products_beyond_the_range_of_class_eager_are_not_judged() -> None:
    huge = "hq=2/q=33/k=70/d=64/dtype=float16/values=huge/grad/seed=1"
    found = outcome(resolve("torch_eager"), case_named(f"{BUDGET}/{huge}"))
    assert isinstance(found, NotSupported)
    assert found.declared
    assert outcome(resolve("torch_eager"), case_named(f"{BUDGET}/{huge}".replace("=huge", "=uniform"))) is None


def no_graph(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """Attention that autograd cannot follow."""
    with torch.no_grad():
        return honest("expanded_heads").run(query, key, value, **options)


def broken_graph(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """Attention whose backward pass raises."""
    output = honest("expanded_heads").run(query, key, value, **options)

    def refuse(grad: torch.Tensor) -> None:
        raise ValueError("no backward here")

    output.register_hook(refuse)
    return output


@pytest.mark.parametrize(
    ("run", "reason"), [(no_graph, "back: output has no grad_fn"), (broken_graph, "no backward here")]
)
def test_no_gradient_is_a_refusal_of_a_bare_callable_and_a_fault_of_a_backend(
    run: Callable[..., Any], reason: str
) -> None:
    call, bare = make_call(PLAIN), replace(honest("expanded_heads"), run=run)
    with pytest.raises(NotSupported, match=reason) as refused:
        bare.gradients(call)
    assert not refused.value.declared
    with pytest.raises(Violation, match=reason) as found:
        replace(bare, inferred=False).gradients(call)
    assert found.value.rule == "contract.declared-runs"


def test_a_loss_on_an_lse_without_a_graph_is_refused() -> None:
    call = make_call(PLAIN.but(grad="lse")).but(return_lse=True)
    with pytest.raises(NotSupported, match="back: lse has no grad_fn"):
        honest("autograd_function").gradients(call)


def with_method(method: Method) -> Kernel:
    """A backend whose gradients come from a method `backward`."""
    features = tuple(name for name in FEATURES if name != "key_lengths")
    return Kernel("x", "x", no_graph, Capabilities(features=features), backward=method)


def closed_form(call: Call, result: Result) -> Gradients:
    """The gradients of a call, in the dtypes of its tensors."""
    found = gradients(call)
    mask = None if found.attn_mask is None or call.attn_mask is None else found.attn_mask.to(call.attn_mask.dtype)
    query, key, value = (x.to(call.query.dtype) for x in (found.query, found.key, found.value))
    return Gradients(query, key, value, mask)


def test_a_backward_method_gives_the_gradients() -> None:
    kernel = with_method(closed_form)
    for problem in (PLAIN, BIASED):
        assert outcome(kernel, case_named(f"{BUDGET}/{problem}")) is None
    got = kernel.gradients(make_call(BIASED))[1]
    assert got.attn_mask is not None
    assert got.attn_mask.shape == (7,)


@pytest.mark.parametrize(
    ("method", "rule", "what"),
    [
        (
            lambda c, r: (c.query, c.key),
            "contract.output-type",
            "gave 2 gradients, not 4: query, key, value, attn_mask",
        ),
        (lambda c, r: closed_form(c, r)[:3], "contract.output-type", "gave 3 gradients, not 4"),
        (lambda c, r: (c.query, c.key, "value", c.attn_mask), "contract.output-type", "value is a value of type str"),
        (lambda c, r: (c.query[..., 1:], c.key, c.value, c.attn_mask), "contract.output-shape", "(1, 1, 5, 7)"),
        (lambda c, r: (c.query, c.key.double(), c.value, c.attn_mask), "contract.output-dtype", "key is torch.float64"),
        (lambda c, r: None, "contract.declared-runs", "TypeError"),
        (lambda c, r: 1 / 0, "contract.declared-runs", "ZeroDivisionError"),
    ],
)
def test_gradients_that_are_none_are_named(method: Method, rule: str, what: str) -> None:
    with pytest.raises(Violation) as found:
        with_method(method).gradients(make_call(BIASED))
    assert found.value.rule == rule
    assert what in found.value.what


def test_a_gradient_of_none_counts_as_0() -> None:
    got = with_method(lambda c, r: (None, c.key, c.value, None)).gradients(make_call(BIASED))[1]
    assert got.attn_mask is not None
    assert not got.query.any()
    assert not got.attn_mask.any()


def test_the_result_of_a_call_with_gradients_is_that_without() -> None:
    kernel, call = honest("recompute"), make_call(PLAIN)
    assert torch.equal(kernel.gradients(call)[0].output, kernel(call).output)
