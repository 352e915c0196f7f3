"""How tight the budgets of the forms are: error / budget of honest merges, multi-head modules, additive attention,
dropout with a given mask, packed and paged attention, rotations, attention over quantised keys and values, context
parallelism, and the table of a relative position bias.

Run:  python tests/bench/forms.py [--problems N] [--form FORM ...]

Prints Markdown: the table of the section "Budgets of the forms" of the chapter "accuracy". Exits with 1 where an honest
target is above its budget. The truth is the float64 reference, so float64 inputs are left to the vectors.
"""

from __future__ import annotations

import argparse
import platform
import runpy
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `form_references` lies, here as under pytest

from form_references import by_reference

from attnspec.conformance.forms.hold import FORMS, judged
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.forms import FORMS as PROBLEMS
from attnspec.golden.forms.form import FormCase, FormProblem, Tensors
from attnspec.golden.store import FormGolden

HONEST = Path(__file__).resolve().parents[1] / "honest" / "forms"
DTYPES = ("bfloat16", "float16", "float32")
STORE = ("the truth, rounded once", "fused")
TARGETS = {  # form: target, accuracy class
    "merge": (("merge_at_once", "fused"), ("merge_pairwise", "fused")),
    "multi_head": (("multi_head", "fused"), ("multi_head", "eager"), ("multi_head_sdpa", "fused"),
                   ("torch_module", "fused")),
    "additive": (("additive", "fused"), ("additive_output", "eager")),
    "dropout": (("dropout", "fused"),),
    "packed": (("packed", "fused"), ("packed_tiles", "fused")),
    "paged": (("paged", "fused"), ("paged", "eager"), ("paged_stream", "fused"), ("paged_backward", "fused")),
    "rope": (("rope", "fused"), ("rope_complex", "fused"), ("rope_table", "eager")),
    "quantised": (("quantised", "fused"), ("quantised_folded", "fused"), ("quantised_function", "fused"),
                  ("quantised_rounded", "eager"), ("quantised_eager", "eager")),
    "latent": (("latent_expanded", "fused"), ("latent_absorbed", "fused"),
               ("latent_absorbed_function", "fused"), ("latent_eager", "eager")),
    "context_parallel": (("context_parallel", "fused"), ("context_parallel_gather", "fused")),
    "relative_bias": (("relative_bias", "fused"), ("relative_bias_diagonals", "fused"),
                      ("relative_bias_backward", "fused"), ("relative_bias_indexed", "eager")),
}  # fmt: skip


def drawn(form: str, dtype: str, rng: np.random.Generator) -> str:
    """Return the string of a random problem."""
    end = f"dtype={dtype}/seed={rng.integers(2**31)}"
    if form in ("packed", "paged"):
        return drawn_pack(form, rng) + end
    if form == "context_parallel":
        return drawn_deal(rng) + end
    b, h, q, k = (int(rng.choice(sizes)) for sizes in ([1, 2], [1, 2, 4], [1, 7, 33], [1, 5, 17, 70]))
    scores = rng.choice(["0.25", "1", "1", "4"])
    if form == "merge":
        said = rng.choice(["", "gap=90/", "shift=-200/", "gap=5/empty=some/garbage/"])
        return f"parts={rng.integers(1, 9)}/b={b}/h={h}/q={q}/dv={rng.choice([1, 8, 64])}/{said}{end}"
    if form == "multi_head":
        mask = rng.choice(["", "mask=padding/", "mask=rows/", "mask=empty/"]) + rng.choice(["", "no_bias/"])
        heads, groups = f"heads={h}/", rng.choice(["", f"kv_heads={max(h // 2, 1)}/"])
        sizes = f"b={b}/q={q}/k={k}/d_model={h * int(rng.choice([2, 8, 32]))}/{heads}{groups}"
        return f"{sizes}{mask}scores={scores}/{end}"
    if form == "additive":
        mask = rng.choice(["", "mask=padding/", "mask=rows/", "mask=bias/", "mask=bias_empty/", "causal/"])
        dims = f"query_dim={rng.choice([2, 16, 64])}/key_dim={rng.choice([2, 16, 64])}/hidden={rng.choice([1, 16, 64])}"
        return f"b={b}/h={h}/q={q}/k={k}/{dims}/{mask}scores={scores}/{end}"
    if form == "rope":
        r, said = int(rng.choice([2, 16, 64])), rng.choice(["", "interleaved/"]) + rng.choice(["", "base=500000/"])
        where = rng.choice(["", "positions=batch/", "grad/", f"keys={k}/shift=9/"])
        return f"b={b}/h={h}/q={q}/d=80/rotary_dim={r}/{said}{where}first={rng.choice([0, 100, 100000])}/{end}"
    if form == "quantised":
        grains = (rng.choice(["tensor", "head", "batch_head", "channel", "token"]) for _ in range(2))
        said = "key_scale={}/value_scale={}/".format(*grains) + rng.choice(["", "causal/"])
        said += rng.choice(["", "lengths=ragged/"]) + rng.choice(["", "stored=e4m3/"])
        said += rng.choice(["", "scale=-0.1/"]) + (grad := rng.choice(["", "grad=output/", "grad=lse/"]))
        k = min(k, 17) if grad else k
        dims = f"d={rng.choice([2, 16, *([] if grad else [64])])}/dv={rng.choice([1, 8, 64])}"
        return f"b={b}/hq={h}/hkv={rng.choice([1, h])}/q={q}/k={k}/{dims}/{said}{end}"
    if form == "latent":
        lengths = rng.choice(["", "lengths=ragged/", "causal=upper_left/", "lengths=ragged/causal=lower_right/"])
        grad = rng.choice(["", "grad=output/", "grad=lse/"])
        large, largest = ([], []) if grad else ([64], [128])  # a budget of gradients takes the derivative of each
        dims = f"nope={rng.choice([2, 16, *large])}/rope={rng.choice([2, 16])}/rank={rng.choice([2, 16, *largest])}"
        said = f"{dims}/dv={rng.choice([2, 16, *large])}/{lengths}scores={scores}/{grad}"
        return f"b={b}/h={h}/q={q}/k={min(k, 17) if grad else k}/{said}{end}"
    if form == "relative_bias":
        count = int(rng.choice([4, 8, 32]))
        said = rng.choice(["", "causal/"]) + rng.choice(["", "corner=lower_right/"])
        return f"h={h}/q={q}/k={k}/buckets={count}/max_distance={count + int(rng.choice([1, 30]))}/{said}grad/{end}"
    mask = rng.choice(["", "causal/", "mask=bool.bhqk.random/"])
    grad = rng.choice(["", "grad/"])
    order = f"b={b}/hq={h}/q={q}/k={k}/d={rng.choice([2, 16, 64])}/dtype={dtype}"
    parts = [order, *(part for part in mask.split("/") if part), f"dropout={rng.choice([0.1, 0.3, 0.5])}"]
    return "/".join([*parts, *(["grad"] if grad else []), f"scores={scores}", f"seed={rng.integers(2**31)}"])


def drawn_pack(form: str, rng: np.random.Generator) -> str:
    """Return the string of a random problem of packed or paged attention, up to its dtype."""
    members = rng.integers(1, 5)
    k = rng.choice([0, 1, 5, 17, 70], members)
    k[0] = max(k[0], 1)  # where no member has a key, an honest output has no gradient
    q = rng.choice([0, 1, 7, 33] if form == "packed" else [0, 1, 1, 7], members)
    hkv, group = int(rng.choice([1, 2])), int(rng.choice([1, 2, 4]))
    head = f"hq={hkv * group}/" + (f"hkv={hkv}/" if group > 1 else "") + f"d={rng.choice([2, 16, 64])}/"
    scores = f"scores={rng.choice(['0.25', '0.5', '2', '4'])}/"
    queries, keys = (".".join(map(str, counts)) for counts in (q, k))
    if form == "paged":
        said, page = rng.choice(["", "causal/"]), int(rng.choice([1, 7, 64]))
        said += f"shared={rng.integers(0, -(-k[0] // page) + 1)}/" + rng.choice(["", "grad=output/", "grad=lse/"])
        return f"lengths={keys}/page={page}/queries={queries}/{head}{said}{scores}"
    seen = rng.choice(["", "causal=lower_right/", "causal=upper_left/window=5.-1/", "window=5.3/"])
    grad = rng.choice(["", "grad=output/", "grad=lse/"])
    return f"q={queries}/k={keys}/{head}{seen}{scores}{grad}"


def drawn_deal(rng: np.random.Generator) -> str:
    """Return the string of a random problem of context parallelism, up to its dtype."""
    q, k = (int(rng.choice(sizes)) for sizes in ([1, 7, 33], [1, 5, 17, 70]))
    hkv, group = int(rng.choice([1, 2])), int(rng.choice([1, 2, 4]))
    said = f"q={q}/k={k}/ranks={rng.integers(1, 6)}/deal={rng.choice(['contiguous', 'zigzag', 'striped', 'shuffled'])}/"
    said += f"hq={hkv * group}/hkv={hkv}/d={rng.choice([2, 16, 64])}/"
    said += rng.choice(["", "causal=upper_left/", "causal=lower_right/", "mask=random/", "mask=padding/"])
    said += rng.choice(["", "shift=-200/", "scores=0.25/", "scores=4/"])
    return said + str(rng.choice(["", "grad=output/", "grad=lse/"]))


def golden(problem: FormProblem) -> FormGolden:
    """Return a problem with its inputs and, from the float64 reference, what is right."""
    inputs = problem.inputs()
    kept = ("key_scale", "value_scale")  # float32 or narrower in any call
    narrow = inputs[problem.leading].dtype
    wide = {name: x.double() if x.dtype == narrow and name not in kept else x for name, x in inputs.items()}
    case = FormCase("drawn", problem, (), "")
    truth = by_reference(FormGolden(case, wide))
    return FormGolden(case, inputs | {name: x.detach() for name, x in truth.items()})


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--problems", type=int, default=60)
    options.add_argument("--form", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    given = options.parse_args()
    count = given.problems
    print(f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}; "
          f"{count} problems a form and dtype\n")  # fmt: skip
    print("| form | target | class | bfloat16 | float16 | float32 |\n| --- | --- | --- | ---: | ---: | ---: |")
    highest = 0.0
    for form in given.form:
        worst = measured(form, count)
        for name, accuracy in (*TARGETS[form], STORE):
            cells = (f"{worst[(name, accuracy), dtype]:.2f}" for dtype in DTYPES)
            print(f"| {form} | {name} | {accuracy} | {' | '.join(cells)} |", flush=True)
        highest = max(highest, *worst.values())
    return int(highest > 1)


def measured(form: str, count: int) -> dict[tuple[tuple[str, str], str], float]:
    """Return the largest error over budget of each target of a form, and of the truth in the dtype of the results, by
    (target, class) and dtype."""
    targets = {given: runpy.run_path(str(HONEST / f"{given[0]}.py"))["target"] for given in TARGETS[form]}
    worst = {(given, dtype): 0.0 for given in (*targets, STORE) for dtype in DTYPES}
    for dtype in DTYPES:
        rng = np.random.default_rng([len(form), DTYPES.index(dtype)])
        for _ in range(count):
            case = golden(PROBLEMS[form].parse(drawn(form, dtype, rng)))
            budgets = {accuracy: FORMS[form].budgets(case, accuracy) for accuracy in ("fused", "eager")}
            for given in (*targets, STORE):
                try:
                    results = stored(case) if given == STORE else FORMS[form].run(targets[given], case)
                    error = judged(results, case, budgets[given[1]])
                except NotSupported:
                    continue
                except Violation as broken:
                    print(f"{given[0]}, {case.case.problem}: {broken}", file=sys.stderr)
                    error = broken.error_over_budget or float("inf")
                worst[given, dtype] = max(worst[given, dtype], error)
    return worst


def stored(case: FormGolden) -> Tensors:
    """Return the truth of a case, each number rounded once to the dtype of a result."""
    dtype = case.inputs[case.case.problem.leading].dtype
    wide = torch.promote_types(dtype, torch.float32)
    return {name: truth.to(wide if name == "lse" else dtype) for name, truth in case.truth.items()}


if __name__ == "__main__":
    sys.exit(main())
