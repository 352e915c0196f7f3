"""Problems: a string and JSON for each, read and written, and bad ones refused in one line."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from attnspec.spec import schemas
from attnspec.spec.dtypes import ALIASES, FORMATS
from attnspec.spec.errors import InputError
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, GRADS, LENGTHS, MASK_CONTENTS, MASK_KINDS, VALUES, Mask, Problem
from attnspec.spec.window import Window

SIZES = st.integers(1, 65536)
SIDES = st.integers(-1, 65536)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
MASKS = st.builds(
    lambda kind, letters, rank, content: Mask(kind, "".join(letters)[-rank:], content),
    st.sampled_from(MASK_KINDS),
    st.tuples(*(st.sampled_from((letter, "1")) for letter in "bhqk")),
    st.integers(1, 4),
    st.sampled_from(MASK_CONTENTS),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw a problem within the sizes of the schema."""
    kv_heads, batch = draw(st.integers(1, 256)), draw(st.integers(0, 65536))
    return Problem(
        q_len=draw(st.integers(0, 65536)),
        k_len=draw(st.integers(0, 65536)),
        head_dim=draw(SIZES),
        value_dim=draw(SIZES | st.just(-1)),
        batch=batch,
        kv_batch=draw(st.sampled_from((batch, 1, -1))),
        q_heads=kv_heads * draw(st.integers(1, 256)),
        kv_heads=kv_heads,
        dtype=draw(st.sampled_from((*FORMATS, *ALIASES))),
        mask=draw(st.none() | MASKS),
        dropout=draw(st.none() | st.floats(0, 1)),
        key_lengths=draw(st.sampled_from((None, *LENGTHS))),
        grad=draw(st.sampled_from((None, *GRADS))),
        causal=(causal := draw(st.sampled_from((None, *CAUSAL_ALIGNMENTS)))),
        window=draw(st.none() | st.builds(Window, SIDES, SIDES, st.sampled_from((causal, None)))),
        softcap=draw(st.none() | st.floats(0, 1e300)),
        scale=draw(st.none() | NUMBERS),
        scores=draw(NUMBERS),
        values=draw(st.sampled_from(VALUES)),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(problems())
def test_a_problem_is_the_same_after_writing_and_reading(problem: Problem) -> None:
    assert Problem.parse(str(problem)) == problem
    assert str(Problem.parse(str(problem))) == str(problem)
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


@given(problems())
def test_the_json_of_a_problem_follows_the_schema(problem: Problem) -> None:
    validator = Draft202012Validator(schemas.schema("case")["$defs"]["problem"])
    assert list(validator.iter_errors(problem.to_json())) == []


def test_every_mask_follows_the_schema() -> None:
    pattern = re.compile(schemas.schema("case")["$defs"]["problem"]["properties"]["mask"]["pattern"])
    full = ["".join(letters) for letters in product(*((letter, "1") for letter in "bhqk"))]
    shapes = {shape[-rank:] for shape in full for rank in range(1, 5)}
    for mask in product(MASK_KINDS, shapes, MASK_CONTENTS):
        assert pattern.search(str(Mask(*mask)))
        assert Mask.parse(str(Mask(*mask))) == Mask(*mask)


def test_what_a_string_leaves_out_has_its_default() -> None:
    problem = Problem.parse("q=17/k=33/d=64/hq=4/hkv=2/dtype=bf16/causal/seed=3")
    assert problem == Problem(17, 33, 64, q_heads=4, kv_heads=2, dtype="bfloat16", causal="upper_left", seed=3)
    assert (problem.value_dim, problem.batch, problem.kv_batch, problem.scale) == (64, 1, 1, None)
    assert Problem.parse("q=1/k=1/d=1/scale=0").scale == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "q=1/k=1",
        "q=1/k=1/d=1/q=2",
        "q=1/k=1/d=1/window=3",
        "q=1/k=1/d=1/\n",
        "q=one/k=1/d=1",
        "q=/k=1/d=1",
        "q=-1/k=1/d=1",
        "q=1.5/k=1/d=1",
        "q=1/k=1/d=1/hq=3/hkv=2",
        "q=1/k=1/d=1/b=3/bkv=2",
        "q=1/k=1/d=1/dtype=float8",
        "q=1/k=1/d=1/dtype=",
        "q=1/k=1/d=1/causal=left",
        "q=1/k=1/d=1/scale=big",
        "q=1/k=1/d=1/values=odd",
        "q=1/k=1/d=1/lengths=odd",
        "q=1/k=1/d=1/grad=input",
        "q=1/k=1/d=1/dropout=1.5",
        "q=1/k=1/d=1/dropout=nan",
        "q=1/k=1/d=1/softcap=-1",
        "q=1/k=1/d=1/softcap=inf",
        "q=1/k=1/d=1/mask=bool",
        "q=1/k=1/d=1/mask=bool.b11k",
        "q=1/k=1/d=1/mask=int.b11k.padding",
        "q=1/k=1/d=1/mask=bool.kq.padding",
        "q=1/k=1/d=1/mask=bool..padding",
        "q=1/k=1/d=1/mask=bool.11111.padding",
        "q=1/k=1/d=1/mask=bool.b11k.none",
        "q=1/k=1/d=1/mask=bool.b11k.padding.more",
    ],
)
def test_a_bad_problem_is_an_input_error_of_one_line(text: str) -> None:
    with pytest.raises(InputError) as error:
        Problem.parse(text)
    assert one_line(error.value)


def one_line(error: InputError) -> bool:
    """Whether the message is one line that is not empty."""
    return len(str(error).splitlines()) == 1
