"""Every check of the suite: its family, the rules it enforces, and its cases. The bodies are in `checks/`.

Nothing here imports a framework, so that cases can be listed and chosen at once. The order is the order of a run: the
strongest of the cheap checks first.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnspec.conformance.case import Case, Draw, Ran
from attnspec.conformance.domains import domain_named
from attnspec.conformance.problems import alibi, backward, dropout, forward, lengths, regimes, sinks, softcap, windows
from attnspec.golden.cases import CASES, golden_case
from attnspec.spec.errors import InputError, did_you_mean
from attnspec.spec.problem import Problem

LEVELS = ("quick", "full")
EXAMPLES = {"quick": 6, "full": 40}  # problems drawn for a law in a domain
DRAWN = re.compile(r"([a-z]+)/drawn=([0-9]{1,4})/seed=([0-9]{1,18})")


@dataclass(frozen=True)
class Check:
    """A check. name: the sentence it proves, and the name of its body in `checks/<module>.py`. rules: ids that every
    case of it enforces; a case adds those that its problem exercises. source: where its cases come from: the problems
    of a level, the domains from which hypothesis draws problems, or None for the golden cases: those with gradients
    where `gradients` is set, else those without."""

    name: str
    module: str
    family: str
    rules: tuple[str, ...]
    source: Callable[[str], Iterator[Problem]] | tuple[str, ...] | None
    return_lse: bool = False
    gradients: bool = False

    @property
    def body(self) -> Callable[[Any, Case], float | Ran | None]:
        """The function that runs it on one problem (imports torch)."""
        module = importlib.import_module(f"attnspec.conformance.checks.{self.module}")
        return getattr(module, self.name)  # type: ignore[no-any-return]

    @property
    def sentence(self) -> str:
        """What it proves, in a sentence."""
        return " ".join((self.body.__doc__ or "").split())

    def misfit(self, problem: Problem) -> str | None:
        """Say why the check has nothing to say on a problem, None where it has: gradients, key_lengths and dropout are
        what it is about, or what its own problems may have, or what it does not know."""
        assert callable(self.source), "a check on problems of its own"
        own = [words_of(known) for known in problem_set(self.source)]
        needed, known = frozenset.intersection(*own), frozenset.union(*own)
        given = words_of(problem)
        if missing := sorted(needed - given):
            return f"the check needs {' and '.join(missing)} in the case"
        if unknown := sorted(given - known):
            return f"the check does not know what a call with {' and '.join(unknown)} gives"
        return None

    def case(self, name: str, problem: Problem, rules: tuple[str, ...] = (), draw: Draw | None = None) -> Case:
        """Return one case of the check."""
        return Case(self.name, self.family, name, problem, self.rules, self.return_lse, rules, draw)

    def drawn(self, draw: Draw) -> Case:
        """Return the case that draws problems. Raises InputError for an unknown domain."""
        return self.case(str(draw), domain_named(draw.domain), draw=draw)

    def cases(self, level: str, seed: int) -> Iterator[Case]:
        """Return the check's cases at a level; seed: of what is drawn."""
        if self.source is None:
            for golden in CASES:
                if (golden.problem.grad is not None) == self.gradients:
                    yield self.case(golden.name, golden.problem, golden.rules)
        elif isinstance(self.source, tuple):
            yield from (self.drawn(Draw(domain, EXAMPLES[level], seed)) for domain in self.source)
        else:
            yield from (self.case(str(problem), problem) for problem in self.source(level))


EVERY_CASE = (  # enforced by `kernel.well_formed`, `running.run_case` and `judgement.judge`, whatever the check
    "contract.output-type",
    "contract.output-shape",
    "contract.output-dtype",
    "contract.output-device",
    "contract.output-written",
    "contract.declared-runs",
    "accuracy.classes",
    "accuracy.overflow",
    "profile.core",
)
TILES = ("flash.tile-independent",)
LSE_RULES = ("accuracy.lse-within-budget", "softmax.lse-base", "softmax.lse-dtype")

MERGES = (*LSE_RULES, "flash.merge-associative", "flash.merge-empty", "flash.merge-gap")
PLAIN, MASKED = ("core", "half"), ("core", "masks")
ANY = ("core", "masks", "grouped", "half", "double")
LAYOUTS, ALIAS = ("contract.layouts",), ("contract.no-alias",)

REFUSED = ("contract.refusal", "notation.shapes", "grouped.heads-divide", "mask.broadcast", "attention.zero-length")
OFFSETS = ("attention.output", *LAYOUTS)
BUDGETS = ("accuracy.output-within-budget", "accuracy.classes", "notation.dtypes")
BACK = ("backward.matches-forward", "backward.value")
CACHE = ("kv-cache.append", "kv-cache.chunks")
OWN = ("backward.own-call", "contract.no-alias")
FLOWS = ("contract.layouts", "contract.inputs-unchanged")
KEPT = ("dropout.inverted", "dropout.on-weights")
DRAWN_APART = ("dropout.rate", "dropout.seed")
MASK_OF_FORWARD = ("dropout.backward-mask", "backward.dropout")
REPEATS = ("contract.deterministic", "contract.no-alias")
SUMS = ("accuracy.gradients-within-budget", "backward.key", "backward.value")
GRADIENTS = (
    "accuracy.gradients-within-budget",
    "accuracy.gradients-overflow",
    "backward.recompute-range",
    "flash.lse-recompute",
)
TEMPERATURE = ("accuracy.temperature", "accuracy.output-within-budget")

CHECKS = (
    Check("visible_set_is_exact", "probes", "probe", TILES, forward.visible_sets),
    Check("query_heads_read_their_group", "probes", "probe", ("grouped.head-map",), forward.head_maps),
    Check("each_row_reads_the_key_it_asks_for", "probes", "probe", ("notation.layout",), forward.lookups),
    Check("every_feature_of_a_key_counts", "probes", "probe", ("attention.output",), forward.head_dims),
    Check("gradients_read_the_visible_set", "probes", "probe", BACK, backward.visible_sets),
    Check("weights_add_up_to_one", "probes", "probe", ("softmax.weights",), forward.weight_sums),
    Check("output_matches_golden", "golden", "golden", ("accuracy.output-within-budget",), None),
    Check("lse_matches_golden", "golden", "golden", LSE_RULES, None, return_lse=True),
    Check("gradients_match_golden", "gradients", "golden", GRADIENTS, None, gradients=True),
    Check("inputs_stay_unchanged", "contract", "contract", ("contract.inputs-unchanged",), forward.plain_and_lengths),
    Check("global_settings_stay_as_they_were", "contract", "contract", ("contract.global-state",), forward.plain),
    Check("outputs_share_no_memory", "contract", "contract", ALIAS, forward.plain),
    Check("results_repeat_bit_for_bit", "contract", "contract", ("contract.deterministic",), forward.plain),
    Check("batch_elements_keep_their_bits", "contract", "contract", ("contract.batch-invariant",), forward.plain),
    Check("dirty_memory_does_not_show", "memory", "contract", ("contract.output-written",), forward.plain),
    Check("new_content_of_old_memory_is_seen", "memory", "contract", LAYOUTS, forward.plain),
    Check("storage_layout_does_not_matter", "memory", "contract", LAYOUTS, forward.plain),
    Check("expanded_storage_does_not_matter", "memory", "contract", LAYOUTS, forward.plain),
    Check("offsets_beyond_31_bits_are_reached", "memory", "contract", OFFSETS, forward.far_apart),
    Check("zero_lengths_give_zero_or_nothing", "contract", "contract", ("attention.zero-length",), forward.empties),
    Check("impossible_calls_are_refused", "contract", "contract", REFUSED, forward.refusable),
    Check("hidden_keys_have_no_influence", "laws", "law", ("mask.hidden-values",), forward.hiding),
    Check("unseen_keys_have_no_influence", "laws", "law", ("mask.hidden-values",), (*ANY, "windows")),
    Check("hidden_bias_has_no_influence", "laws", "law", ("mask.bias-then-mask",), forward.biased_triangles),
    Check("visible_nan_comes_through", "laws", "law", ("mask.visible-nan",), forward.plain_and_lengths),
    Check("hidden_nan_stays_out", "laws", "law", ("mask.hidden-nan",), forward.hiding),
    Check("output_lies_between_the_visible_values", "relations", "law", ("softmax.weights",), MASKED),
    Check("output_is_linear_in_the_values", "relations", "law", ("attention.output",), PLAIN),
    Check("absent_keys_never_show", "lengths", "law", ("key-lengths.absent",), lengths.absent),
    Check("lengths_equal_shorter_keys", "lengths", "law", ("key-lengths.visible",), lengths.ragged),
    Check("decoding_equals_prefill", "lengths", "law", CACHE, lengths.decodes),
    Check("impossible_lengths_are_refused", "lengths", "contract", ("key-lengths.range",), lengths.refusable),
    Check("a_window_equals_its_mask", "windows", "law", ("window.bounds", "window.causal"), ("windows",)),
    Check("a_window_beyond_all_keys_is_none", "windows", "law", ("window.unbounded",), windows.wide),
    Check("impossible_windows_are_refused", "windows", "contract", ("window.range",), windows.refusable),
    Check("two_keys_give_their_closed_form", "softcap", "law", ("softcap.scores",), softcap.few_keys),
    Check("a_cap_far_above_the_scores_is_none", "softcap", "law", ("softcap.none",), softcap.far),
    Check("impossible_caps_are_refused", "softcap", "contract", ("softcap.range",), softcap.refusable),
    Check("hidden_keys_get_no_gradient", "gradients", "law", ("backward.hidden",), backward.hiding),
    Check("order_of_keys_does_not_matter", "relations", "law", ("attention.output",), ANY),
    Check("order_of_heads_does_not_matter", "relations", "law", ("grouped.head-map",), ("masks", "grouped")),
    Check("batch_elements_are_apart", "relations", "law", ("notation.layout",), ("core", "masks", "grouped")),
    Check("rows_are_apart", "relations", "law", ("attention.output",), ANY),
    Check("groups_equal_expanded_heads", "relations", "law", ("grouped.head-map",), ("grouped",)),
    Check("bool_mask_equals_its_additive_form", "relations", "law", ("mask.bool", "mask.additive"), ("masks",)),
    Check("hidden_tail_equals_shorter_keys", "relations", "law", ("mask.key-padding",), ("masks",)),
    Check("twice_the_keys_give_the_same", "relations", "law", ("softmax.weights",), MASKED),
    Check("halves_merge_by_their_lse", "relations", "law", MERGES, MASKED, return_lse=True),
    Check("parts_merge_in_any_order", "relations", "law", MERGES, lengths.merges, return_lse=True),
    Check("options_combine", "regimes", "regime", ("accuracy.output-within-budget",), regimes.crossed),
    Check("output_stays_within_budget", "regimes", "regime", BUDGETS, regimes.regimes),
    Check("lse_stays_within_budget", "regimes", "regime", LSE_RULES, regimes.regimes, return_lse=True),
    Check("gradients_stay_within_budget", "gradients", "regime", GRADIENTS, backward.passes),
    Check("gradients_of_a_sum_stay_within_budget", "gradients", "regime", SUMS, backward.sums),
    Check("options_combine_in_the_backward", "gradients", "regime", GRADIENTS, backward.crossed),
    Check("gradients_belong_to_their_call", "gradients", "contract", OWN, backward.plain),
    Check("each_input_may_ask_alone", "gradients", "contract", ("backward.each-alone",), backward.plain),
    Check("gradients_grow_with_what_flows_back", "gradients", "regime", GRADIENTS, backward.plain),
    Check("absent_keys_reach_no_gradient", "gradients", "law", ("key-lengths.absent",), backward.absent),
    Check("layout_of_what_flows_back_does_not_matter", "gradients", "contract", FLOWS, backward.plain),
    Check("gradients_repeat_bit_for_bit", "gradients", "contract", REPEATS, backward.plain),
    Check("slopes_of_each_batch_element_are_its_own", "alibi", "law", ("alibi.bias",), alibi.plain),
    Check("alibi_equals_its_mask", "alibi", "law", ("alibi.bias", "alibi.form", "alibi.offset"), alibi.plain),
    Check("slopes_of_0_are_none", "alibi", "law", ("alibi.bias",), alibi.plain),
    Check("slopes_of_another_shape_are_refused", "alibi", "contract", ("alibi.shape",), alibi.refusable),
    Check("sinks_of_minus_infinity_are_none", "sinks", "law", ("sinks.any-size",), sinks.plain),
    Check("sinks_take_their_closed_form", "sinks", "law", ("sinks.weight",), sinks.plain),
    Check("sinks_of_another_shape_are_refused", "sinks", "contract", ("sinks.shape",), sinks.refusable),
    Check("kept_weights_are_scaled_up_and_others_0", "dropout", "law", KEPT, dropout.calls),
    Check("output_is_that_of_the_kept_weights", "dropout", "law", KEPT[::-1], dropout.calls),
    Check("lse_knows_nothing_of_dropout", "dropout", "law", ("dropout.lse",), dropout.plain, return_lse=True),
    Check("weights_are_dropped_at_the_rate_asked_for", "dropout", "law", DRAWN_APART, dropout.rates),
    Check("a_seed_names_its_mask", "dropout", "law", ("dropout.seed",), dropout.plain),
    Check("mean_over_seeds_is_the_plain_output", "dropout", "law", ("dropout.unbiased",), dropout.means),
    Check("p_0_is_no_dropout", "dropout", "law", ("dropout.zero",), dropout.plain),
    Check("p_1_drops_every_weight", "dropout", "law", ("dropout.one",), dropout.plain),
    Check("p_1_passes_no_gradient", "dropout", "law", ("dropout.one",), dropout.backwards),
    Check("gradients_pass_the_mask_of_the_forward", "dropout", "law", MASK_OF_FORWARD, dropout.backwards),
    Check("p_that_is_no_probability_is_refused", "dropout", "contract", ("dropout.range",), dropout.refusable),
    Check("no_wrong_scale_hides_in_the_noise", "regimes", "regime", TEMPERATURE, regimes.trends),
    Check("lse_has_no_bias", "regimes", "regime", ("accuracy.lse-mean",), regimes.trends, return_lse=True),
)
BY_NAME = {check.name: check for check in CHECKS}


@cache
def problem_set(source: Callable[[str], Iterator[Problem]]) -> tuple[Problem, ...]:
    """Return all problems of a set."""
    return tuple(source("full"))


WORDS = {  # field of a problem: its word in a case
    "grad": "grad",
    "key_lengths": "lengths",
    "sinks": "sinks",
    "alibi": "alibi",
    "dropout": "dropout",
    "window": "window",
    "softcap": "softcap",
}


def words_of(problem: Problem) -> frozenset[str]:
    """Return which of `WORDS` a problem has."""
    return frozenset(word for field, word in WORDS.items() if getattr(problem, field))


def drawn_misfit(domains: tuple[str, ...], problem: Problem) -> str | None:
    """Say why a check on problems drawn from some domains has nothing to say on a problem, None where it has."""
    words = sorted(words_of(problem) - {word for domain in domains for word in words_of(domain_named(domain))})
    return f"the check does not know what a call with {' and '.join(words)} gives" if words else None


@cache
def cases(level: str, seed: int = 0) -> tuple[Case, ...]:
    """Return every case of a level, in the order of a run; seed: of what is drawn. Raises InputError for an unknown
    level."""
    if level not in LEVELS:
        raise InputError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    return tuple(case for check in CHECKS for case in check.cases(level, seed))


def case_named(case_id: str) -> Case:
    """Return the case of an id, also of one that no level lists. Raises InputError that says what is wrong with it."""
    name, slash, rest = case_id.partition("/")
    check = BY_NAME.get(name)
    if check is None or not slash:
        right = f"it must begin with a check and `/`; see `attnspec list cases`{did_you_mean(name, BY_NAME)}"
        raise InputError(f"unknown case {case_id[:80]!r}: {right}")
    try:
        if check.source is None:
            golden = golden_case(rest)
            if (golden.problem.grad is not None) != check.gradients:
                raise InputError(f"the case {'has' if golden.problem.grad else 'has no'} gradients")
            return check.case(golden.name, golden.problem, golden.rules)
        if drawn := DRAWN.fullmatch(rest):
            return check.drawn(Draw(drawn[1], int(drawn[2]), int(drawn[3])))
        problem = Problem.parse(rest)
        if misfit := check.misfit(problem) if callable(check.source) else drawn_misfit(check.source, problem):
            raise InputError(misfit)
    except InputError as error:
        raise InputError(f"unknown case {case_id[:200]!r}: {error}") from None
    return check.case(str(problem), problem)
