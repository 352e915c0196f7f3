"""The golden cases: the calls whose true results are stored in `golden/vectors`.

A group is a note, which says what its cases show, and a name and a problem string a case. Names are permanent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from attnspec.golden.cited import rules_of
from attnspec.golden.modified import MODIFIED
from attnspec.golden.sloped import SLOPED
from attnspec.spec.errors import InputError, did_you_mean
from attnspec.spec.problem import MASK_KINDS, Problem


@dataclass(frozen=True)
class GoldenCase:
    """A call whose true result is stored. name: a slug, permanent; rules: ids of the rules that it puts to the test,
    sorted; note: what it shows, for a reader."""

    name: str
    problem: Problem
    rules: tuple[str, ...]
    note: str


GROUPS: dict[str, dict[str, str]] = {
    "No options: lengths equal, fewer and more queries than keys, one query, one key.": {
        "plain-one-by-one-float32": "q=1/k=1/d=1/seed=1",
        "plain-one-key-float16": "b=2/hq=2/q=7/k=1/d=8/dtype=fp16/seed=2",
        "plain-one-key-float64": "q=3/k=1/d=3/dtype=float64/seed=3",
        "plain-one-query-bfloat16": "b=2/hq=2/q=1/k=130/d=64/dtype=bf16/seed=4",
        "plain-one-query-float32": "b=2/hq=3/q=1/k=17/d=24/seed=5",
        "plain-square-float32": "q=64/k=64/d=64/seed=6",
        "plain-square-bfloat16": "q=130/k=130/d=64/dtype=bf16/seed=7",
        "plain-square-large-float32": "hq=2/q=130/k=130/d=128/seed=15",
        "plain-square-large-float16": "q=130/k=129/d=128/dtype=fp16/seed=16",
        "plain-square-float64": "q=33/k=33/d=24/dtype=float64/seed=8",
        "plain-wide-float32": "q=17/k=130/d=24/seed=9",
        "plain-wide-float64": "hq=2/q=5/k=66/d=64/dtype=float64/seed=10",
        "plain-tall-float16": "q=130/k=17/d=65/dtype=fp16/seed=11",
        "plain-tall-bfloat16": "hq=2/q=65/k=3/d=8/dtype=bf16/seed=12",
        "plain-batch-and-heads-float32": "b=3/hq=4/q=5/k=7/d=8/seed=13",
        "plain-batch-and-heads-bfloat16": "b=4/hq=3/q=7/k=5/d=24/dtype=bf16/seed=14",
    },
    "Head dims that are no power of two, no multiple of 8, and 1.": {
        "head-dim-1-float32": "hq=2/q=9/k=11/d=1/seed=20",
        "head-dim-1-bfloat16": "hq=2/q=9/k=11/d=1/dtype=bf16/seed=21",
        "head-dim-3-float64": "b=2/hq=2/q=5/k=9/d=3/dtype=float64/seed=22",
        "head-dim-3-float16": "b=2/hq=2/q=17/k=18/d=3/dtype=fp16/seed=23",
        "head-dim-8-bfloat16": "b=2/hq=2/q=17/k=33/d=8/dtype=bf16/seed=24",
        "head-dim-24-float16": "b=2/hq=2/q=33/k=17/d=24/dtype=fp16/seed=25",
        "head-dim-65-float32": "q=33/k=31/d=65/seed=26",
        "head-dim-65-bfloat16": "q=16/k=66/d=65/dtype=bf16/seed=27",
        "head-dim-128-float16": "q=16/k=48/d=128/dtype=fp16/seed=28",
        "head-dim-128-float32": "q=48/k=65/d=128/seed=29",
        "head-dim-128-float64": "q=7/k=40/d=128/dtype=float64/seed=30",
    },
    "Values of another dimension than the keys.": {
        "value-dim-smaller-float32": "hq=2/q=17/k=33/d=64/dv=8/seed=40",
        "value-dim-larger-float32": "hq=2/q=17/k=33/d=8/dv=64/seed=41",
        "value-dim-larger-bfloat16": "q=9/k=20/d=3/dv=128/dtype=bf16/seed=42",
        "value-dim-smaller-float16": "q=20/k=9/d=65/dv=24/dtype=fp16/seed=43",
        "value-dim-1-float64": "q=9/k=20/d=24/dv=1/dtype=float64/seed=44",
        "value-dim-larger-causal-masked-float32": "hq=2/q=17/k=20/d=24/dv=65/causal/mask=bool.hqk.random/seed=45",
    },
    "One key and value batch serves every query batch.": {
        "kv-broadcast-float32": "b=3/bkv=1/hq=2/q=5/k=9/d=8/seed=50",
        "kv-broadcast-bfloat16": "b=2/bkv=1/hq=2/q=9/k=33/d=64/dtype=bf16/seed=51",
        "kv-broadcast-padding-float16": "b=3/bkv=1/hq=2/q=5/k=9/d=8/dtype=fp16/mask=bool.b11k.padding/seed=52",
        "kv-broadcast-grouped-causal-float32": "b=3/bkv=1/hq=4/hkv=2/q=7/k=9/d=24/causal/seed=53",
        "kv-broadcast-value-dim-float64": "b=2/bkv=1/q=5/k=6/d=3/dv=8/dtype=float64/seed=54",
    },
    "Causal, upper left: query i sees keys up to i, whatever the lengths.": {
        "causal-upper-left-square-float32": "hq=2/q=33/k=33/d=24/causal/seed=60",
        "causal-upper-left-square-bfloat16": "q=66/k=66/d=64/causal/dtype=bf16/seed=61",
        "causal-upper-left-square-large-float16": "q=129/k=129/d=65/causal/dtype=fp16/seed=67",
        "causal-upper-left-wide-float16": "hq=2/q=5/k=33/d=64/causal/dtype=fp16/seed=62",
        "causal-upper-left-tall-float64": "q=33/k=5/d=8/causal/dtype=float64/seed=63",
        "causal-upper-left-tall-bfloat16": "q=70/k=33/d=24/causal/dtype=bf16/seed=64",
        "causal-upper-left-one-query-float32": "b=2/q=1/k=70/d=8/causal/seed=65",
        "causal-upper-left-spiky-float32": "hq=2/q=17/k=20/d=24/causal/values=spiky/seed=66",
    },
    "Causal, lower right: the last query sees every key; more queries than keys leave empty rows.": {
        "causal-lower-right-square-float32": "hq=2/q=33/k=33/d=24/causal=lower_right/seed=70",
        "causal-lower-right-wide-large-bfloat16": "q=66/k=130/d=64/causal=lower_right/dtype=bf16/seed=77",
        "causal-lower-right-wide-float16": "hq=2/q=5/k=33/d=64/causal=lower_right/dtype=fp16/seed=71",
        "causal-lower-right-wide-float32": "q=33/k=70/d=65/causal=lower_right/seed=72",
        "causal-lower-right-tall-float32": "hq=2/q=33/k=5/d=8/causal=lower_right/seed=73",
        "causal-lower-right-tall-bfloat16": "q=70/k=33/d=24/causal=lower_right/dtype=bf16/seed=74",
        "causal-lower-right-one-query-float64": "b=2/q=1/k=70/d=8/causal=lower_right/dtype=float64/seed=75",
        "causal-lower-right-one-key-float32": "q=4/k=1/d=8/causal=lower_right/seed=76",
    },
    "Boolean masks: padding, queries and heads that see nothing, a hidden first half, nothing hidden.": {
        "mask-bool-padding-float32": "b=3/hq=2/q=9/k=33/d=24/mask=bool.b11k.padding/seed=80",
        "mask-bool-padding-bfloat16": "b=3/hq=2/q=9/k=70/d=64/mask=bool.b11k.padding/dtype=bf16/seed=81",
        "mask-bool-empty-rows-float32": "b=2/hq=2/q=17/k=20/d=8/mask=bool.bhqk.empty_rows/seed=82",
        "mask-bool-empty-rows-bfloat16": "b=2/hq=2/q=17/k=20/d=8/mask=bool.qk.empty_rows/dtype=bf16/seed=83",
        "mask-bool-empty-rows-float64": "q=9/k=7/d=8/mask=bool.q1.empty_rows/dtype=float64/seed=84",
        "mask-bool-empty-head-float16": "b=2/hq=3/q=9/k=7/d=8/mask=bool.hqk.empty_head/dtype=fp16/seed=85",
        "mask-bool-leading-float32": "hq=2/q=9/k=130/d=24/mask=bool.k.leading/seed=86",
        "mask-bool-leading-float16": "q=17/k=66/d=64/mask=bool.qk.leading/dtype=fp16/seed=87",
        "mask-bool-all-visible-float32": "b=2/hq=2/q=5/k=9/d=8/mask=bool.qk.all/seed=88",
        "mask-bool-random-float64": "hq=2/q=33/k=20/d=24/mask=bool.hqk.random/dtype=float64/seed=89",
        "mask-bool-hidden-spikes-float32": "hq=2/q=17/k=33/d=8/mask=bool.hqk.random/values=spiky/scores=8/seed=90",
        "mask-bool-hidden-spikes-bfloat16": "b=2/q=9/k=33/d=24/mask=bool.b11k.padding/values=spiky/dtype=bf16/seed=91",
    },
    "Additive masks: a bias alone, and one with -inf where padding, rows, heads or the first half are hidden.": {
        "mask-float-bias-float32": "b=2/hq=2/q=9/k=33/d=24/mask=float.hqk.bias/seed=100",
        "mask-float-bias-float16": "b=2/hq=2/q=9/k=33/d=64/mask=float.bhqk.bias/dtype=fp16/seed=101",
        "mask-float-bias-float64": "q=9/k=20/d=8/mask=float.qk.bias/dtype=float64/seed=102",
        "mask-float-padding-bfloat16": "b=3/hq=2/q=9/k=33/d=24/mask=float.b11k.padding/dtype=bf16/seed=103",
        "mask-float-empty-rows-float32": "b=2/hq=2/q=17/k=20/d=8/mask=float.bhqk.empty_rows/seed=104",
        "mask-float-empty-head-bfloat16": "b=2/hq=3/q=9/k=7/d=8/mask=float.hqk.empty_head/dtype=bf16/seed=105",
        "mask-float-leading-float16": "q=17/k=66/d=64/mask=float.qk.leading/dtype=fp16/seed=106",
        "mask-float-random-float32": "hq=2/q=33/k=20/d=24/mask=float.hqk.random/values=spiky/seed=107",
    },
    "A finite bias never masks, however low; a row of nothing else is the softmax of its scores.": {
        "mask-finite-low-float32": "hq=2/q=17/k=20/d=8/mask=float.hqk.low/seed=110",
        "mask-finite-low-bfloat16": "q=9/k=33/d=64/mask=float.qk.low/dtype=bf16/seed=111",
        "mask-finite-low-float16": "b=2/q=9/k=20/d=24/mask=float.b1qk.low/dtype=fp16/seed=112",
        "mask-finite-low-float64": "q=9/k=20/d=8/mask=float.qk.low/dtype=float64/seed=113",
        "mask-finite-sentinel-float32": "q=9/k=20/d=8/mask=float.qk.sentinel/seed=114",
        "mask-finite-sentinel-float16": "q=9/k=20/d=8/mask=float.qk.sentinel/dtype=fp16/seed=115",
        "mask-finite-low-causal-float32": "q=17/k=20/d=8/mask=float.qk.low/causal/seed=116",
    },
    "A mask and the causal triangle apply together.": {
        "causal-upper-left-bool-random-float32": "hq=2/q=17/k=20/d=24/causal/mask=bool.hqk.random/seed=120",
        "causal-upper-left-bool-padding-bfloat16": (
            "b=3/q=17/k=20/d=64/causal/mask=bool.b11k.padding/dtype=bf16/seed=121"
        ),
        "causal-upper-left-bool-leading-float32": "q=33/k=20/d=8/causal/mask=bool.k.leading/seed=122",
        "causal-upper-left-float-bias-float16": "hq=2/q=20/k=17/d=24/causal/mask=float.hqk.bias/dtype=fp16/seed=123",
        "causal-upper-left-float-random-float64": "q=17/k=20/d=8/causal/mask=float.qk.random/dtype=float64/seed=124",
        "causal-lower-right-bool-random-bfloat16": (
            "q=17/k=33/d=24/causal=lower_right/mask=bool.qk.random/dtype=bf16/seed=125"
        ),
        "causal-lower-right-bool-padding-float32": (
            "b=3/q=17/k=33/d=8/causal=lower_right/mask=bool.b11k.padding/seed=126"
        ),
        "causal-lower-right-bool-empty-rows-float16": (
            "q=20/k=17/d=8/causal=lower_right/mask=bool.qk.empty_rows/dtype=fp16/seed=127"
        ),
        "causal-lower-right-float-bias-float32": "hq=2/q=5/k=33/d=24/causal=lower_right/mask=float.hqk.bias/seed=128",
    },
    "Fewer key heads than query heads, in contiguous groups.": {
        "grouped-ratio-2-float32": "b=2/hq=4/hkv=2/q=9/k=17/d=24/seed=130",
        "grouped-ratio-3-causal-float32": "b=2/hq=6/hkv=2/q=9/k=17/d=8/causal/seed=131",
        "grouped-ratio-2-bfloat16": "hq=6/hkv=3/q=9/k=17/d=64/dtype=bf16/seed=132",
        "grouped-ratio-3-float16": "hq=6/hkv=2/q=9/k=17/d=65/dtype=fp16/seed=133",
        "grouped-ratio-8-float32": "b=2/hq=16/hkv=2/q=3/k=9/d=8/seed=134",
        "grouped-multi-query-8-bfloat16": "hq=8/hkv=1/q=5/k=33/d=24/dtype=bf16/seed=135",
        "grouped-multi-query-2-float64": "hq=2/hkv=1/q=5/k=9/d=8/dtype=float64/seed=136",
        "grouped-multi-query-3-one-query-float16": "b=2/hq=3/hkv=1/q=1/k=70/d=64/dtype=fp16/seed=137",
        "grouped-bool-mask-float32": "b=2/hq=4/hkv=2/q=9/k=17/d=8/mask=bool.bh1k.random/seed=138",
        "grouped-float-mask-bfloat16": "b=2/hq=6/hkv=2/q=9/k=17/d=24/mask=float.hqk.random/dtype=bf16/seed=139",
        "grouped-empty-head-float32": "b=2/hq=4/hkv=2/q=5/k=9/d=8/mask=bool.hqk.empty_head/seed=140",
        "grouped-value-dim-causal-float16": "hq=4/hkv=2/q=17/k=9/d=24/dv=8/causal=lower_right/dtype=fp16/seed=141",
    },
    "Any finite scale is legal: negative, zero, large, tiny; a bias is added after it.": {
        "scale-negative-float32": "hq=2/q=9/k=17/d=24/scale=-0.7/seed=150",
        "scale-negative-causal-bfloat16": "q=17/k=33/d=8/scale=-0.7/causal/dtype=bf16/seed=151",
        "scale-negative-bool-mask-float32": "hq=2/q=9/k=17/d=8/scale=-0.7/mask=bool.hqk.random/seed=152",
        "scale-negative-float-mask-float16": "hq=2/q=9/k=17/d=8/scale=-0.7/mask=float.hqk.random/dtype=fp16/seed=153",
        "scale-zero-float32": "hq=2/q=9/k=17/d=24/scale=0/seed=154",
        "scale-zero-causal-float64": "q=17/k=17/d=8/scale=0/causal/dtype=float64/seed=155",
        "scale-zero-float-mask-bfloat16": "q=9/k=17/d=8/scale=0/mask=float.qk.random/dtype=bf16/seed=156",
        "scale-three-float32": "q=9/k=33/d=24/scale=3/seed=157",
        "scale-three-causal-lower-right-float16": "q=9/k=33/d=8/scale=3/causal=lower_right/dtype=fp16/seed=158",
        "scale-three-bool-mask-bfloat16": "q=9/k=33/d=8/scale=3/mask=bool.qk.empty_rows/dtype=bf16/seed=159",
        "scale-tiny-float32": "q=9/k=33/d=24/scale=1e-30/seed=160",
        "scale-tiny-float-mask-float64": "q=9/k=17/d=8/scale=1e-30/mask=float.qk.bias/dtype=float64/seed=161",
        "scale-tiny-large-scores-float16": "q=9/k=17/d=128/scale=0.0001/scores=4096/dtype=fp16/seed=162",
    },
    "Sizes of the scores: nearly equal, usual, and nearly one-hot weights.": {
        "scores-small-float32": "q=17/k=70/d=24/scores=0.125/seed=170",
        "scores-small-bfloat16": "q=17/k=70/d=64/scores=0.125/dtype=bf16/seed=171",
        "scores-large-float32": "q=17/k=70/d=64/scores=8/seed=172",
        "scores-large-bfloat16": "q=17/k=70/d=64/scores=8/dtype=bf16/seed=173",
        "scores-large-float16": "q=17/k=70/d=65/scores=8/dtype=fp16/seed=174",
        "scores-large-float64": "q=9/k=33/d=24/scores=8/dtype=float64/seed=175",
        "scores-large-causal-bfloat16": "q=33/k=66/d=24/scores=8/causal=lower_right/dtype=bf16/seed=176",
        "scores-beyond-exp-range-float32": "q=9/k=33/d=24/scores=200/seed=177",
    },
    "Long rows: many keys, few queries.": {
        "long-rows-float32": "q=3/k=600/d=64/seed=180",
        "long-rows-bfloat16": "hq=2/q=3/k=600/d=24/dtype=bf16/seed=181",
        "long-rows-float16": "q=5/k=513/d=64/dtype=fp16/seed=182",
        "long-rows-large-scores-bfloat16": "q=3/k=512/d=128/scores=8/dtype=bf16/seed=183",
        "long-rows-uniform-weights-float16": "q=2/k=600/d=8/scale=0/values=uniform/dtype=fp16/seed=184",
        "long-rows-sign-sorted-bfloat16": "q=4/k=600/d=8/scores=0.125/values=sign_sorted/dtype=bf16/seed=185",
        "long-rows-padding-float32": "b=2/q=2/k=600/d=8/mask=bool.b11k.padding/seed=186",
        "long-rows-float64": "q=2/k=520/d=8/dtype=float64/seed=187",
    },
    "Values: one-signed, with outliers, the same for every key, and of sums that cancel late.": {
        "values-uniform-float32": "q=9/k=130/d=8/values=uniform/seed=190",
        "values-uniform-bfloat16": "q=9/k=130/d=24/values=uniform/dtype=bf16/seed=191",
        "values-spiky-float16": "q=9/k=130/d=8/values=spiky/dtype=fp16/seed=192",
        "values-spiky-float64": "q=9/k=33/d=8/values=spiky/dtype=float64/seed=193",
        "values-constant-float32": "hq=2/q=9/k=70/d=8/values=constant/seed=194",
        "values-constant-bfloat16": "hq=2/q=9/k=70/d=24/values=constant/dtype=bf16/seed=195",
        "values-sign-sorted-float32": "q=9/k=130/d=8/values=sign_sorted/seed=196",
        "values-sign-sorted-float16": "q=9/k=130/d=64/values=sign_sorted/dtype=fp16/seed=197",
    },
    "Values near the ends of float16's range.": {
        "values-huge-float16": "q=9/k=70/d=8/values=huge/dtype=fp16/seed=210",
        "values-huge-bfloat16": "q=9/k=33/d=8/values=huge/scores=8/dtype=bf16/seed=211",
        "values-tiny-float16": "q=9/k=33/d=8/values=tiny/dtype=fp16/seed=212",
    },
    "The lowest number in every slot of a row: the row sees every key.": {
        "mask-lowest-rows-float32": "q=5/k=17/d=8/mask=float.qk.low_rows/scores=0/seed=215",
        "mask-lowest-rows-bfloat16": "q=5/k=17/d=8/mask=float.qk.low_rows/scores=0/dtype=bf16/seed=216",
    },
    "Scores far from 0, all the same, and growing or falling along the keys.": {
        "scores-far-below-zero-float32": "q=9/k=70/d=24/shift=-200/seed=220",
        "scores-far-above-zero-float32": "q=9/k=70/d=24/shift=200/seed=221",
        "scores-far-below-zero-causal-bfloat16": "q=9/k=33/d=24/shift=-128/causal/dtype=bf16/seed=222",
        "scores-below-sentinels-masked-float32": "q=9/k=33/d=8/shift=-70000/mask=bool.qk.random/seed=223",
        "scores-growing-float32": "q=5/k=130/d=24/keys=growing/seed=224",
        "scores-growing-float16": "q=5/k=130/d=64/keys=growing/dtype=fp16/seed=225",
        "scores-falling-bfloat16": "q=5/k=130/d=64/keys=falling/dtype=bf16/seed=226",
        "keys-equal-float32": "hq=2/q=9/k=70/d=8/keys=equal/seed=227",
        "keys-equal-float64": "q=5/k=33/d=3/keys=equal/dtype=float64/seed=228",
    },
    "Key lengths: each batch element has its own number of keys; the causal corner is at each own last key, or at the "
    "upper left.": {
        "lengths-ragged-float32": "b=3/hq=2/q=5/k=33/d=24/lengths=ragged/seed=300",
        "lengths-ragged-bfloat16": "b=4/hq=2/q=3/k=70/d=64/lengths=ragged/dtype=bf16/seed=301",
        "lengths-ragged-float16": "b=3/q=7/k=65/d=40/lengths=ragged/dtype=fp16/seed=302",
        "lengths-ragged-float64": "b=3/hq=2/q=5/k=17/d=8/lengths=ragged/dtype=float64/seed=303",
        "lengths-one-query-grouped-bfloat16": "b=4/hq=8/hkv=2/q=1/k=130/d=64/lengths=ragged/dtype=bf16/seed=304",
        "lengths-one-query-multi-query-float32": "b=3/hq=4/hkv=1/q=1/k=66/d=24/lengths=ragged/seed=305",
        "lengths-zero-float32": "b=3/hq=2/q=5/k=17/d=8/lengths=zero/seed=306",
        "lengths-zero-lower-right-float16": "b=3/q=5/k=17/d=8/causal=lower_right/lengths=zero/dtype=fp16/seed=307",
        "lengths-causal-lower-right-float32": "b=4/hq=2/q=9/k=33/d=24/causal=lower_right/lengths=ragged/seed=308",
        "lengths-causal-lower-right-tall-float32": "b=4/q=33/k=17/d=8/causal=lower_right/lengths=ragged/seed=309",
        "lengths-causal-upper-left-float32": "b=4/hq=2/q=33/k=17/d=24/causal/lengths=ragged/seed=310",
        "lengths-bool-mask-float32": "b=3/hq=2/q=5/k=33/d=8/mask=bool.bhqk.random/lengths=ragged/seed=311",
        "lengths-bias-bfloat16": "b=3/hq=2/q=5/k=33/d=8/mask=float.11qk.random/lengths=ragged/dtype=bf16/seed=312",
        "lengths-one-cache-for-all-float32": "b=3/bkv=1/hq=2/q=5/k=33/d=8/lengths=ragged/seed=313",
        "lengths-full-float32": "b=2/hq=2/q=5/k=33/d=8/lengths=full/seed=314",
    },
    "Gradients of query, key and value: ragged lengths, both corners, groups, a value_dim of its own.": {
        "gradients-one-by-one-float32": "q=1/k=1/d=1/grad/seed=320",
        "gradients-wide-float32": "hq=2/q=5/k=33/d=24/grad/seed=321",
        "gradients-tall-bfloat16": "hq=2/q=33/k=7/d=24/dtype=bf16/grad/seed=322",
        "gradients-square-float16": "q=33/k=33/d=40/dtype=fp16/grad/seed=323",
        "gradients-square-float64": "q=17/k=17/d=8/dtype=float64/grad/seed=324",
        "gradients-causal-float32": "hq=2/q=17/k=33/d=24/causal/grad/seed=325",
        "gradients-causal-lower-right-float32": "hq=2/q=17/k=33/d=24/causal=lower_right/grad/seed=326",
        "gradients-causal-lower-right-tall-bfloat16": "q=33/k=17/d=24/causal=lower_right/dtype=bf16/grad/seed=327",
        "gradients-grouped-float32": "b=2/hq=6/hkv=2/q=9/k=17/d=24/grad/seed=328",
        "gradients-multi-query-bfloat16": "b=2/hq=4/hkv=1/q=9/k=17/d=24/dtype=bf16/grad/seed=329",
        "gradients-value-dim-float32": "q=9/k=17/d=24/dv=40/grad/seed=330",
        "gradients-kv-broadcast-float32": "b=3/bkv=1/hq=2/q=9/k=17/d=8/grad/seed=331",
        "gradients-scale-negative-float32": "q=9/k=17/d=8/scale=-0.7/grad/seed=332",
        "gradients-scale-zero-float32": "q=9/k=17/d=8/scale=0/grad/seed=333",
        "gradients-long-rows-float32": "q=3/k=260/d=24/grad/seed=334",
        "gradients-one-hot-float32": "q=9/k=33/d=24/scores=16/grad/seed=335",
    },
    "Gradients with masks: rows that see nothing, biases that broadcast, hidden keys.": {
        "gradients-bool-mask-float32": "b=2/hq=2/q=9/k=17/d=8/mask=bool.bhqk.random/grad/seed=340",
        "gradients-bool-empty-rows-float32": "b=2/hq=2/q=9/k=17/d=8/mask=bool.bhqk.empty_rows/grad/seed=341",
        "gradients-padding-causal-bfloat16": "b=2/q=17/k=17/d=8/mask=bool.b11k.padding/causal/dtype=bf16/grad/seed=342",
        "gradients-bias-float32": "b=2/hq=2/q=9/k=17/d=8/mask=float.bhqk.random/grad/seed=343",
        "gradients-bias-of-keys-float32": "b=2/hq=2/q=9/k=17/d=8/mask=float.b11k.bias/grad/seed=344",
        "gradients-bias-of-heads-float32": "b=2/hq=3/q=5/k=7/d=8/mask=float.1hqk.random/grad/seed=345",
        "gradients-bias-of-rank-1-float16": "b=2/hq=2/q=5/k=17/d=8/mask=float.k.bias/dtype=fp16/grad/seed=346",
        "gradients-bias-empty-rows-float64": "b=2/q=5/k=9/d=3/mask=float.bhqk.empty_rows/dtype=float64/grad/seed=347",
    },
    "Gradients through the lse too, and an lse far from 0.": {
        "gradients-lse-float32": "hq=2/q=9/k=33/d=24/grad=lse/seed=350",
        "gradients-lse-bfloat16": "hq=2/q=9/k=33/d=24/dtype=bf16/grad=lse/seed=351",
        "gradients-lse-empty-rows-float32": "b=2/q=9/k=17/d=8/mask=bool.bhqk.empty_rows/grad=lse/seed=352",
        "gradients-lse-grouped-causal-float32": "b=2/hq=4/hkv=2/q=17/k=17/d=8/causal/grad=lse/seed=353",
        "gradients-lse-bias-float64": "q=5/k=9/d=3/mask=float.qk.random/dtype=float64/grad=lse/seed=354",
        "gradients-lse-far-below-zero-float32": "q=9/k=33/d=24/shift=-200/grad=lse/seed=355",
        "gradients-lse-far-above-zero-float32": "q=9/k=33/d=24/shift=200/causal=lower_right/grad=lse/seed=356",
        "gradients-lse-lengths-float32": "b=3/hq=2/q=5/k=17/d=8/lengths=ragged/grad=lse/seed=357",
    },
    "Sinks: among the scores, far above and far below them, and rows that see a sink alone.": {
        "sinks-float32": "b=2/hq=3/q=9/k=17/d=24/sinks/seed=400",
        "sinks-bfloat16": "b=2/hq=4/hkv=2/q=17/k=33/d=64/sinks/dtype=bf16/seed=401",
        "sinks-float64": "hq=2/q=5/k=9/d=3/sinks/dtype=float64/seed=402",
        "sinks-high-float16": "hq=2/q=9/k=33/d=24/sinks=high/dtype=fp16/seed=403",
        "sinks-high-float32": "hq=2/q=9/k=33/d=24/sinks=high/seed=404",
        "sinks-low-float32": "hq=2/q=9/k=33/d=24/sinks=low/seed=405",
        "sinks-causal-grouped-float32": "b=2/hq=4/hkv=2/q=17/k=17/d=8/sinks/causal/seed=406",
        "sinks-lower-right-tall-float32": "hq=2/q=9/k=5/d=8/sinks/causal=lower_right/seed=407",
        "sinks-empty-rows-float32": "b=2/hq=2/q=9/k=17/d=8/sinks/mask=bool.bhqk.empty_rows/seed=408",
        "sinks-bias-bfloat16": "b=2/hq=2/q=9/k=17/d=8/sinks/mask=float.1hqk.random/dtype=bf16/seed=409",
        "sinks-lengths-float32": "b=3/hq=2/q=5/k=17/d=8/sinks/lengths=zero/seed=410",
        "sinks-no-keys-float32": "b=2/hq=2/q=3/k=0/d=8/sinks/seed=411",
        "gradients-sinks-float32": "b=2/hq=3/q=9/k=17/d=8/sinks/grad=lse/seed=412",
        "gradients-sinks-grouped-bfloat16": "b=2/hq=4/hkv=2/q=17/k=17/d=24/sinks/causal/dtype=bf16/grad/seed=413",
        "gradients-sinks-bias-float32": "b=2/hq=2/q=9/k=17/d=8/sinks/mask=float.1hqk.random/grad=lse/seed=414",
        "gradients-sinks-empty-rows-float64": "q=5/k=9/d=3/sinks/mask=bool.qk.empty_rows/dtype=fp64/grad=lse/seed=415",
    },
    "No keys: output 0 and lse -inf. No queries: empty results.": {
        "zero-keys-float32": "b=2/hq=2/q=5/k=0/d=8/seed=200",
        "zero-keys-bool-mask-bfloat16": "b=2/hq=2/q=5/k=0/d=8/mask=bool.b11k.all/dtype=bf16/seed=201",
        "zero-keys-causal-float16": "q=3/k=0/d=24/dv=8/causal=lower_right/dtype=fp16/seed=202",
        "zero-queries-float32": "b=2/hq=2/q=0/k=5/d=8/seed=203",
        "zero-queries-causal-float64": "q=0/k=5/d=8/causal/dtype=float64/seed=204",
    },
}
SHAPES_NOTE = "Every shape that broadcasts to (batch, heads, queries, keys), ranks 1 to 4: 1 where a letter is missing."
SHAPES = tuple(
    "".join(letters) for rank in (1, 2, 3, 4) for letters in product(*((place, "1") for place in "bhqk"[4 - rank :]))
)
DTYPES = ("float32", "bfloat16", "float16", "float64")


def mask_shape_problems() -> dict[str, str]:
    """Return a name and a problem string for each kind and shape of mask, the dtypes in turn; all sizes differ."""
    problems = {}
    for turn, (shape, kind) in enumerate(product(SHAPES, MASK_KINDS)):
        dtype = DTYPES[(turn + turn // 2) % 4]  # so that each kind meets each dtype
        problem = f"b=2/hq=3/q=4/k=5/d=8/dtype={dtype}/mask={kind}.{shape}.random/seed={9400 + turn}"
        problems[f"mask-{kind}-shape-{shape}-{dtype}"] = problem
    return problems


def _read(groups: dict[str, dict[str, str]]) -> Iterator[GoldenCase]:
    for note, problems in groups.items():
        for name, text in problems.items():
            problem = Problem.parse(text)
            yield GoldenCase(name, problem, rules_of(problem), note)


CASES = tuple(_read(GROUPS | MODIFIED | SLOPED | {SHAPES_NOTE: mask_shape_problems()}))


def golden_case(name: str) -> GoldenCase:
    """Return the golden case called `name`. Raises InputError for a name that the table does not have."""
    for case in CASES:
        if case.name == name:
            return case
    meant = did_you_mean(name, (case.name for case in CASES))
    raise InputError(f"unknown golden case {name!r}: see `attnspec list cases`{meant}")
