"""What a backend says it can do: its capabilities, and whether a problem lies within them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from attnspec.spec.alibi import ALIBI_FORMS
from attnspec.spec.dtypes import FORMATS
from attnspec.spec.errors import InputError
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, Problem

FEATURES = {
    "attn_mask.bool": "a boolean attn_mask, True takes part",
    "attn_mask.float": "an attn_mask that is added to the scaled scores",
    "attn_mask.rank1": "an attn_mask of shape (k_len,)",
    "attn_mask.rank2": "an attn_mask of shape (q_len, k_len)",
    "attn_mask.rank3": "an attn_mask of shape (heads, q_len, k_len)",
    "attn_mask.rank4": "an attn_mask of shape (batch, heads, q_len, k_len)",
    "is_causal": "the causal triangle",
    "scale": "an explicit scale",
    "enable_gqa": "fewer key heads than query heads",
    "return_lse": "the log of the sum of exponentials of each row",
    "value_dim": "values of another dimension than the keys",
    "kv_broadcast": "one key and value batch for every query batch",
    "empty": "no queries or no keys",
    "key_lengths": "how many keys of each batch element exist",
    "sinks": "a score of each head that takes a share of the weight",
    "backward": "gradients of query, key, value, an additive mask and sinks",
    "grad_alibi_slopes": "a gradient of the slopes, beside the others",
    "dropout_p": "dropout on the weights",
    "window_size": "a window of keys around the diagonal",
    "alibi_slopes": "a bias that falls with the distance, by a slope for each head",
    "softcap": "scores capped by a tanh",
}
LATER = (  # what no default claims: a backend declares it by name
    "key_lengths",
    "window_size",
    "softcap",
    "sinks",
    "alibi_slopes",
    "backward",
    "grad_alibi_slopes",
    "dropout_p",
)
ACCURACIES = ("fused", "eager")
LSE_BASES = ("e", "2")
COSTS = ("native", "emulated")


@dataclass(frozen=True)
class Capabilities:
    """What a backend declares. Declared and then raised is a failure; undeclared is `not_supported`.

    features: names of `FEATURES`, or `attn_mask` for all its kinds and ranks; by default all but `LATER`. dtypes,
    devices: by PyTorch's names. head_dims: smallest and largest. causal_alignment, alibi_form, alibi_alignment (None
    for that of causal_alignment), lse_base: dialects. accuracy: the class of the error budget for float32 and 16-bit
    dtypes. deterministic: run to run bit-equal. batch_invariant: a batch row gives the same bits in any batch.
    contains_nan: NaN in masked keys and values does not come through. refuses: combinations of features ruled out.
    cost: `emulated` where an interpreter or an emulator runs the kernel, which is then given small calls. Raises
    InputError for a name that the spec does not know.
    """

    features: tuple[str, ...] = tuple(name for name in FEATURES if name not in LATER)
    dtypes: tuple[str, ...] = tuple(FORMATS)
    head_dims: tuple[int, int] = (1, 256)
    causal_alignment: str = "upper_left"
    alibi_form: str = "symmetric"
    alibi_alignment: str | None = None
    lse_base: str = "e"
    accuracy: str = "fused"
    deterministic: bool = True
    batch_invariant: bool = False
    contains_nan: bool = False
    devices: tuple[str, ...] = ("cpu",)
    refuses: tuple[tuple[str, ...], ...] = ()
    cost: str = "native"

    def __post_init__(self) -> None:
        for feature in (*self.features, *(name for names in self.refuses for name in names)):
            if not any(covers(feature, known) for known in FEATURES):
                raise InputError(f"capabilities: unknown feature {feature!r}; use one of {', '.join(FEATURES)}")
        if not (len(self.head_dims) == 2 and 1 <= self.head_dims[0] <= self.head_dims[1] <= 65536):
            raise InputError(f"capabilities: head_dims has {self.head_dims!r}; use smallest and largest, 1 to 65536")
        for name in ("features", "dtypes", "devices"):
            given = getattr(self, name)
            if len(set(given)) != len(given) or (not given and name != "features"):
                raise InputError(f"capabilities: {name} has {given!r}; name each once, and at least one")
        for field, value, known in (
            ("causal_alignment", self.causal_alignment, CAUSAL_ALIGNMENTS),
            ("alibi_form", self.alibi_form, ALIBI_FORMS),
            ("alibi_alignment", self.alibi_corner, CAUSAL_ALIGNMENTS),
            ("lse_base", self.lse_base, LSE_BASES),
            ("accuracy", self.accuracy, ACCURACIES),
            ("cost", self.cost, COSTS),
            *(("dtypes", dtype, tuple(FORMATS)) for dtype in self.dtypes),
        ):
            if value not in known:
                raise InputError(f"capabilities: {field} has {value!r}; use one of {', '.join(known)}")

    @property
    def alibi_corner(self) -> str:
        """Where the diagonal of ALiBi is: `alibi_alignment`, or else `causal_alignment`. Rule: `alibi.offset`."""
        return self.causal_alignment if self.alibi_alignment is None else self.alibi_alignment

    def lacks(self, problem: Problem, return_lse: bool = False) -> str | None:
        """Return what of the problem lies outside these capabilities, in words; None where all is supported."""
        needs = problem.features() | ({"return_lse"} if return_lse else set())
        for need in sorted(needs):
            if not any(covers(feature, need) for feature in self.features):
                return f"{need} ({FEATURES[need]}) is not declared"
        for refused in self.refuses:
            if all(any(covers(name, need) for need in needs) for name in refused):
                return f"{' with '.join(refused)} is declared as refused"
        if problem.dtype not in self.dtypes:
            return f"dtype {problem.dtype} is not declared"
        low, high = self.head_dims
        if not all(low <= dim <= high for dim in (problem.head_dim, problem.value_dim)):
            return f"head_dim outside the declared {low} to {high}"
        square = problem.q_len == problem.k_len and problem.key_lengths is None  # where the two corners are one
        diagonal = problem.causal or problem.window
        if diagonal and not square and problem.corner != self.causal_alignment:
            return f"the case has causal_alignment {problem.corner}, declared {self.causal_alignment}"
        if problem.alibi and not square and problem.alibi.corner != self.alibi_corner:
            return f"the case measures alibi from {problem.alibi.corner}, declared {self.alibi_corner}"
        if problem.alibi and problem.alibi.form != self.alibi_form:
            return f"the case has alibi_form {problem.alibi.form}, declared {self.alibi_form}"
        return None

    def fitted(self, problem: Problem) -> Problem:
        """Return the problem in the declared dialect: its corner of causal triangle, window and ALiBi, its form of
        ALiBi."""
        placed = problem.at_corner(self.causal_alignment)
        if placed.alibi is None:
            return placed
        return placed.but(alibi=placed.alibi._replace(form=self.alibi_form, corner=self.alibi_corner))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object (schema `capabilities`)."""
        return {name: _lists(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Capabilities:
        """Inverse of `to_json`. Raises InputError."""
        return cls(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def _lists(value: Any) -> Any:
    return [_lists(x) for x in value] if isinstance(value, tuple) else value


def covers(feature: str, need: str) -> bool:
    """Whether a feature's name is that of the need, or of a group that holds it (`attn_mask` and `attn_mask.bool`)."""
    return need == feature or need.startswith(feature + ".")


class Backend(Protocol):
    """A kernel that says what it can do. No base class: any callable object with these two attributes is one."""

    name: str
    capabilities: Capabilities

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Take query, key and value, and options by the names of `attnspec.spec.call.Call`; return the output, or with
        `return_lse=True` a pair (output, lse)."""
        ...
