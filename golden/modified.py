"""The golden cases with a window or a softcap: groups as in `golden.cases`."""

from __future__ import annotations

MODIFIED: dict[str, dict[str, str]] = {
    "Windows: both ends count, in both corners; the causal triangle stays; a row whose window is beyond the keys sees "
    "nothing.": {
        "window-upper-left-wide-float32": "hq=2/q=9/k=17/d=24/window=3.2/seed=400",
        "window-lower-right-wide-float32": "hq=2/q=9/k=17/d=24/window=3.2.lower_right/seed=400",
        "window-upper-left-tall-float32": "q=17/k=9/d=8/window=3.2/seed=401",
        "window-lower-right-tall-bfloat16": "q=17/k=9/d=8/window=3.2.lower_right/dtype=bf16/seed=401",
        "window-own-key-float64": "q=9/k=9/d=3/window=0.0/dtype=float64/seed=402",
        "window-own-key-causal-lower-right-float16": "q=5/k=9/d=8/causal=lower_right/window=0.0/dtype=fp16/seed=403",
        "window-causal-left-float32": "hq=2/q=33/k=33/d=24/causal/window=7.0/seed=404",
        "window-causal-right-counts-for-0-float32": "q=17/k=20/d=8/causal/window=4.5/seed=405",
        "window-causal-right-unbounded-bfloat16": "q=17/k=20/d=24/causal=lower_right/window=4.-1/dtype=bf16/seed=406",
        "window-left-unbounded-float32": "q=9/k=17/d=8/window=-1.2/seed=407",
        "window-right-unbounded-float16": "q=9/k=17/d=8/window=2.-1.lower_right/dtype=fp16/seed=408",
        "window-without-bounds-float32": "q=9/k=17/d=8/window=-1.-1/seed=409",
        "window-as-long-as-the-keys-float32": "q=9/k=17/d=8/window=17.17.lower_right/seed=410",
        "window-bool-mask-empty-rows-float32": "hq=2/q=9/k=17/d=8/mask=bool.hqk.empty_rows/window=5.5/seed=411",
        "window-bias-grouped-bfloat16": (
            "hq=4/hkv=2/q=9/k=17/d=24/mask=float.hqk.random/causal/window=6.0/dtype=bf16/seed=412"
        ),
        "window-lengths-lower-right-float32": "b=3/hq=2/q=5/k=17/d=8/lengths=zero/window=3.1.lower_right/seed=413",
        "window-lengths-one-query-float32": "b=3/q=1/k=66/d=24/causal=lower_right/lengths=ragged/window=31.0/seed=414",
    },
    "Gradients with windows: keys that no row sees, rows that see nothing, both corners, a bias, groups, lengths.": {
        "gradients-window-upper-left-float32": "hq=2/q=17/k=33/d=24/window=4.3/grad/seed=420",
        "gradients-window-lower-right-float32": "hq=2/q=17/k=33/d=24/window=4.3.lower_right/grad=lse/seed=421",
        "gradients-window-tall-bfloat16": "q=33/k=17/d=24/window=2.1/dtype=bf16/grad/seed=422",
        "gradients-window-causal-grouped-float32": "b=2/hq=4/hkv=2/q=17/k=17/d=8/causal/window=5.2/grad/seed=423",
        "gradients-window-bias-float64": (
            "q=9/k=17/d=3/mask=float.qk.random/window=0.3/dtype=float64/grad=lse/seed=424"
        ),
        "gradients-window-lengths-float16": (
            "b=3/q=5/k=17/d=8/lengths=ragged/window=3.0.lower_right/dtype=fp16/grad/seed=425"
        ),
    },
    "Softcap: below the scores, at them and far above; before bias and masks; in every dtype.": {
        "softcap-below-scores-float32": "hq=2/q=9/k=33/d=24/softcap=1.5/scores=8/seed=430",
        "softcap-below-scores-bfloat16": "hq=2/q=9/k=33/d=24/softcap=1.5/scores=8/dtype=bf16/seed=431",
        "softcap-at-scores-float16": "q=9/k=33/d=40/softcap=8/scores=8/dtype=fp16/seed=432",
        "softcap-above-scores-float32": "q=9/k=70/d=64/softcap=50/seed=433",
        "softcap-far-above-scores-float64": "q=9/k=17/d=8/softcap=1048576/dtype=float64/seed=434",
        "softcap-tiny-float32": "q=9/k=17/d=8/softcap=0.001/scores=8/seed=435",
        "softcap-one-key-float32": "q=5/k=1/d=8/softcap=2/scores=4/seed=436",
        "softcap-bool-mask-empty-rows-float32": "hq=2/q=9/k=17/d=8/mask=bool.qk.empty_rows/softcap=2/scores=4/seed=437",
        "softcap-bias-float32": "hq=2/q=9/k=17/d=8/mask=float.hqk.random/softcap=2/scores=4/seed=438",
        "softcap-finite-bias-bfloat16": "q=9/k=17/d=8/mask=float.qk.low/softcap=2/scores=4/dtype=bf16/seed=439",
        "softcap-causal-lower-right-float32": "q=17/k=20/d=24/causal=lower_right/softcap=5/scores=4/seed=440",
        "softcap-window-grouped-float16": "hq=4/hkv=2/q=9/k=17/d=8/window=4.1/softcap=5/scores=4/dtype=fp16/seed=441",
        "softcap-scale-negative-float32": "q=9/k=17/d=8/scale=-0.7/softcap=3/seed=442",
        "softcap-lengths-float32": "b=3/hq=2/q=5/k=17/d=8/lengths=zero/softcap=3/scores=4/seed=443",
        "softcap-scores-far-from-0-float32": "q=9/k=33/d=24/shift=200/softcap=30/seed=444",
        "gradients-softcap-below-scores-float32": "hq=2/q=9/k=17/d=24/softcap=1.5/scores=4/grad/seed=450",
        "gradients-softcap-lse-bfloat16": "hq=2/q=9/k=17/d=24/softcap=4/scores=4/dtype=bf16/grad=lse/seed=451",
        "gradients-softcap-bias-float64": (
            "b=2/q=5/k=9/d=3/mask=float.bhqk.random/softcap=2/scores=4/dtype=float64/grad=lse/seed=452"
        ),
        "gradients-softcap-bias-bfloat16": (
            "hq=2/q=9/k=17/d=24/mask=float.hqk.random/softcap=2/scores=4/dtype=bf16/grad/seed=457"
        ),
        "gradients-softcap-bias-float16": (
            "b=2/hq=2/q=9/k=17/d=8/mask=float.b11k.bias/softcap=3/scores=4/dtype=fp16/grad=lse/seed=458"
        ),
        "gradients-softcap-causal-grouped-float32": (
            "b=2/hq=4/hkv=2/q=9/k=9/d=8/causal/softcap=3/scores=4/grad/seed=453"
        ),
        "gradients-softcap-window-float16": "q=9/k=17/d=8/window=4.1/softcap=3/scores=4/dtype=fp16/grad/seed=454",
        "gradients-softcap-one-key-float32": "q=5/k=1/d=8/softcap=2/scores=4/grad=lse/seed=455",
        "gradients-softcap-above-scores-float32": "q=17/k=9/d=24/softcap=50/grad/seed=456",
    },
}
