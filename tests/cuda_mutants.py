"""The planted faults of the CUDA kernels: each is flash.cu with one change, and the cases of the suite that find it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from planting import planted

from attnspec.implementations.cuda_flash.backend import CudaFlash
from attnspec.implementations.cuda_flash.builds import SOURCE
from attnspec.implementations.cuda_flash.launcher import Emulated


@dataclass(frozen=True)
class CudaMutant:
    """A fault. file: of cuda_flash; old, new: the one place that changes; cases: ids of those that fail."""

    name: str
    file: str
    old: str
    new: str
    cases: tuple[str, ...]


MUTANTS = (
    CudaMutant(
        "part-of-the-keys-without-tail-guard",
        "forward.cuh",
        "j < seen.end ? score<T>",
        "true ? score<T>",
        ("lengths_equal_shorter_keys/b=3/hq=2/q=5/k=700/d=16/dtype=float32/lengths=ragged/seed=1",),
    ),
    CudaMutant(
        "absent-keys-of-the-tile-are-read",
        "tiles.cuh",
        "const bool there = first + r < end && c < columns;\n    store(tile[r * stride + c]",
        "const bool there = first + r < (end + 31) / 32 * 32 && c < columns;\n    store(tile[r * stride + c]",
        ("absent_keys_never_show/b=3/bkv=1/hq=2/q=9/k=70/d=64/dtype=float32/lengths=short/seed=1",),
    ),
    CudaMutant(
        "output-is-not-rescaled",
        "forward.cuh",
        "output[d][r] *= correction",
        "output[d][r] *= 1.0f",
        ("output_matches_golden/plain-square-large-float32",),
    ),
    CudaMutant(
        "sum-is-not-rescaled",
        "forward.cuh",
        "correction * sum[r] + w",
        "sum[r] + w",
        ("lse_matches_golden/plain-square-large-float32",),
    ),
    CudaMutant(
        "lse-without-the-maximum",
        "rows.cuh",
        "call.lse[index] = maximum + logf(sum);  //",
        "call.lse[index] = logf(sum);  //",
        ("lse_matches_golden/plain-square-float32",),
    ),
    CudaMutant(
        "fragment-a-with-rows-and-columns-swapped",
        "mma.cuh",
        "a[1] = pair(from + (g + 8) * stride + 2 * t);\n  a[2] = pair(from + g * stride + 2 * t + 8);",
        "a[2] = pair(from + (g + 8) * stride + 2 * t);\n  a[1] = pair(from + g * stride + 2 * t + 8);",
        ("output_matches_golden/lengths-ragged-float16",),
    ),
    CudaMutant(
        "fragment-b-read-by-columns",
        "mma.cuh",
        "b[1] = pair(from + g * stride + 2 * t + 8);",
        "b[1] = pair(from + (g ^ 1) * stride + 2 * t + 8);",
        ("output_matches_golden/lengths-ragged-float16",),
    ),
    CudaMutant(
        "weights-of-rows-g-and-g-plus-8-swapped",
        "forward_mma.cuh",
        "pair<T>(s[2 * k][2], s[2 * k][3]),",
        "pair<T>(s[2 * k][0], s[2 * k][1]),",
        ("output_matches_golden/causal-upper-left-square-large-float16",),
    ),
    CudaMutant(
        "window-one-key-short-on-the-left",
        "call.cuh",
        "distance < -call.left)",
        "distance <= -call.left)",
        ("output_matches_golden/window-upper-left-wide-float32",),
    ),
    CudaMutant(
        "tiles-end-one-key-early",
        "call.cuh",
        "last + keys.shift + call.right + 1;",
        "last + keys.shift + call.right;",
        ("visible_set_is_exact/q=33/k=70/d=64/dtype=float32/causal/seed=1",),
    ),
    CudaMutant(
        "diagonal-of-the-lower-right",
        "call.cuh",
        "call.lower_right ? length - call.q_len : 0",
        "length - call.q_len",
        ("visible_set_is_exact/q=33/k=70/d=64/dtype=float32/causal/seed=1",),
    ),
    CudaMutant(
        "additive-mask-of-row-0",
        "call.cuh",
        "call.mask.at<T>(batch, head, i, j)",
        "call.mask.at<T>(batch, head, 0, j)",
        ("output_matches_golden/mask-float-bias-float32",),
    ),
    CudaMutant(
        "values-read-by-the-strides-of-the-keys",
        "forward.cuh",
        "call.value, kv_batch",
        "{call.value.data, call.key.batch, call.key.head, call.key.row, call.key.column}, kv_batch",
        ("output_matches_golden/value-dim-larger-float32",),
    ),
    CudaMutant(
        "heads-mapped-by-remainder",
        "call.cuh",
        "return head / (call.q_heads / call.kv_heads);",
        "return head % call.kv_heads;",
        ("output_matches_golden/grouped-ratio-2-float32",),
    ),
    CudaMutant(
        "empty-row-by-the-formula",
        "call.cuh",
        "return s == MINUS_INFINITY ? 0.0f : expf(s - maximum);",
        "return expf(s - maximum);",
        ("output_matches_golden/grouped-empty-head-float32",),
    ),
    CudaMutant(
        "parts-merged-without-their-weights",
        "rows.cuh",
        "x += weight(call.part_max[at], maximum) *",
        "x +=",
        ("lengths_equal_shorter_keys/b=3/hq=2/q=5/k=700/d=16/dtype=float32/lengths=ragged/seed=1",),
    ),
    CudaMutant(
        "gradient-of-the-lse-dropped",
        "backward.cuh",
        "product - (call.grad_lse ? call.grad_lse[index] : 0.0f)",
        "product",
        ("gradients_match_golden/gradients-lse-float32",),
    ),
    CudaMutant(
        "weights-of-the-backward-pass-not-divided",
        "backward.cuh",
        "expf(s - call.row_max[index]) / call.row_sum[index]",
        "expf(s - call.row_max[index])",
        ("gradients_match_golden/gradients-wide-float32",),
    ),
    CudaMutant(
        "one-head-of-the-group-reaches-the-keys",
        "backward.cuh",
        "head < (own_head + 1) * group",
        "head < own_head * group + 1",
        ("gradients_match_golden/gradients-grouped-float32",),
    ),
    CudaMutant(
        "absent-keys-have-a-gradient",
        "call.cuh",
        "i >= call.q_len || j >= keys.length ||",
        "i >= call.q_len ||",
        ("gradients_match_golden/gradients-lse-lengths-float32",),
    ),
    CudaMutant(
        "gradient-of-the-query-unscaled",
        "backward.cuh",
        "grad_query[d][r] * call.scale",
        "grad_query[d][r]",
        ("gradients_match_golden/gradients-wide-float32",),
    ),
)


def written(mutant: CudaMutant, folder: Path) -> Path:
    """Copy the sources to a folder, change one, and return the path of flash.cu there. Raises ValueError where the
    fault's place is not there once."""
    for path in SOURCE.parent.glob("*.cu*"):
        shutil.copy(path, folder)
    place = folder / mutant.file
    text = place.read_text(encoding="utf-8")
    place.write_text(planted(text, [(mutant.old, mutant.new)], mutant.name, mutant.file), encoding="utf-8")
    return folder / SOURCE.name


def mutated(mutant: CudaMutant, folder: Path) -> CudaFlash:
    """Return the backend of a mutant, its sources written to a folder."""
    return CudaFlash(emulated=Emulated(source=written(mutant, folder), optimise="-O1"))
