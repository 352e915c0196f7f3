"""Faults planted in the Triton kernels themselves, each with the case that must kill it.

A mutant is a copy of the package `attnspec.implementations.triton_flash` with one change, under a name of its own.
"""

from __future__ import annotations

import atexit
import importlib
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planting import planted

import attnspec.implementations.triton_flash as honest

HOME = Path(honest.__file__).parent
TILE = (16, 16)
SPLIT_KEYS = 16


@dataclass(frozen=True)
class Planted:
    """The kernels with one planted fault.

    name: a slug. module: the file it is in. old: what stands exactly once in it; new: what is put there. rule: id of
    the rule that must be reported as broken. case: of the suite, or of a form's vectors, and what finds it. splits:
    whether the keys fall into splits.
    """

    name: str
    module: str
    old: str
    new: str
    rule: str
    case: str
    splits: bool = False

    @property
    def package(self) -> str:
        """The name under which the copy is imported."""
        return f"triton_mutant_{self.name.replace('-', '_')}"

    def source(self) -> str:
        """Return the changed module's source. Raises ValueError where `old` does not stand exactly once in it."""
        text = (HOME / f"{self.module}.py").read_text(encoding="utf-8")
        return planted(text, [(self.old, self.new)], self.name, self.module)


def package_of(mutant: Planted) -> str:
    """Write the copy with the fault and return its name, which can be imported until this process ends."""
    folder = _workshop() / mutant.package
    folder.mkdir(exist_ok=True)
    for file in HOME.glob("*.py"):
        text = mutant.source() if file.stem == mutant.module else file.read_text(encoding="utf-8")
        renamed = text.replace("attnspec.implementations.triton_flash", mutant.package)
        (folder / file.name).write_text(renamed, encoding="utf-8")
    importlib.invalidate_caches()
    return mutant.package


@cache
def _workshop() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attnspec-triton-mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, str(folder))
    return folder


def backend_of(package: str, case: str, splits: bool) -> Any:
    """Return the backend of a package, in small tiles, with the corner that a case has."""
    module = importlib.import_module(f"{package}.backend")
    corner = "lower_right" if "lower_right" in case else "upper_left"
    return module.TritonFlash(package, corner, TILE, SPLIT_KEYS if splits else None)


TILES, WEIGHTS, OUTPUT, CAUSAL, BOUNDS = (
    "flash.tile-independent", "softmax.weights", "attention.output", "mask.causal-upper-left", "window.bounds",
)  # fmt: skip
BUDGET, SEES, LSE = "output_stays_within_budget", "visible_set_is_exact", "lse_stays_within_budget"
GRADIENTS = "gradients_stay_within_budget"

MUTANTS = (
    Planted("tail-keys-take-part", "tiles", "seen = (keys < k_len)[None, :]",
            "seen = (keys < k_len + 16)[None, :]", OUTPUT, f"{BUDGET}/q=5/k=20/d=16"),
    Planted("tail-rows-are-written", "tiles", "tl.store(pointers, tile, mask=there[:, None] & (dims < DIM)[None, :])",
            "tl.store(pointers, tile, mask=(dims < DIM)[None, :])", "contract.declared-runs",
            f"{BUDGET}/q=5/k=20/d=16"),
    Planted("sum-not-rescaled", "forward", "mixed = rescale[:, None] * mixed", "mixed = mixed", OUTPUT,
            f"{BUDGET}/q=5/k=40/d=16/keys=growing"),
    Planted("total-not-rescaled", "forward", "total = rescale * total", "total = total", OUTPUT,
            f"{BUDGET}/q=5/k=40/d=16/keys=growing"),
    Planted("row-without-keys-minus-infinity", "forward",
            'shift = tl.where(higher == -float("inf"), 0.0, higher)', "shift = higher", "mask.fully-masked-row",
            f"{BUDGET}/q=12/k=20/d=16/mask=bool.qk.empty_rows"),
    Planted("value-by-strides-of-key", "forward", "block_table, table_stride, value_strides, PAGE_SIZE",
            "block_table, table_stride, key_strides, PAGE_SIZE", OUTPUT, f"{BUDGET}/hq=2/q=5/k=20/d=16/dv=8"),
    Planted("value-of-key-head-0", "forward",
            "batch, kv_head, keys, there, k_start, block_table, table_stride, value_strides",
            "batch, kv_head * 0, keys, there, k_start, block_table, table_stride, value_strides",
            "grouped.head-map", f"{BUDGET}/hq=4/hkv=2/q=5/k=20/d=16"),
    Planted("dot-in-float16", "interpreter", "a, b = a.to(tl.float32), b.to(tl.float32)",
            "a, b = a.to(tl.float16).to(tl.float32), b.to(tl.float16).to(tl.float32)", OUTPUT,
            f"{BUDGET}/q=5/k=20/d=16"),
    Planted("bfloat16-cut-off", "interpreter", "(bits + 0x7FFF + ((bits >> 16) & 1)) >> 16", "bits >> 16",
            "backward.value", f"{GRADIENTS}/q=70/k=20/d=64/dtype=bfloat16/window=5.5/grad/seed=3"),
    Planted("causal-hides-the-diagonal", "tiles", "<= diagonal[:, None] + right", "< diagonal[:, None] + right",
            CAUSAL, f"{SEES}/q=20/k=20/d=16/causal"),
    Planted("tile-on-the-diagonal-whole", "forward", "whole_to = tl.minimum(end, first_diagonal + right + 1)",
            "whole_to = tl.minimum(end, last_diagonal + right + 1)", CAUSAL, f"{SEES}/q=32/k=32/d=16/causal"),
    Planted("corner-always-upper-left", "forward", "offset = k_len - q_len if LOWER_RIGHT else 0", "offset = 0",
            "mask.causal-lower-right", f"{SEES}/q=9/k=20/d=16/causal=lower_right"),
    Planted("window-begins-a-tile-late", "forward",
            "begin = tl.maximum(begin, first_diagonal - left) // KEYS * KEYS",
            "begin = tl.maximum(begin, last_diagonal - left) // KEYS * KEYS",
            BOUNDS, f"{SEES}/q=40/k=40/d=16/window=3.0"),
    Planted("window-ends-one-early", "tiles", ">= diagonal[:, None] - left", "> diagonal[:, None] - left",
            BOUNDS, f"{SEES}/q=20/k=20/d=16/window=3.0"),
    Planted("window-adds-in-32-bits", "backend", "min(side, tokens) for side", "side for side", "window.unbounded",
            "a_window_beyond_all_keys_is_none/hq=2/q=33/k=20/d=16/window=-1.-1"),
    Planted("mask-of-head-0", "tiles", "place = places(batch, head, position, mask_strides)[:, None]",
            "place = places(batch, head * 0, position, mask_strides)[:, None]", "mask.bool",
            f"{SEES}/hq=2/q=5/k=20/d=16/mask=bool.bhqk.random"),
    Planted("softcap-of-the-product", "tiles", "softcap * tanh(scores / softcap)", "softcap * tanh(scores)",
            "softcap.scores", f"{BUDGET}/q=5/k=20/d=16/softcap=2"),
    Planted("slope-of-the-key-head", "tiles", "head * slope_strides[1]", "head // 2 * slope_strides[1]", "alibi.bias",
            f"{BUDGET}/hq=4/q=5/k=20/d=16/alibi"),
    Planted("sink-in-every-split", "forward", "top = tl.where(first_split, sink, top)", "top = sink", "sinks.weight",
            f"{BUDGET}/hq=2/q=5/k=40/d=16/sinks", splits=True),
    Planted("split-begins-a-key-late", "forward", "begin, end = split * split_keys, ",
            "begin, end = split * split_keys + split, ", OUTPUT, f"{BUDGET}/hq=2/q=5/k=40/d=16", splits=True),
    Planted("length-of-batch-element-0", "tiles", "k_len = tl.load(key_lengths + batch)",
            "k_len = tl.load(key_lengths)", "key-lengths.visible", f"{SEES}/b=3/q=5/k=20/d=16/lengths=ragged"),
    Planted("delta-without-gradient-of-lse", "backward", "found -= tl.load(", "found -= 0.0 * tl.load(",
            "backward.lse", f"{GRADIENTS}/q=9/k=20/d=16/grad=lse"),
    Planted("row-without-keys-recomputed", "backward",
            'row_lse = tl.where(row_lse == -float("inf"), float("inf"), row_lse)',
            "row_lse = row_lse", "backward.empty-row",
            f"{GRADIENTS}/q=12/k=20/d=16/mask=float.qk.empty_rows/grad"),
    Planted("dk-without-scale", "backward", "round_to(grad_key_tile * scale,", "round_to(grad_key_tile,",
            "backward.key", f"{GRADIENTS}/q=9/k=20/d=16/grad"),
    Planted("dk-of-the-first-rows-of-a-group", "backward", "end * GROUP, ROWS)", "end, ROWS)",
            "backward.grouped", f"{GRADIENTS}/hq=4/hkv=1/q=20/k=20/d=16/grad"),
    Planted("dq-ignores-the-cap", "backward", "grad_scores *= 1 - (capped / softcap) * (capped / softcap)",
            "grad_scores *= 1.0", "softcap.gradient", f"{GRADIENTS}/q=9/k=20/d=16/softcap=2/grad"),
    Planted("dk-misses-rows-below-the-window", "backward", "first_key + KEYS - offset + left)",
            "first_key + KEYS - offset)", "backward.key", f"{GRADIENTS}/q=40/k=40/d=16/window=5.0/grad"),
    Planted("pack-of-keys-by-queries", "tiles", "k_start = tl.load(cu_seqlens_k + batch)",
            "k_start = tl.load(cu_seqlens_q + batch)", "packed.separate", "packed:packed-ragged-float32"),
    Planted("table-row-one-short", "tiles", "batch * table_stride + keys",
            "batch * (table_stride - 1) + keys", "paged.order", "paged:paged-decode-float32"),
    Planted("slot-of-the-next-key", "tiles", "places(page.to(tl.int64), head, keys % PAGE_SIZE, strides)",
            "places(page.to(tl.int64), head, (keys + 1) % PAGE_SIZE, strides)", "paged.order",
            "paged:paged-decode-float32"),
    Planted("merge-weighs-parts-alike", "merge", "weight, rescale = tl.exp(part_lse - shift),",
            "weight, rescale = tl.exp(top - top),", "flash.merge-associative", "merge:merge-three-float32"),
    Planted("merge-of-empty-parts-nan", "merge", 'shift = tl.where(higher == -float("inf"), 0.0, higher)',
            "shift = higher", "flash.merge-empty", "merge:merge-empty-parts-float32"),
)  # fmt: skip
