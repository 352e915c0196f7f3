"""Form `paged`: queries over keys and values that lie in pages, which a table puts in order, forward and backward
(chapter "paged")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, gradient_shapes, numbers
from attnspec.golden.forms.packed import alone, boundaries, whole
from attnspec.golden.inputs import Source, draw_tokens
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact import attention
from attnspec.reference.exact.backward import backward
from attnspec.spec.errors import InputError

LEAVES = ("query", "key_pages", "value_pages")
UNUSED = ("other", "minus", "beyond")
UNUSED_BLOCKS = 2  # of the pool
BEYOND = 1000  # how far behind the last block an unused entry points
USUAL_PAGE = 16

GROUPS: dict[str, dict[str, str]] = {
    "Decoding: one query of each sequence over the keys that its row of the table names.": {
        "paged-decode-float32": "lengths=20.5.33/hq=2/seed=900",
        "paged-decode-float64": "lengths=18.7/dtype=float64/seed=901",
        "paged-decode-bfloat16": "lengths=20.5.33/hq=4/hkv=2/d=24/dtype=bfloat16/seed=902",
        "paged-decode-float16": "lengths=20.35/hq=2/d=24/dtype=float16/seed=903",
        "paged-grouped-float32": "lengths=20.33/hq=4/hkv=2/seed=904",
        "paged-multi-query-float32": "lengths=20.17/hq=3/hkv=1/seed=905",
        "paged-value-dim-float32": "lengths=20.9/dv=24/seed=906",
        "paged-scale-negative-float32": "lengths=20.9/scale=-0.7/seed=907",
        "paged-large-scores-float32": "lengths=20.35/scores=8/seed=908",
        "paged-far-below-zero-float32": "lengths=20.35/shift=-200/seed=909",
    },
    "Pages of 1, 4, 7 and 256 tokens; lengths that are a multiple of the page or not.": {
        "paged-page-1-float32": "lengths=5.1.3/page=1/seed=910",
        "paged-page-4-bfloat16": "lengths=9.4.13/page=4/hq=2/dtype=bfloat16/seed=911",
        "paged-page-7-float32": "lengths=9.7.20/page=7/hq=2/seed=912",
        "paged-page-256-float32": "lengths=300.5/page=256/d=4/seed=913",
        "paged-around-16-float32": "lengths=15.16.17.1/seed=914",
    },
    "Sequences share pages; unused entries name other pages, none, or pages that do not exist.": {
        "paged-shared-float32": "lengths=20.23.17/page=8/shared=2/hq=2/seed=920",
        "paged-shared-in-part-float32": "lengths=3.8.6/page=4/shared=1/seed=921",
        "paged-unused-minus-float32": "lengths=20.5/unused=minus/spare=3/seed=922",
        "paged-unused-beyond-float32": "lengths=20.5/unused=beyond/spare=2/seed=923",
    },
    "Lengths of 0, and up to the last slot of the table.": {
        "paged-empty-sequence-float32": "lengths=0.5.20/hq=2/seed=930",
        "paged-empty-all-float32": "lengths=0.0/hq=2/unused=minus/seed=931",
        "paged-full-table-float32": "lengths=32.17/spare=0/seed=932",
    },
    "Chunks of several queries: each row sees the keys up to its own, at the lower right of its sequence.": {
        "paged-chunk-float32": "lengths=20.17.9/q=5/hq=2/causal/seed=940",
        "paged-chunk-bfloat16": "lengths=20.9/page=7/q=4/hq=4/hkv=2/causal/dtype=bfloat16/seed=941",
        "paged-chunk-empty-rows-float32": "lengths=3.9.0/page=4/q=5/hq=2/causal/seed=942",
        "paged-chunk-not-causal-float32": "lengths=20.5/q=3/seed=943",
    },
    "Packed queries: sequences of one query, of several and of none in one batch.": {
        "paged-packed-decode-float32": "lengths=20.5.33/queries=1.1.1/hq=2/seed=950",
        "paged-packed-mixed-float32": "lengths=9.17.4.20/page=7/queries=1.5.0.3/hq=2/causal/seed=951",
        "paged-packed-mixed-float16": "lengths=9.17.4/queries=4.1.2/hq=4/hkv=2/causal/dtype=float16/seed=952",
        "paged-packed-empty-rows-float32": "lengths=2.0.6/page=4/queries=3.2.1/causal/seed=953",
    },
    "Gradients of a slot add up over the sequences that read it; slots that none reads have none.": {
        "paged-gradients-float32": "lengths=9.20.5/page=8/q=2/hq=2/grad=output/seed=960",
        "paged-gradients-float64": "lengths=7.10/page=4/q=2/grad=output/dtype=float64/seed=961",
        "paged-gradients-shared-float32": "lengths=20.23.17/page=8/q=2/shared=2/hq=2/grad=output/seed=962",
        "paged-gradients-shared-bfloat16": (
            "lengths=20.9.17.12/page=8/q=3/shared=1/hq=4/hkv=2/d=24/causal/grad=output/dtype=bfloat16/seed=963"
        ),
        "paged-gradients-shared-float16": (
            "lengths=9.12.10/page=4/q=2/shared=2/hq=2/d=24/grad=output/dtype=float16/seed=964"
        ),
        "paged-gradients-shared-in-part-page-7-float32": "lengths=5.16.9/page=7/q=2/shared=1/grad=output/seed=965",
        "paged-gradients-page-1-float32": "lengths=3.5.4/page=1/shared=2/hq=4/hkv=2/grad=output/seed=966",
        "paged-gradients-empty-sequence-float32": "lengths=5.0.9/page=4/hq=2/unused=beyond/grad=output/seed=967",
        "paged-gradients-chunk-empty-rows-float32": "lengths=3.9.0/page=4/q=5/hq=2/causal/grad=lse/seed=968",
        "paged-gradients-packed-mixed-float32": (
            "lengths=9.17.8.20/page=7/queries=1.5.0.3/shared=1/hq=4/hkv=2/causal/grad=output/seed=969"
        ),
        "paged-gradients-packed-lse-bfloat16": (
            "lengths=10.9.13/page=4/queries=2.4.1/shared=1/hq=2/dv=5/grad=lse/dtype=bfloat16/seed=970"
        ),
        "paged-gradients-long-scale-float32": "lengths=75.20/q=2/d=4/scale=-0.7/grad=output/seed=971",
        "paged-gradients-twice-float32": "lengths=20.5.11/page=4/q=2/hq=2/twice/grad=output/seed=972",
    },
}


@dataclass(frozen=True)
class PagedProblem(WordProblem):
    """Queries and a cache in pages. lengths, queries: numbers with `.` between them. lengths: the key_lengths; page:
    page_size; q: queries of every sequence, or queries: those of each, packed. shared: how many of its first pages
    every sequence has from the first one. hq, hkv, d, dv: heads and dims; hkv 0 is hq, dv 0 is d. scores: factor on the
    queries; shift: added to every score. unused: what entries of the table behind the last needed hold, `other` pages'
    numbers, -1 (`minus`), or numbers `beyond` the pool. spare: columns of the table that no sequence needs. twice: the
    last page of a sequence is its first one. grad: `output`, or `lse` for both."""

    form: ClassVar[str] = "paged"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "grad_query", "grad_key_pages", "grad_value_pages")

    lengths: str = "1"
    page: int = USUAL_PAGE
    q: int = 1
    queries: str = ""
    shared: int = 0
    hq: int = 1
    hkv: int = 0
    d: int = 8
    dv: int = 0
    causal: bool = False
    scale: str = ""
    scores: float = 1.0
    shift: float = 0.0
    unused: str = "other"
    spare: int = 1
    twice: bool = False
    grad: str = ""

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.unused not in UNUSED or self.grad not in ("", "output", "lse"):
            said = f"unused is {self.unused!r} and grad {self.grad!r}"
            raise InputError(f"{said}: use one of {', '.join(UNUSED)}, and output, lse or none")
        if not self.page or min(self.key_lengths) < 0:
            raise InputError(f"page is {self.page} and lengths {self.lengths!r}: use 1 or more, and 0 or more")
        if len(self.packed) not in (0, len(self.key_lengths)):
            raise InputError(f"queries is {self.queries!r}: use a number for each of {len(self.key_lengths)} sequences")
        if self.shared > self.pages[0]:
            raise InputError(f"shared is {self.shared}: use {self.pages[0]} at most, the pages of the first sequence")
        if self.twice and (self.causal or self.shared):
            raise InputError(
                "twice goes with causal or shared: use it alone, where both halves of a gradient are equal"
            )

    @property
    def key_lengths(self) -> list[int]:
        """How many keys each sequence has."""
        return whole(self.lengths)

    @property
    def packed(self) -> list[int]:
        """How many queries each sequence has, where they are packed; else nothing."""
        return whole(self.queries) if self.queries else []

    @property
    def pages(self) -> list[int]:
        """How many pages each sequence needs."""
        return [-(-length // self.page) for length in self.key_lengths]

    @property
    def own_pages(self) -> list[int]:
        """How many pages each sequence has for itself; the first has those that are shared."""
        return [self.pages[0], *(max(count - self.shared, 0) for count in self.pages[1:])]

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        batch, kv_heads, value_dim = len(self.key_lengths), self.hkv or self.hq, self.dv or self.d
        pool = (sum(self.own_pages) + UNUSED_BLOCKS, self.page, kv_heads)
        rows = (sum(self.packed), self.hq) if self.packed else (batch, self.hq, self.q)
        shapes: Shapes = {
            "query": (self.dtype, (*rows, self.d)),
            "key_pages": (self.dtype, (*pool, self.d)),
            "value_pages": (self.dtype, (*pool, value_dim)),
            "block_table": ("int32", (batch, max(self.pages) + self.spare)),
            "key_lengths": ("int32", (batch,)),
            "output": ("float64", (*rows, value_dim)),
            "lse": ("float64", rows[::-1] if self.packed else rows),
        }
        if self.packed:
            shapes["cu_seqlens_q"] = ("int32", (batch + 1,))
        return shapes | gradient_shapes(shapes, self.dtype, LEAVES, self.grad)

    def inputs(self) -> Tensors:
        """Return queries, pages, table and lengths, and what flows back. Slots that no sequence uses hold numbers like
        the others."""
        draw, scale = Source(self.seed), float(self.scale) if self.scale else self.d**-0.5
        shapes = {name: given for name, given in self.shapes().items() if name in (*LEAVES, "grad_output", "grad_lse")}
        tensors = draw_tokens(draw, shapes, self.scores, self.shift, scale)
        listed: dict[str, Any] = {"block_table": self._table(draw), "key_lengths": self.key_lengths}
        if self.packed:
            listed["cu_seqlens_q"] = boundaries(self.packed)
        return tensors | {name: torch.from_numpy(np.array(given, dtype=np.int32)) for name, given in listed.items()}

    def _table(self, draw: Source) -> npt.NDArray[np.int64]:
        """Return the table: the pages of each sequence, in an order that is drawn, and what stands behind them."""
        (num_blocks, *_), shape = self.shapes()["key_pages"][1], self.shapes()["block_table"][1]
        order = np.argsort(draw.uniform("order", (num_blocks,)))
        behind = {"minus": -1, "beyond": num_blocks + BEYOND}
        table = (draw.uniform("unused", shape) * num_blocks).astype(np.int64)
        if self.unused in behind:
            table[:] = behind[self.unused]
        used = 0
        for b, (count, own) in enumerate(zip(self.pages, self.own_pages, strict=True)):
            table[b, count - own : count] = order[used : used + own]
            table[b, : count - own] = table[0, : count - own]
            used += own
            if self.twice and count:
                table[b, count - 1] = table[b, 0]
        return table

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the true output and lse, those of each sequence's queries over its keys, put in order, and the true
        gradients."""
        x = {name: numbers(tensor) for name, tensor in inputs.items()}
        found = {name: np.zeros(self.shapes()[name][1]) for name in ("output", "lse")}
        options: dict[str, Any] = {"is_causal": self.causal, "causal_alignment": "lower_right", "enable_gqa": True}
        options["scale"] = float(self.scale) if self.scale else None
        starts = boundaries(self.packed or [1] * len(self.key_lengths))
        for b in range(len(self.key_lengths)):
            slots = self._slots(x["block_table"], b)
            keys, values = (x[pages].reshape(-1, *x[pages].shape[2:])[slots] for pages in LEAVES[1:])
            keys, values = (tokens.swapaxes(0, 1)[None] for tokens in (keys, values))
            place = slice(starts[b], starts[b + 1])
            query = alone(x["query"], place) if self.packed else x["query"][b : b + 1]
            exact = attention(query, keys, values, **options)
            found["output"][place] = exact.output[0].swapaxes(0, 1) if self.packed else exact.output
            found["lse"][(slice(None), place) if self.packed else b] = exact.lse[0]
        return found | (self._gradients(x) if self.grad else {})

    def _slots(self, table: npt.NDArray[Any], b: int) -> npt.NDArray[np.int64]:
        """Return where the keys of a sequence lie in the pool, in order: page times page_size plus slot."""
        j = np.arange(self.key_lengths[b])
        slots: npt.NDArray[np.int64] = table[b, j // self.page].astype(np.int64) * self.page + j % self.page
        return slots

    def _gradients(self, x: Arrays) -> Arrays:
        """Return the true gradients: those of all sequences over the pool as one sequence of keys that they share, of
        which each row sees the slots of its own keys. So what the readers of a slot give is added up before it is
        rounded. A page that a row of the table names twice stands there twice, and what its two places give is
        equal, or 0 for one of them: their sum rounds nothing."""
        counts = self.packed or [self.q] * len(self.key_lengths)
        pools = [x[name].reshape(-1, *x[name].shape[2:]).swapaxes(0, 1)[None] for name in LEAVES[1:]]
        if self.twice:
            pools = [np.concatenate([pool, pool], 2) for pool in pools]
        visible = np.zeros((len(counts), 1, max(counts), pools[0].shape[2]), dtype=np.bool_)
        for b, (count, length) in enumerate(zip(counts, self.key_lengths, strict=True)):
            slots = self._slots(x["block_table"], b)
            if self.twice and length:
                slots[(self.pages[b] - 1) * self.page :] += len(x["key_pages"]) * self.page
            for i in range(count):
                visible[b, 0, i, slots[: max(0, length - count + i + 1)] if self.causal else slots] = True
        query, flow = self._by_sequence(x["query"]), self._by_sequence(x["grad_output"])
        grad_lse = None if self.grad != "lse" else x["grad_lse"]
        if self.packed and grad_lse is not None:
            grad_lse = self._by_sequence(grad_lse.T[..., None])[..., 0]
        scale, (keys, values) = float(self.scale) if self.scale else None, pools
        exact = backward(query, keys, values, flow, grad_lse=grad_lse, attn_mask=visible, scale=scale, enable_gqa=True)
        of_query = exact.query
        if self.packed:
            of_query = np.concatenate([q[:, :n].swapaxes(0, 1) for q, n in zip(of_query, counts, strict=True)])
        of_pools = (gradient[0].swapaxes(0, 1) for gradient in (exact.key, exact.value))
        shapes = (x[name].shape for name in LEAVES[1:])
        key, value = (g.reshape(-1, *shape).sum(0) for g, shape in zip(of_pools, shapes, strict=True))
        return {"grad_query": of_query, "grad_key_pages": key, "grad_value_pages": value}

    def _by_sequence(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return packed tokens (total_q, heads, dim) as (batch, heads, longest, dim), 0 behind the last of a sequence;
        tokens that are not packed as they are."""
        if not self.packed:
            return tokens
        spread = np.zeros((len(self.packed), tokens.shape[1], max(self.packed), tokens.shape[2]))
        starts = boundaries(self.packed)
        for b, count in enumerate(self.packed):
            spread[b, :, :count] = alone(tokens, slice(starts[b], starts[b + 1]))[0]
        return spread

    def _hides_rows(self) -> bool:
        """Whether the diagonal leaves a row of a sequence that has keys without one."""
        counts = self.packed or [self.q] * len(self.key_lengths)
        return any(queries > length > 0 for queries, length in zip(counts, self.key_lengths, strict=True))

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "paged.packed-queries": bool(self.packed),
            "paged.causal": self.causal,
            "mask.fully-masked-row": self.causal and self._hides_rows(),
            "paged.length-range": 0 in self.key_lengths or not self.spare,
            "paged.page-size": self.page != USUAL_PAGE,
            "paged.absent": True,
            "paged.order": True,
            "paged.backward": bool(self.grad),
            "grouped.head-map": self.hkv not in (0, self.hq),
            "attention.value-dim": bool(self.dv),
            "attention.scale-explicit": bool(self.scale),
            "accuracy.output-within-budget": True,
            "accuracy.lse-within-budget": True,
            "accuracy.gradients-within-budget": bool(self.grad),
        }
        return tuple(rule for rule, decides in table.items() if decides)
