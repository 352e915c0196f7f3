"""What the source article claims, and what is measured: variances, gradients, masks, heads, costs, cache and tiles.

Run:  python tests/bench/article.py [--out FILE.md]

Prints Markdown. Exits with 1 where a measured figure contradicts its claim. Times are ratios within one run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from attnspec.conformance.budget import error_budget
from attnspec.golden import store
from attnspec.implementations import torch_eager
from attnspec.implementations.tiled import Tiled
from attnspec.reference.additive import additive_attention
from attnspec.reference.attention import attention
from attnspec.reference.multi_head import MultiHeadAttention
from attnspec.reference.scaling import jacobian_norm, score_variance

HEAD_DIMS = (16, 32, 64, 128, 256)
PAIRS = 20_000
ROWS, KEYS = 1000, 32
VANISHED = 0.01  # a norm below this counts as no gradient; that of two equal scores is 1/2
LAYERS, LENGTH, HEADS, HEAD_DIM, BYTES = 32, 4096, 32, 128, 2
KV_HEADS = {"MHA": 32, "GQA, 8 heads": 8, "MQA": 1}
COSTS = [(length, dim) for dim in (16, 64, 128) for length in (32, 128, 256)]
REPEATS = 5
MODELS = ((64, 8), (512, 8), (4096, 32))  # d_model, heads
TILES = ((16, 16), (128, 128))
EXACT_CASES = ("plain-square-float32", "long-rows-float32", "causal-upper-left-square-bfloat16", "long-rows-float16")
QUERY_TILE, TRAFFIC_DIM = 128, 64
TRAFFIC = (1024, 2048, 4096, 8192)

Section = tuple[list[str], bool]
"""Lines of Markdown, and whether the claim holds."""


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return independent elements of mean 0 and variance 1."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def table(head: str, rows: list[str]) -> list[str]:
    """Return a Markdown table."""
    return [head, "|" + "---|" * (head.count("|") - 1), *rows, ""]


def variances() -> Section:
    """Return Var(q.k) and its value after scaling, by d_k."""
    rows, holds = [], True
    for d_k in HEAD_DIMS:
        query, key = normal(PAIRS, d_k, seed=1), normal(PAIRS, d_k, seed=2)
        plain = score_variance(query, key).item()
        scaled = score_variance(query, key, 1 / math.sqrt(d_k)).item()
        sigma = math.sqrt((2 + 6 / d_k) / PAIRS)  # relative, of a variance with the kurtosis 3 + 6 / d_k
        rows.append(f"| {d_k} | {plain:.2f} | {scaled:.4f} | {sigma:.4f} |")
        holds &= abs(plain / d_k - 1) < 5 * sigma and abs(scaled - 1) < 5 * sigma
    text = f"*Claim.* Var(q.k) = d_k, and 1 after scaling. *Measured* over {PAIRS} pairs."
    head = "| d_k | Var(q.k) | Var(q.k / sqrt(d_k)) | relative standard error |"
    return ["## Variance of the scores", "", text, "", *table(head, rows)], holds


def gradients() -> Section:
    """Return the norm of the softmax's derivative with and without scaling, by d_k."""
    rows, holds = [], True
    for d_k in HEAD_DIMS:
        products = (normal(ROWS, 1, d_k, seed=3) @ normal(ROWS, d_k, KEYS, seed=4)).squeeze(1)  # (rows, k_len)
        plain, scaled = jacobian_norm(products), jacobian_norm(products / math.sqrt(d_k))
        lost = [(norms < VANISHED).double().mean().item() for norms in (plain, scaled)]
        medians = " | ".join(f"{norms.median().item():.4f}" for norms in (plain, scaled))
        chain = scaled.median().item() / math.sqrt(d_k)
        rows.append(f"| {d_k} | {medians} | {lost[0]:.1%} | {lost[1]:.1%} | {chain:.4f} |")
        holds &= lost[1] == 0 and (d_k < 64 or lost[0] > 0.1)
    text = [
        "*Claim.* Unscaled, the softmax saturates and its gradients vanish; scaled, they do not.",
        f"*Measured*: the Frobenius norm of diag(p) - p p^T for {ROWS} rows of {KEYS} keys. The claim shows in the",
        f"rows that have no gradient left (norm below {VANISHED}), less in the median. The derivative by the products",
        "q.k has one more factor, 1/sqrt(d_k) (last column).",
    ]
    head = "| d_k | median, unscaled | median, scaled | vanished, unscaled | vanished, scaled | by q.k, scaled |"
    return ["## Gradient of the softmax", "", *text, "", *table(head, rows)], holds


def cache() -> Section:
    """Return the bytes of the KV cache by the number of key and value heads, by formula and as tensors hold them."""
    rows, sizes = [], {}
    for name, kv_heads in KV_HEADS.items():
        formula = 2 * LAYERS * kv_heads * LENGTH * HEAD_DIM * BYTES
        with torch.device("meta"):
            module = MultiHeadAttention(HEADS * HEAD_DIM, HEADS, num_kv_heads=kv_heads)
            token = torch.empty(LENGTH, HEADS * HEAD_DIM, dtype=torch.float16)
            held = sum(layer.half()(token).nbytes for layer in (module.w_k, module.w_v))
        sizes[name] = (formula, LAYERS * held)
        factor = sizes["MHA"][1] / sizes[name][1]
        rows.append(f"| {name} | {kv_heads} | {formula / 2**20:.0f} | {LAYERS * held / 2**20:.0f} | {factor:g} |")
    holds = all(formula == held for formula, held in sizes.values()) and factor == HEADS
    text = [
        "*Claim.* MQA divides the KV cache by the number of heads h; GQA lies between. *Formula*:",
        f"2 * layers * kv_heads * length * head_dim * bytes, for {LAYERS} layers, {LENGTH} tokens,",
        f"head_dim {HEAD_DIM}, {BYTES} bytes, h = {HEADS}. *Measured*: what the keys and values of",
        "one module hold, times the layers.",
    ]
    head = "| form | key and value heads | formula, MiB | held, MiB | smaller by |"
    return ["## KV cache", "", *text, "", *table(head, rows)], holds


def costs() -> Section:
    """Return how much longer additive attention takes than dot-product attention, by length and dimension."""
    rows, ratios = [], []
    for length, dim in COSTS:
        q, k, v = (normal(1, 1, length, dim, seed=seed, dtype=torch.float32) for seed in (5, 6, 7))
        w_q, w_k = (normal(dim, dim, seed=seed, dtype=torch.float32) / math.sqrt(dim) for seed in (8, 9))
        v_a = normal(dim, seed=10, dtype=torch.float32)
        dot = seconds(lambda q=q, k=k, v=v: attention(q, k, v))
        add = seconds(lambda q=q, k=k, v=v, w_q=w_q, w_k=w_k, v_a=v_a: additive_attention(q, k, v, w_q, w_k, v_a))
        ratios.append(add / dot)
        mib = length * length * 8 / 2**20
        rows.append(f"| {dim} | {length} | {add / dot:.1f} | {mib:.2f} | {mib * dim:.2f} |")
    text = [
        "*Claim.* Dot-product attention is far better in speed and memory than additive attention. *Measured*: the",
        f"reference's two functions in float64 on one thread, hidden = d, the median of {REPEATS} runs, as a ratio.",
    ]
    head = "| d | length | time, additive / dot product | scores, MiB | hidden layer, MiB |"
    largest = [ratio for ratio, (length, _) in zip(ratios, COSTS, strict=True) if length == 256]
    return ["## Cost of a score", "", *text, "", *table(head, rows)], min(largest) > 1


def masks() -> Section:
    """Return what a mask of -1e9 and one of -inf make of the same rows."""
    rows, holds = [], True
    cases = {
        "one key masked": ([1.0, 2.0, 0.0], [True, True, False]),
        "every key masked": ([1.0, 2.0, 0.0], [False, False, False]),
        "visible scores of -2e9": ([-2e9, -2e9, 0.0], [True, True, False]),
    }
    value = torch.tensor([3.0, 6.0, 90.0], dtype=torch.float64).reshape(1, 1, 3, 1)
    for name, (numbers, kept) in cases.items():
        scores, keep = torch.tensor(numbers, dtype=torch.float64), torch.tensor(kept)
        filled = (torch.softmax(scores.masked_fill(~keep, -1e9), -1) @ value[0, 0, :, 0]).item()
        excluded = (torch.softmax(scores.masked_fill(~keep, -math.inf), -1) @ value[0, 0, :, 0]).item()
        query, key = torch.ones(1, 1, 1, 1, dtype=torch.float64), scores.reshape(1, 1, 3, 1)
        ours = attention(query, key, value, attn_mask=keep, scale=1.0).output.item()
        rows.append(f"| {name} | {filled:.4f} | {excluded:.4f} | {ours:.4f} |")
        holds &= ours == (0.0 if math.isnan(excluded) else excluded)
    try:
        torch.zeros(1, dtype=torch.float16).masked_fill(torch.tensor([True]), -1e9)
        holds = False
    except RuntimeError:
        rows.append("| float16 scores | raises: -1e9 is no float16 | as in float64 | as in float64 |")
    text = [
        "*Claim.* Masked scores are set to -inf, and the weight is exactly 0; the code fills with -1e9. *Measured*:",
        "the output of a row over the values 3, 6 and 90. Only exclusion, with 0 for an empty row, is right in all.",
    ]
    head = "| row | filled with -1e9 | filled with -inf | `attnspec` |"
    return ["## Masks", "", *text, "", *table(head, rows)], holds


def heads() -> Section:
    """Return how far from orthogonal the subspaces are in which two heads look for their queries."""
    rows, holds = [], True
    for d_model, num_heads in MODELS:
        torch.manual_seed(11)
        d_k = d_model // num_heads
        weight = torch.nn.Linear(d_model, 2 * d_k).weight.detach().double()
        first, second = (torch.linalg.qr(block.T).Q for block in weight.split(d_k))  # (d_model, d_k)
        cosine = torch.linalg.matrix_norm(first.T @ second, ord=2).item()
        rows.append(f"| {d_model} | {num_heads} | {cosine:.2f} |")
        holds &= cosine > 0.1
    text = [
        "*Claim.* Heads work in several orthogonal subspaces that do not disturb each other. *Measured*: the largest",
        "cosine between the row spaces of W^Q of two heads as `torch.nn.Linear` initialises them; orthogonal would be",
        "0. Nothing in the formula makes them so.",
    ]
    return ["## Subspaces of the heads", "", *text, "", *table("| d_model | h | largest cosine |", rows)], holds


def exactness() -> Section:
    """Return how far tiled attention lies from the certified vectors, and from itself with other tiles."""
    rows, holds = [], True
    for name in EXACT_CASES:
        golden = store.load(name)
        call, budget = golden.call, error_budget(golden.call).output
        outputs = [Tiled(tile)(call.query, call.key, call.value, **call.options()) for tile in TILES]
        eager = torch_eager.backend(call.query, call.key, call.value, **call.options())
        worst = [((output.double() - golden.output).abs() / budget).max().item() for output in outputs]
        moved = [(outputs[0] != other).double().mean().item() for other in (outputs[1], eager)]
        rows.append(f"| `{name}` | {worst[0]:.2f} | {worst[1]:.2f} | {moved[0]:.0%} | {moved[1]:.0%} |")
        holds &= max(worst) < 1
    text = [
        "*Claim.* FlashAttention changes no mathematical output. *Measured*: the backend `tiled` against the certified",
        "vectors, its largest error in error budgets with tiles of 16 x 16 and of 128 x 128; and the share of elements",
        "whose bits differ between the two, and between tiles of 16 x 16 and the eager backend.",
    ]
    head = "| golden case | 16 x 16 | 128 x 128 | bits differ, other tile | bits differ, eager |"
    return ["## Exactness of tiles", "", *text, "", *table(head, rows)], holds


def traffic() -> Section:
    """Return how many numbers move to and from the slow memory, by the formulas, for one head."""
    rows, dim = [], TRAFFIC_DIM
    eager = [4 * length * dim + 4 * length**2 for length in TRAFFIC]
    tiled = [2 * length * dim + length // QUERY_TILE * 2 * length * dim for length in TRAFFIC]
    for i, length in enumerate(TRAFFIC):
        grown = [f"{moved[i] / moved[i - 1]:.2f}" if i else "-" for moved in (eager, tiled)]
        rows.append(f"| {length} | {eager[i] / 2**20:.2f} | {tiled[i] / 2**20:.2f} | {' | '.join(grown)} |")
    text = [
        "*Claim.* FlashAttention lowers reads and writes of memory from O(L^2) to O(L). *Formula*, in 2^20 numbers,",
        f"for one head of {dim} elements: eager attention reads Q, K, V and writes O once, writes and reads scores and",
        f"weights; each tile of {QUERY_TILE} queries reads all keys and values. When L doubles, both grow by nearly 4.",
    ]
    head = "| L | eager | tiled | eager grows by | tiled grows by |"
    return ["## Memory traffic", "", *text, "", *table(head, rows)], all(b / a > 3 for a, b in pairwise(tiled))


def seconds(run: Callable[[], object]) -> float:
    """Return the median time of a call, after one to warm up."""
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def main() -> int:
    """Print the tables; return 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the Markdown to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sections = [section() for section in (variances, gradients, masks, heads, costs, cache, exactness, traffic)]
    text = "\n".join(["# The claims of the source article", ""] + [line for lines, _ in sections for line in lines])
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    failed = [lines[0].removeprefix("## ") for lines, holds in sections if not holds]
    if failed:
        print(f"Not as claimed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
