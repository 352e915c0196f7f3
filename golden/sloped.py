"""The golden cases with ALiBi, some with gradients of its slopes: groups as in `golden.cases`."""

from __future__ import annotations

SLOPED: dict[str, dict[str, str]] = {
    "ALiBi: both forms at both corners, beside masks, groups, windows, sinks and key lengths.": {
        "alibi-float32": "b=2/hq=4/q=9/k=17/d=24/alibi/seed=430",
        "alibi-bfloat16": "hq=3/q=17/k=33/d=64/alibi/dtype=bf16/seed=431",
        "alibi-float64": "hq=2/q=5/k=9/d=3/alibi/dtype=float64/seed=432",
        "alibi-signed-float32": "hq=2/q=9/k=17/d=24/alibi=signed/seed=433",
        "alibi-lower-right-float32": "hq=2/q=5/k=33/d=8/alibi=symmetric.lower_right/seed=434",
        "alibi-lower-right-tall-float16": "hq=2/q=17/k=5/d=8/alibi=symmetric.lower_right/dtype=fp16/seed=435",
        "alibi-signed-lower-right-float32": "hq=2/q=17/k=5/d=8/alibi=signed.lower_right/seed=436",
        "alibi-causal-grouped-float32": "b=2/hq=4/hkv=2/q=17/k=17/d=8/alibi/causal/seed=437",
        "alibi-causal-lower-right-float32": "hq=2/q=5/k=17/d=8/alibi/causal=lower_right/seed=438",
        "alibi-empty-rows-float32": "b=2/hq=2/q=9/k=17/d=8/alibi/mask=bool.bhqk.empty_rows/seed=439",
        "alibi-bias-bfloat16": "hq=2/q=9/k=17/d=8/alibi/mask=float.qk.random/dtype=bf16/seed=440",
        "alibi-lengths-float32": "b=3/hq=2/q=5/k=17/d=8/alibi=symmetric.lower_right/lengths=zero/seed=441",
        "alibi-far-bfloat16": "q=4/k=700/d=8/alibi/dtype=bf16/seed=442",
        "gradients-alibi-float32": "hq=3/q=9/k=17/d=8/alibi/grad=lse/seed=443",
        "gradients-alibi-causal-bfloat16": "b=2/hq=4/hkv=2/q=17/k=17/d=24/alibi/causal/dtype=bf16/grad/seed=444",
        "gradients-alibi-masked-float32": "hq=2/q=9/k=17/d=8/alibi/mask=bool.bhqk.empty_rows/grad=lse/seed=445",
    },
    "ALiBi measured from the other corner than causal triangle and window, and slopes of each batch element.": {
        "alibi-upper-left-causal-lower-right-float32": (
            "hq=2/q=5/k=17/d=8/causal=lower_right/alibi=symmetric.upper_left/seed=450"
        ),
        "alibi-upper-left-causal-lower-right-tall-bfloat16": (
            "hq=2/q=17/k=5/d=8/causal=lower_right/alibi=symmetric.upper_left/dtype=bf16/seed=451"
        ),
        "alibi-lower-right-causal-upper-left-tall-float32": (
            "hq=2/q=17/k=5/d=8/causal/alibi=symmetric.lower_right/seed=452"
        ),
        "alibi-lower-right-causal-upper-left-float16": (
            "hq=4/hkv=2/q=5/k=17/d=8/causal/alibi=signed.lower_right/dtype=fp16/seed=453"
        ),
        "alibi-signed-upper-left-causal-lower-right-float32": (
            "hq=2/q=5/k=17/d=8/causal=lower_right/alibi=signed.upper_left/seed=454"
        ),
        "alibi-upper-left-window-lower-right-float32": (
            "hq=2/q=9/k=17/d=8/window=3.2.lower_right/alibi=symmetric.upper_left/seed=455"
        ),
        "alibi-upper-left-lengths-lower-right-float64": (
            "b=3/q=5/k=17/d=3/causal=lower_right/lengths=ragged/alibi=symmetric.upper_left/dtype=float64/seed=456"
        ),
        "alibi-batched-float32": "b=3/hq=4/hkv=2/q=5/k=17/d=8/alibi=symmetric.bh/seed=457",
        "alibi-batched-signed-lower-right-bfloat16": (
            "b=2/hq=2/q=9/k=5/d=8/alibi=signed.lower_right.bh/mask=bool.bhqk.empty_rows/dtype=bf16/seed=458"
        ),
        "gradients-alibi-upper-left-causal-lower-right-float32": (
            "hq=2/q=5/k=17/d=8/causal=lower_right/alibi=symmetric.upper_left/grad=lse/seed=459"
        ),
    },
    "Gradients of slopes: both forms at both corners, summed over the batch or not, beside every other option.": {
        "gradients-slopes-float32": "b=2/hq=3/q=9/k=17/d=8/alibi=symmetric.learned/grad=lse/seed=460",
        "gradients-slopes-signed-float32": "b=2/hq=2/q=9/k=17/d=8/alibi=signed.learned/grad=lse/seed=461",
        "gradients-slopes-batched-float32": "b=3/hq=2/q=5/k=9/d=8/alibi=symmetric.bh.learned/grad/seed=462",
        "gradients-slopes-batched-grouped-float32": (
            "b=2/hq=4/hkv=2/q=5/k=9/d=8/alibi=symmetric.bh.learned/grad=lse/seed=477"
        ),
        "gradients-slopes-many-rows-float32": "hq=2/q=70/k=17/d=8/alibi=symmetric.learned/grad=lse/seed=478",
        "gradients-slopes-batched-signed-lower-right-bfloat16": (
            "b=2/hq=2/q=17/k=9/d=8/alibi=signed.lower_right.bh.learned/dtype=bf16/grad=lse/seed=463"
        ),
        "gradients-slopes-causal-grouped-float16": (
            "b=2/hq=4/hkv=2/q=17/k=17/d=24/alibi=symmetric.learned/causal/dtype=fp16/grad/seed=464"
        ),
        "gradients-slopes-upper-left-causal-lower-right-float32": (
            "hq=2/q=5/k=17/d=8/causal=lower_right/alibi=symmetric.upper_left.learned/grad=lse/seed=465"
        ),
        "gradients-slopes-float64": "b=2/hq=2/q=5/k=9/d=3/alibi=symmetric.learned/dtype=float64/grad=lse/seed=466",
        "gradients-slopes-lengths-float32": (
            "b=3/hq=2/q=5/k=17/d=8/alibi=symmetric.lower_right.learned/lengths=zero/grad=lse/seed=467"
        ),
        "gradients-slopes-empty-rows-float32": (
            "b=2/hq=2/q=9/k=17/d=8/alibi=symmetric.bh.learned/mask=bool.bhqk.empty_rows/grad=lse/seed=468"
        ),
        "gradients-slopes-sinks-float32": "b=2/hq=2/q=9/k=17/d=8/alibi=symmetric.learned/sinks/grad=lse/seed=469",
        "gradients-slopes-lower-right-sinks-float32": (
            "b=2/hq=2/q=9/k=17/d=8/alibi=symmetric.lower_right.learned/sinks/grad=lse/seed=479"
        ),
        "gradients-slopes-lower-right-batched-causal-float32": (
            "b=2/hq=4/hkv=2/q=9/k=17/d=8/causal=lower_right/alibi=symmetric.lower_right.bh.learned/grad/seed=480"
        ),
        "gradients-slopes-lower-right-window-bias-bfloat16": (
            "hq=2/q=17/k=9/d=8/window=4.1.lower_right/mask=float.hqk.random/alibi=symmetric.lower_right.learned"
            "/dtype=bf16/grad/seed=481"
        ),
        "gradients-slopes-softcap-float32": (
            "hq=2/q=9/k=17/d=8/alibi=signed.learned/softcap=2/scores=4/grad=lse/seed=470"
        ),
        "gradients-slopes-one-key-float32": "b=2/hq=2/q=5/k=1/d=8/alibi=symmetric.learned/grad=lse/seed=471",
    },
    "Gradients of a bias beside ALiBi: two terms of the scores, whose sum need not be a number of any dtype.": {
        "gradients-alibi-bias-float32": "b=2/hq=2/q=9/k=17/d=8/alibi/mask=float.bhqk.random/grad=lse/seed=472",
        "gradients-alibi-bias-of-heads-bfloat16": (
            "b=2/hq=3/q=5/k=9/d=8/alibi=signed.lower_right/mask=float.1hqk.random/dtype=bf16/grad/seed=473"
        ),
        "gradients-alibi-bias-of-keys-float64": (
            "b=2/q=5/k=9/d=3/alibi=symmetric.bh/mask=float.b11k.bias/dtype=float64/grad=lse/seed=474"
        ),
        "gradients-slopes-bias-float32": (
            "b=2/hq=2/q=9/k=17/d=8/alibi=symmetric.learned/mask=float.11qk.random/causal/grad=lse/seed=475"
        ),
        "gradients-slopes-bias-softcap-float64": (
            "q=5/k=9/d=3/alibi=symmetric.learned/mask=float.qk.random/softcap=2/dtype=float64/grad=lse/seed=476"
        ),
    },
}
