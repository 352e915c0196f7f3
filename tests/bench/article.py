"""What the source article claims, and what is measured: variances, gradients, the KV cache, the cost of a score.

Run:  python tests/bench/article.py [--out FILE.md]

Prints Markdown. Exits with 1 where a measured figure contradicts its claim. Times are ratios within one run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

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
    sections = [variances(), gradients(), cache(), costs()]
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
