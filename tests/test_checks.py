"""Every check kills a kernel with one planted fault and names the rule; the honest kernels pass them all.

The kernels are in `kernels/`. They run in this process, on a few cases a check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import KERNELS, target_of
from findings import finding, findings
from mutants import mutant_named
from mutants.house import HONEST, kernel_of

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import BY_NAME, CHECKS, case_named, cases
from attnspec.conformance.failure_screen import failure_screen
from attnspec.conformance.outcome import NotSupported
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve

OUTPUT, LSE = "accuracy.output-within-budget", "accuracy.lse-within-budget"
MALFORMED = {
    "returns_none": "contract.output-type",
    "wrong_shape": "contract.output-shape",
    "wrong_dtype": "contract.output-dtype",
    "wrong_device": "contract.output-device",
    "raises": "profile.core",
}
FAULTS = [  # kernel, the check that must name it, the rule that must be named
    ("shifted_causal", "visible_set_is_exact", "mask.causal-upper-left"),
    ("lower_right_causal", "visible_set_is_exact", "mask.causal-upper-left"),
    ("inverted_mask", "visible_set_is_exact", "mask.bool"),
    ("drops_mask", "visible_set_is_exact", "mask.combine"),
    ("mean_for_empty_rows", "visible_set_is_exact", "mask.fully-masked-row"),
    ("sentinel_mask", "visible_set_is_exact", "mask.fully-masked-row"),
    ("skips_tail_keys", "visible_set_is_exact", "attention.output"),
    ("tiled_heads", "query_heads_read_their_group", "grouped.head-map"),
    ("mutates_input", "inputs_stay_unchanged", "contract.inputs-unchanged"),
    ("cached_output", "outputs_share_no_memory", "contract.no-alias"),
    ("nondeterministic", "results_repeat_bit_for_bit", "contract.deterministic"),
    ("remembers_scores", "results_repeat_bit_for_bit", "contract.deterministic"),
    ("layout_blind", "storage_layout_does_not_matter", "contract.layouts"),
    ("nan_without_keys", "zero_lengths_give_zero_or_nothing", "attention.zero-length"),
    ("remembers_address", "new_content_of_old_memory_is_seen", "contract.layouts"),
    ("clamps_values", "output_is_linear_in_the_values", "attention.output"),
    ("hidden_maximum", "hidden_keys_have_no_influence", "mask.hidden-values"),
    ("hidden_value_leak", "hidden_keys_have_no_influence", "mask.hidden-values"),
    ("mean_for_empty_rows", "hidden_keys_have_no_influence", "mask.hidden-values"),
    ("swallows_nan", "visible_nan_comes_through", "mask.visible-nan"),
    ("batched_rank3_mask", "output_matches_golden", OUTPUT),
    ("zero_means_default_scale", "output_matches_golden", OUTPUT),
    ("missing_scale", "output_matches_golden", OUTPUT),
    ("bf16_scores", "output_matches_golden", OUTPUT),
    ("fp8_weights", "output_matches_golden", OUTPUT),
    ("sentinel_mask", "output_matches_golden", "mask.fully-masked-row"),
    ("returns_nan", "output_matches_golden", "contract.output-written"),
    ("base2_lse", "lse_matches_golden", LSE),
    ("rounded_lse", "lse_matches_golden", LSE),
    ("infinite_lse", "lse_matches_golden", "softmax.lse-empty-row"),
    ("half_lse", "lse_matches_golden", "softmax.lse-dtype"),
    ("forgets_lse", "lse_matches_golden", "contract.output-type"),
    ("bf16_scores", "output_stays_within_budget", OUTPUT),
    ("bf16_accumulate", "output_stays_within_budget", OUTPUT),
    ("fp8_weights", "output_stays_within_budget", OUTPUT),
    ("base2_lse", "lse_stays_within_budget", LSE),
    ("rounded_lse", "lse_stays_within_budget", LSE),
    ("backend_that_raises", "visible_set_is_exact", "contract.declared-runs"),
    *((kernel, "visible_set_is_exact", rule) for kernel, rule in MALFORMED.items()),
    *((kernel, "output_matches_golden", rule) for kernel, rule in MALFORMED.items()),
]
KILLERS = {  # check: a mutant of tests/mutants that it kills
    "each_row_reads_the_key_it_asks_for": "output-heads-reversed",
    "every_feature_of_a_key_counts": "head-dim-tail-dropped",
    "gradients_read_the_visible_set": "recompute-without-causal",
    "weights_add_up_to_one": "softmax-unnormalised",
    "batch_elements_keep_their_bits": "tile-by-batch-size",
    "dirty_memory_does_not_show": "scratch-not-cleared",
    "expanded_storage_does_not_matter": "strides-ignored",
    "offsets_beyond_31_bits_are_reached": "offsets-in-32-bits",
    "impossible_calls_are_refused": "heads-rounded-to-a-group",
    "unseen_keys_have_no_influence": "causal-sees-next-key",
    "hidden_nan_stays_out": "hidden-nan-multiplied",
    "hidden_bias_has_no_influence": "causal-bias-over-sentinel",
    "output_lies_between_the_visible_values": "softmax-unnormalised",
    "order_of_keys_does_not_matter": "first-key-dropped",
    "order_of_heads_does_not_matter": "mask-of-head-0",
    "batch_elements_are_apart": "batch-0-values",
    "rows_are_apart": "decode-drops-mask",
    "groups_equal_expanded_heads": "heads-tiled",
    "bool_mask_equals_its_additive_form": "bias-does-not-hide",
    "hidden_tail_equals_shorter_keys": "mask-dropped",
    "twice_the_keys_give_the_same": "softmax-off-by-one-in-the-sum",
    "halves_merge_by_their_lse": "lse-base-2",
    "parts_merge_in_any_order": "parts-merged-without-maximum",
    "absent_keys_never_show": "absent-values-times-0",
    "lengths_equal_shorter_keys": "length-rounded-up-to-16",
    "decoding_equals_prefill": "decode-misses-the-new-key",
    "impossible_lengths_are_refused": "too-long-a-length-is-cut",
    "a_window_equals_its_mask": "window-left-one-short",
    "a_window_beyond_all_keys_is_none": "window-longer-than-the-keys-wraps",
    "impossible_windows_are_refused": "window-below-minus-1-is-none",
    "two_keys_give_their_closed_form": "softcap-ignored",
    "a_cap_far_above_the_scores_is_none": "softcap-of-0-caps",
    "impossible_caps_are_refused": "softcap-below-0-is-none",
    "sinks_of_minus_infinity_are_none": "sink-not-in-the-maximum",
    "sinks_take_their_closed_form": "sink-twice",
    "sinks_of_another_shape_are_refused": "sinks-broadcast",
    "slopes_of_each_batch_element_are_its_own": "alibi-of-batch-0",
    "alibi_equals_its_mask": "alibi-other-corner",
    "slopes_of_0_are_none": "alibi-slope-0-taken-for-a-default",
    "slopes_of_another_shape_are_refused": "alibi-one-slope-spread",
    "options_combine": "masked-scales-twice",
    "kept_weights_are_scaled_up_and_others_0": "dropout-not-scaled-up",
    "output_is_that_of_the_kept_weights": "dropout-on-the-output",
    "lse_knows_nothing_of_dropout": "dropout-in-the-lse",
    "weights_are_dropped_at_the_rate_asked_for": "dropout-rate-off-by-a-tenth",
    "a_seed_names_its_mask": "dropout-seed-ignored",
    "mean_over_seeds_is_the_plain_output": "dropout-keeps-the-largest",
    "p_0_is_no_dropout": "dropout-of-p-0-draws",
    "p_1_drops_every_weight": "dropout-of-p-1-is-nan",
    "p_1_passes_no_gradient": "dropout-no-mask-in-the-backward",
    "gradients_pass_the_mask_of_the_forward": "dropout-no-factor-in-the-backward",
    "p_that_is_no_probability_is_refused": "dropout-range-unchecked",
    "global_settings_stay_as_they_were": "default-dtype-changed",
    "options_combine_in_the_backward": "grad-bias-lost-where-causal",
    "gradients_belong_to_their_call": "grad-state-in-the-module",
    "each_input_may_ask_alone": "grad-only-where-all-ask",
    "gradients_grow_with_what_flows_back": "grad-output-clamped",
    "absent_keys_reach_no_gradient": "grad-absent-values-times-0",
    "hidden_keys_get_no_gradient": "grad-hidden-keeps-a-weight",
    "gradients_match_golden": "grad-query-unscaled",
    "gradients_stay_within_budget": "grad-bias-transposed-where-square",
    "gradients_of_a_sum_stay_within_budget": "recompute-key-summed-in-16-bits",
    "layout_of_what_flows_back_does_not_matter": "grad-output-of-a-sum-is-1",
    "gradients_repeat_bit_for_bit": "grad-query-buffer-not-zeroed",
    "no_wrong_scale_hides_in_the_noise": "scale-off-by-three-millionths",
    "lse_has_no_bias": "scale-off-by-three-millionths",
}


pytestmark = pytest.mark.usefixtures("one_thread")


def of_check(name: str) -> Callable[[Case], bool]:
    """Say whether a case is of a check."""
    return lambda case: case.check == name


@pytest.mark.parametrize(("name", "check", "rule"), FAULTS)
def test_the_fault_is_found_and_named(kernel: Callable[[str], Any], name: str, check: str, rule: str) -> None:
    assert rule in (found.rule for _, found in findings(kernel(name), of_check(check)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_kills_a_kernel(check: Any) -> None:
    assert check.name in {check for _, check, _ in FAULTS} | KILLERS.keys()


@pytest.mark.parametrize(("check", "mutant"), KILLERS.items())
def test_the_check_kills_the_mutant(check: str, mutant: str) -> None:
    assert next(findings(kernel_of(mutant_named(mutant)), of_check(check)), None) is not None


def test_every_kernel_is_killed() -> None:
    assert {name for name, _, _ in FAULTS} == {path.stem for path in KERNELS.glob("*.py")} - {"honest"}


@pytest.mark.parametrize(("name", "rule"), MALFORMED.items())
def test_a_result_that_is_no_result_is_named_by_every_check(kernel: Callable[[str], Any], name: str, rule: str) -> None:
    chosen = [case for case in cases("quick") if "core" in case.profiles and case.problem.q_len % 16 and not case.draw]
    honest = kernel("honest")
    first = {case.check: case for case in chosen if runs(honest, case)}
    first.pop("expanded_storage_does_not_matter")  # may be refused, by an exception of any kind
    assert {
        check: found.rule for check, case in first.items() if (found := finding(kernel(name), case))
    } == dict.fromkeys(first, rule)


def runs(kernel: Any, case: Case) -> bool:
    """Whether the kernel supports the case."""
    try:
        run_case(kernel, case)
    except NotSupported:
        return False
    return True


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_honest_kernel_passes_every_quick_case(kernel: Callable[[str], Any], check: Any) -> None:
    assert [str(found) for _, found in findings(kernel("honest"), of_check(check.name))] == []


def test_the_other_corner_is_right_where_it_is_declared() -> None:
    kernel = resolve(target_of("lower_right_causal"), causal_alignment="lower_right")
    chosen = [case for case in cases("quick") if case.problem.causal]
    assert [str(found) for case in chosen if (found := finding(kernel, case))] == []


def test_base_2_is_right_where_it_is_declared(kernel: Callable[[str], Any]) -> None:
    plain = kernel("base2_lse")
    declared = replace(plain, capabilities=replace(plain.capabilities, lse_base="2"))
    chosen = [case for case in cases("quick") if case.return_lse]
    assert [str(found) for case in chosen if (found := finding(declared, case))] == []


def test_stored_scores_are_right_where_the_class_is_eager() -> None:
    kernel = resolve(target_of("bf16_scores"), accuracy="eager")
    chosen = [case for case in cases("quick") if case.family in ("golden", "regime")]
    assert [str(found) for case in chosen if (found := finding(kernel, case))] == []


def test_a_declared_lack_of_determinism_is_taken_at_its_word(kernel: Callable[[str], Any]) -> None:
    plain = kernel("nondeterministic")
    declared = replace(plain, capabilities=replace(plain.capabilities, deterministic=False))
    assert list(findings(declared, of_check("results_repeat_bit_for_bit"))) == []


def test_a_drawn_case_of_which_every_head_dim_is_refused_is_no_breach_of_core() -> None:
    two_dims = resolve(f"{HONEST / 'refusals'}.py:attention_of_two_dims")
    assert finding(two_dims, case_named("unseen_keys_have_no_influence/core/drawn=6/seed=2")) is None


def test_a_kernel_that_exits_has_raised(kernel: Callable[[str], Any]) -> None:
    def leave(*tensors: Any, **options: Any) -> None:
        raise SystemExit(1)

    found = finding(replace(kernel("honest"), run=leave), cases("quick")[0])
    assert found is not None
    assert (found.rule, found.what) == (
        "profile.core",
        "a call that every kernel must run: the kernel raised SystemExit: 1",
    )


@pytest.mark.parametrize(("name", "check", "rule"), FAULTS)
def test_a_failure_fits_one_screen(kernel: Callable[[str], Any], name: str, check: str, rule: str) -> None:
    case, found = next(findings(kernel(name), of_check(check)))
    screen = failure_screen(case, found, ["attnspec", "validate", target_of(name)]).splitlines()
    shown = (found.case or case).id
    assert screen[0] == f"FAIL {shown}"
    assert screen[1].split()[:2] == ["rule", found.rule]
    assert screen[-1].split()[0] == "rerun"
    assert shown in screen[-1]
    assert len(screen) <= 28
    assert max(map(len, screen[:-1])) <= 120


def test_a_check_found_by_its_name_is_that_check() -> None:
    assert [BY_NAME[check.name] for check in CHECKS] == list(CHECKS)
