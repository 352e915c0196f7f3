"""A problem: the description of one attention call, from which its inputs can be made again.

A problem has one string, such as `q=17/k=33/d=64/hq=4/hkv=2/dtype=bfloat16/causal/seed=3`; what it does not mention
has its default. `Problem.parse` reads it, `str` writes it, and the two are inverse.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple

from attnspec.spec.alibi import Alibi
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError
from attnspec.spec.window import Window

CAUSAL_ALIGNMENTS = ("upper_left", "lower_right")
MASK_KINDS = ("bool", "float")
MASK_CONTENTS = (
    "random",
    "padding",
    "empty_rows",
    "empty_head",
    "leading",
    "all",
    "bias",
    "low",
    "sentinel",
    "low_rows",
)
RANGES = dict.fromkeys(("head_dim", "value_dim", "q_heads", "kv_heads"), (1, 65536))  # field: smallest, largest
RANGES |= dict.fromkeys(("q_len", "k_len", "batch", "kv_batch"), (0, 65536)) | {"seed": (0, 2**63 - 1)}
FOLLOWS = {"value_dim": "head_dim", "kv_batch": "batch", "kv_heads": "q_heads"}  # field: the one it defaults to
FINITE_CONTENTS = ("low", "sentinel", "low_rows")  # of a float mask: finite, so that nothing is hidden
KEYS = ("normal", "equal", "growing", "falling")
VALUES = ("normal", "uniform", "spiky", "constant", "sign_sorted", "huge", "tiny")
LENGTHS = ("ragged", "short", "zero", "full")
SINKS = ("normal", "high", "low")
GRADS = ("output", "lse")


class Mask(NamedTuple):
    """What an `attn_mask` is: `kind.shape.content`, such as `bool.b11k.padding`.

    kind: `bool` or `float`. shape: a letter a dimension, b (batch), h (query heads), q, k, or 1 where it broadcasts;
    one to four letters, aligned at the right. content: see `golden.inputs`.
    """

    kind: str
    shape: str
    content: str

    def __str__(self) -> str:
        return ".".join(self)

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Read `kind.shape.content`. Raises InputError."""
        parts = text.split(".")
        right = "use kind.shape.content, such as bool.b11k.padding"
        if len(parts) != 3:
            raise InputError(f"mask {text!r}: {right}")
        mask = cls(*parts)
        if mask.kind not in MASK_KINDS:
            raise InputError(f"mask {text!r}: unknown kind {mask.kind!r}; use one of {', '.join(MASK_KINDS)}")
        fits = 1 <= len(mask.shape) <= 4 and all(
            letter in ("1", place) for letter, place in zip(reversed(mask.shape), "kqhb", strict=False)
        )
        if not fits:
            raise InputError(f"mask {text!r}: shape {mask.shape!r} does not fit bhqk, aligned at the right")
        if mask.content not in MASK_CONTENTS:
            raise InputError(f"mask {text!r}: unknown content {mask.content!r}; use one of {', '.join(MASK_CONTENTS)}")
        return mask


@dataclass(frozen=True)
class Problem:
    """One attention call. Lengths are numbers of tokens; `None` in a field whose default depends on another stands for
    it.

    batch, kv_batch (batch, or 1 to broadcast), q_heads, kv_heads, q_len, k_len, head_dim, value_dim: sizes. dtype: of
    all tensors. mask, causal (`upper_left`, `lower_right`), scale: options of the call. dropout: its `dropout_p`, 0 to
    1; None, and 0, is none. key_lengths: how many keys exist, see `golden.inputs`; None is all. window: the call's
    `window_size`, with a corner where there is no causal triangle to give it one. softcap: the call's; None, and 0, is
    none. sinks: how the sinks of the heads lie to the scores, see `golden.inputs`; None is none. alibi: what its
    `alibi_slopes` mean; None is none. grad: through what gradients flow back, `output`, or `lse` for both output and
    lse; None asks for none. scores: factor on the query, so the standard deviation of the scaled scores at the default
    scale. shift: added to every scaled score. keys, values: distributions of the key and value tensors, see
    `golden.inputs`. seed: of the inputs. Raises InputError where they do not fit each other.
    """

    q_len: int
    k_len: int
    head_dim: int
    value_dim: int = -1
    batch: int = 1
    kv_batch: int = -1
    q_heads: int = 1
    kv_heads: int = -1
    dtype: str = "float32"
    mask: Mask | None = None
    dropout: float | None = None
    causal: str | None = None
    scale: float | None = None
    key_lengths: str | None = None
    sinks: str | None = None
    window: Window | None = None
    alibi: Alibi | None = None
    softcap: float | None = None
    grad: str | None = None
    scores: float = 1.0
    shift: float = 0.0
    keys: str = "normal"
    values: str = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, other in FOLLOWS.items():
            if getattr(self, name) == -1:
                object.__setattr__(self, name, getattr(self, other))
        object.__setattr__(self, "dtype", format_named(self.dtype).name)
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} is {getattr(self, name)}: use {low} to {high}")
        if self.kv_batch not in (self.batch, 1):
            raise InputError(f"kv_batch is {self.kv_batch}: use the batch, {self.batch}, or 1")
        if self.q_heads % self.kv_heads:
            raise InputError(f"{self.q_heads} query heads over {self.kv_heads} key heads: use a multiple")
        for name in ("scale", "scores", "shift"):
            if not math.isfinite(getattr(self, name) or 0.0):
                raise InputError(f"{name} is {getattr(self, name)}: use a finite number")
        if self.dropout is not None and not 0 <= self.dropout <= 1:
            raise InputError(f"dropout is {self.dropout}: use a probability from 0 to 1")
        if self.softcap is not None and not 0 <= self.softcap < math.inf:
            raise InputError(f"softcap is {self.softcap}: use a number of 0 or more")
        for name in ("dropout", "softcap"):
            object.__setattr__(self, name, getattr(self, name) or None)
        if self.causal not in (None, *CAUSAL_ALIGNMENTS):
            raise InputError(f"causal is {self.causal!r}: use one of {', '.join(CAUSAL_ALIGNMENTS)}")
        if self.key_lengths not in (None, *LENGTHS):
            raise InputError(f"lengths is {self.key_lengths!r}: use one of {', '.join(LENGTHS)}")
        if self.sinks not in (None, *SINKS):
            raise InputError(f"sinks is {self.sinks!r}: use one of {', '.join(SINKS)}")
        if self.window is not None:
            object.__setattr__(self, "window", self._placed(self.window))
        if self.alibi is not None:
            object.__setattr__(self, "alibi", self.alibi._replace(corner=self.alibi.corner or self.corner))
            if self.alibi.learned and self.grad is None:
                raise InputError("alibi is learned and grad is None: ask for gradients, or leave learned out")
        if self.grad not in (None, *GRADS):
            raise InputError(f"grad is {self.grad!r}: use one of {', '.join(GRADS)}")
        if self.keys not in KEYS:
            raise InputError(f"keys is {self.keys!r}: use one of {', '.join(KEYS)}")
        if self.values not in VALUES:
            raise InputError(f"values is {self.values!r}: use one of {', '.join(VALUES)}")

    def _placed(self, window: Window) -> Window:
        """Return the window with a corner of its own only where there is no causal triangle. Raises InputError."""
        if min(window.size) < -1 or max(window.size) > 65536 or window.corner not in (None, *CAUSAL_ALIGNMENTS):
            raise InputError(f"window is {tuple(window)}: use -1 to 65536 on either side, and a corner or None")
        if self.causal and window.corner not in (None, self.causal):
            raise InputError(f"window is at the {window.corner} corner and causal is {self.causal}: use one corner")
        return window._replace(corner=None if self.causal else window.corner or CAUSAL_ALIGNMENTS[0])

    @property
    def corner(self) -> str:
        """Where the diagonal of causal triangle and window is, `upper_left` where there is neither."""
        return self.causal or (self.window and self.window.corner) or CAUSAL_ALIGNMENTS[0]

    def __str__(self) -> str:
        following = {name: getattr(self, other) for name, other in FOLLOWS.items()}
        unsaid = _defaults() | following | {"dtype": None}
        given = {name: getattr(self, name) for name in TOKENS} | {"alibi": self._alibi_word}
        said = ((token, given[name]) for name, token in TOKENS.items() if given[name] != unsaid[name])
        return "/".join(_write(token, value) for token, value in said)

    @property
    def _alibi_word(self) -> str | None:
        return self.alibi and self.alibi.word(self.corner)

    @classmethod
    def parse(cls, text: str) -> Problem:
        """Read a problem's string. Raises InputError that names the token at fault."""
        given: dict[str, Any] = {}
        for part in text.split("/"):
            token, _, value = part.partition("=")
            name = NAMES.get(token)
            if name is None:
                raise InputError(f"unknown token {part!r} in {text!r}: use {', '.join(NAMES)}")
            if name in given:
                raise InputError(f"token {token!r} stands twice in {text!r}")
            try:
                given[name] = READERS[name](value)
            except InputError:
                raise
            except ValueError:
                raise InputError(f"token {part!r} in {text!r} has no readable value") from None
        missing = [token for token in ("q", "k", "d") if NAMES[token] not in given]
        if missing:
            raise InputError(f"{text!r} lacks {', '.join(f'{token}=' for token in missing)}")
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object (schema `case`)."""
        words = {name: str(x) if (x := getattr(self, name)) else None for name in ("mask", "window")}
        return asdict(self) | words | {"alibi": self._alibi_word}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Problem:
        """Inverse of `to_json`. Raises InputError."""
        readers = {"mask": Mask.parse, "window": Window.parse, "alibi": Alibi.parse}
        return cls(**data | {name: read(data[name]) if data[name] else None for name, read in readers.items()})

    def features(self) -> frozenset[str]:
        """Return the optional parts of the spec that the call needs, as `spec.capabilities` names them."""
        needs = {
            "is_causal": self.causal is not None,
            "scale": self.scale is not None,
            "enable_gqa": self.q_heads != self.kv_heads,
            "value_dim": self.value_dim != self.head_dim,
            "kv_broadcast": self.kv_batch != self.batch,
            "empty": 0 in (self.batch, self.q_len, self.k_len),
            "key_lengths": self.key_lengths is not None,
            "sinks": self.sinks is not None,
            "window_size": self.window is not None,
            "alibi_slopes": self.alibi is not None,
            "softcap": self.softcap is not None,
            "backward": self.grad is not None,
            "grad_alibi_slopes": self.alibi is not None and self.alibi.learned,
            "dropout_p": self.dropout is not None,
            "return_lse": self.grad == "lse",
        }
        mask = {f"attn_mask.{self.mask.kind}", f"attn_mask.rank{len(self.mask.shape)}"} if self.mask else set()
        return frozenset(mask | {name for name, needed in needs.items() if needed})

    def but(self, **changes: Any) -> Problem:
        """Return the problem with some fields changed; value_dim, kv_batch and kv_heads follow what they equal, and
        the
        corner of a window that of the causal triangle, the old one where that is taken away."""
        following: dict[str, Any] = {
            name: -1 for name, other in FOLLOWS.items() if getattr(self, name) == getattr(self, other)
        }
        if self.window and "causal" in changes:
            following["window"] = self.window._replace(corner=None if changes["causal"] else self.corner)
        if self.alibi and self.alibi.corner == self.corner and changes.keys() & {"causal", "window"}:
            following["alibi"] = self.alibi._replace(corner=None)
        return replace(self, **following | changes)

    def at_corner(self, corner: str) -> Problem:
        """Return the problem with causal triangle, window and ALiBi, where it has them, at another corner."""
        moved: dict[str, Any] = {"alibi": self.alibi._replace(corner=corner)} if self.alibi else {}
        if self.causal:
            moved["causal"] = corner
        elif self.window:
            moved["window"] = self.window._replace(corner=corner)
        return self.but(**moved)


@cache
def _defaults() -> dict[str, Any]:
    """Return the default of every field: what a string need not say."""
    return {f.name: f.default for f in fields(Problem)}


def _write(token: str, value: object) -> str:
    if (token, value) in (("causal", "upper_left"), ("sinks", "normal"), ("grad", "output")):
        return token
    return f"{token}={value:g}" if isinstance(value, float) and float(f"{value:g}") == value else f"{token}={value}"


def _number(text: str) -> float:
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError
    return int(text)


TOKENS = {  # field: token, in the order of the string
    "batch": "b",
    "kv_batch": "bkv",
    "q_heads": "hq",
    "kv_heads": "hkv",
    "q_len": "q",
    "k_len": "k",
    "head_dim": "d",
    "value_dim": "dv",
    "dtype": "dtype",
    "mask": "mask",
    "dropout": "dropout",
    "causal": "causal",
    "scale": "scale",
    "key_lengths": "lengths",
    "sinks": "sinks",
    "window": "window",
    "alibi": "alibi",
    "softcap": "softcap",
    "grad": "grad",
    "scores": "scores",
    "shift": "shift",
    "keys": "keys",
    "values": "values",
    "seed": "seed",
}
NAMES = {token: name for name, token in TOKENS.items()}
READERS: dict[str, Any] = dict.fromkeys(TOKENS, _whole) | {
    "dtype": str,
    "mask": Mask.parse,
    "dropout": _number,
    "causal": lambda text: text or "upper_left",
    "scale": _number,
    "key_lengths": str,
    "sinks": lambda text: text or "normal",
    "window": Window.parse,
    "alibi": Alibi.parse,
    "softcap": _number,
    "grad": lambda text: text or "output",
    "scores": _number,
    "shift": _number,
    "keys": str,
    "values": str,
}
