"""The spec room: chapters and rules, schemas, and the vocabulary that they share with the code."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from attnspec.spec import rules, schemas
from attnspec.spec.capabilities import ACCURACIES, FEATURES, LSE_BASES, Capabilities, covers
from attnspec.spec.dtypes import ALIASES, FORMATS, format_named
from attnspec.spec.errors import InputError
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, MASK_CONTENTS, MASK_KINDS, VALUES, Mask, Problem
from attnspec.spec.profiles import PROFILES, profile

ROOT = Path(__file__).parent.parent
ROOMS = ("spec", "reference", "golden", "conformance", "implementations")
PREFIXES = {  # chapter: the first words of its rules
    "notation": "notation",
    "attention": "attention",
    "masks": "mask",
    "softmax": "softmax",
    "grouped-heads": "grouped",
    "kv-cache": ("key-lengths", "kv-cache"),
    "flash-attention": "flash",
    "multi-head": "multi-head",
    "additive-attention": "additive",
    "dropout": "dropout",
    "backward": "backward",
    "accuracy": "accuracy",
    "contract": "contract",
    "profiles": "profile",
}
RULE_ID = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z0-9]+(-[a-z0-9]+)*")
WORDS = [word for words in PREFIXES.values() for word in ([words] if isinstance(words, str) else words)]
MENTION = re.compile(rf"`((?:{'|'.join(WORDS)})\.[a-z0-9-]+)`")
MODULE = re.compile(r"`attnspec\.((?:spec|reference|golden)\.[A-Za-z_.]+)`")


# ---------------------------------------------------------------- chapters and rules


def test_every_heading_of_a_rule_is_read_as_one() -> None:
    headings = [
        line for chapter in rules.CHAPTERS for line in re.findall(r"^###.*$", rules.chapter_text(chapter), re.M)
    ]
    assert headings == [f"### {rule_id}" for rule_id in rules.all_rules()]


def test_every_markdown_file_of_the_spec_is_a_chapter() -> None:
    assert {path.stem for path in (ROOT / "spec").glob("*.md")} == set(rules.CHAPTERS)


def test_rule_ids_are_well_formed_and_fit_their_chapter() -> None:
    for rule in rules.all_rules().values():
        assert RULE_ID.fullmatch(rule.id), rule.id
        assert rule.id.partition(".")[0] in PREFIXES[rule.chapter], f"{rule.id} stands in chapter {rule.chapter}"


def test_the_parser_rejects_two_strengths_and_a_second_rule_of_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, complaint in (
        ("### mask.x\nIt **MUST** or **MAY**.\n", "2 bold strengths"),
        ("### mask.x\nIt is.\n\nIt **MUST**.\n", "0 bold strengths"),
        ("### mask.x\nIt **MUST**.\n\n### mask.x\nIt **MAY**.\n", "stands twice"),
    ):
        monkeypatch.setattr(rules, "CHAPTERS", ("masks",))
        monkeypatch.setattr(rules, "chapter_text", lambda chapter, text=text: text)
        with pytest.raises(ValueError, match=complaint):
            rules.all_rules.__wrapped__()


@pytest.mark.parametrize("chapter", rules.CHAPTERS)
def test_bold_strengths_stand_in_rules_only(chapter: str) -> None:
    of_rules = [rule for rule in rules.all_rules().values() if rule.chapter == chapter]
    spare = 3 if chapter == "notation" else 0  # where the three words are defined
    assert len(rules.STRENGTH.findall(rules.chapter_text(chapter))) == len(of_rules) + spare


@pytest.mark.parametrize("chapter", rules.CHAPTERS)
def test_lines_of_a_chapter_fit_120_columns(chapter: str) -> None:
    prose = [line for line in rules.chapter_text(chapter).splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in prose if len(line) > 120] == []


def test_every_rule_that_is_mentioned_exists() -> None:
    paths = [path for room in ROOMS for ending in ("py", "md") for path in (ROOT / room).rglob(f"*.{ending}")]
    known = rules.all_rules()
    dangling = [
        f"{path.relative_to(ROOT)}: {rule_id}"
        for path in sorted(paths)
        for rule_id in MENTION.findall(path.read_text(encoding="utf-8"))
        if rule_id not in known
    ]
    assert dangling == []


@pytest.mark.parametrize("chapter", rules.CHAPTERS)
def test_code_that_a_chapter_links_exists(chapter: str) -> None:
    for path in MODULE.findall(rules.chapter_text(chapter)):
        assert resolves(f"attnspec.{path}"), f"{chapter}.md links {path}"


def resolves(path: str) -> bool:
    """Whether a dotted path leads to a module or to an attribute of one."""
    found: Any = importlib.import_module("attnspec.spec")
    parts = path.split(".")
    for end in range(2, len(parts) + 1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            if not hasattr(found, parts[end - 1]):
                return False
            found = getattr(found, parts[end - 1])
    return True


def test_an_unknown_rule_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"unknown rule 'mask\.nothing'"):
        rules.rule("mask.nothing")


def test_chapters_name_every_profile_and_every_capability() -> None:
    table_of_profiles = re.findall(r"^\| `([a-z]+)` \|", rules.chapter_text("profiles"), re.M)
    table_of_capabilities = re.findall(r"^\| `([a-z_]+)` \|", rules.chapter_text("contract"), re.M)
    assert table_of_profiles == list(PROFILES)
    assert table_of_capabilities == [field.name for field in fields(Capabilities)]


# ---------------------------------------------------------------- schemas


@pytest.mark.parametrize("name", schemas.NAMES)
def test_a_schema_is_valid_and_has_a_stable_id(name: str) -> None:
    Draft202012Validator.check_schema(schemas.schema(name))
    assert schemas.schema(name)["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schemas.schema(name)["$id"] == f"urn:attnspec:schema:{name}:1"


@pytest.mark.parametrize("name", schemas.NAMES)
def test_objects_of_a_schema_are_closed_and_their_fields_described(name: str) -> None:
    for place, part in parts_of(schemas.schema(name), name):
        assert part.get("description"), f"{place} has no description"
        if part.get("type") == "object" or "properties" in part:
            assert part.get("additionalProperties") is False, f"{place} is open"
            assert set(part.get("required", ())) <= set(part["properties"]), f"{place} requires what it does not have"


@pytest.mark.parametrize("name", schemas.NAMES)
def test_strings_and_lists_of_a_schema_are_bounded(name: str) -> None:
    for place, part in parts_of(schemas.schema(name), name):
        kinds = part.get("type", ())
        if "array" in kinds and "prefixItems" not in part and name != "golden-manifest":
            assert "maxItems" in part or "uniqueItems" in part, f"{place} has no bound"
        if "string" in kinds and "enum" not in part:
            assert {"maxLength", "pattern"} & set(part), f"{place} has no bound"


def parts_of(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema inside a schema, itself included, with its place; branches that only require a field apart."""
    yield place, schema
    for word in ("properties", "$defs"):
        for name, part in schema.get(word, {}).items():
            yield from parts_of(part, f"{place}.{name}")
    for word in ("anyOf", "oneOf", "prefixItems"):
        for i, part in enumerate(schema.get(word, ())):
            if set(part) != {"required"}:
                yield from parts_of(part, f"{place}.{word}[{i}]")
    if isinstance(schema.get("items"), dict):
        yield from parts_of(schema["items"], f"{place}[]")


def test_schemas_know_the_vocabulary_of_the_code() -> None:
    problem = schemas.schema("case")["$defs"]["problem"]["properties"]
    declared = schemas.schema("capabilities")["properties"]
    known = schemas.schema("capabilities")["$defs"]["feature"]["enum"]
    assert list(problem) == [field.name for field in fields(Problem)]
    assert problem["values"]["enum"] == list(VALUES)
    assert problem["dtype"]["enum"] == list(FORMATS)
    assert problem["causal"]["enum"] == [*CAUSAL_ALIGNMENTS, None]
    assert list(declared) == [field.name for field in fields(Capabilities)]
    assert declared["accuracy"]["enum"] == list(ACCURACIES)
    assert declared["lse_base"]["enum"] == list(LSE_BASES)
    assert set(FEATURES) <= set(known)
    assert all(any(covers(name, feature) for feature in FEATURES) for name in known)


def test_a_report_repeats_the_schema_of_capabilities() -> None:
    report, alone = schemas.schema("report")["$defs"], schemas.schema("capabilities")
    assert report["feature"] == alone["$defs"]["feature"]
    assert report["capabilities"]["properties"] == alone["properties"]
    assert report["capabilities"]["required"] == alone["required"]


CASE: dict[str, Any] = {
    "name": "causal-wide-float32",
    "problem": Problem.parse("q=5/k=9/d=8/causal/mask=bool.b11k.padding").to_json(),
    "rules": ["mask.causal-upper-left"],
    "note": "Fewer queries than keys.",
    "tensors": {
        name: {"dtype": "float32", "shape": [1, 1, 5, 8]}
        for name in ("query", "key", "value", "output", "lse", "attn_mask")
    },
}
MANIFEST: dict[str, Any] = {
    "format": 1,
    "spec_version": "0.1",
    "cases": [{"name": "causal-wide-float32", "sha256": {"case": "0" * 64, "tensors": "f" * 64}}],
}
DECLARED: dict[str, Any] = {
    name: list(value) if isinstance(value, tuple) else value for name, value in Capabilities().to_json().items()
}
HEADER: dict[str, Any] = {
    "kind": "header",
    "format": 1,
    "attnspec": "0.1.0",
    "spec": "0.1",
    "target": "kernels/mine.py:attention",
    "backend": "attention",
    "level": "quick",
    "profiles": ["core"],
    "accuracy": "fused",
    "device": "cpu",
    "hardware": "cpu",
    "seed": None,
    "command": ["attnspec", "validate", "kernels/mine.py:attention"],
    "environment": {"python": "3.11.7", "torch": "2.13.0", "platform": "Linux x86_64"},
    "capabilities": DECLARED,
    "started": "2026-01-31T12:00:00Z",
}
LINE: dict[str, Any] = {
    "kind": "case",
    "id": "probe/visible_set/q=5/k=9/d=8/causal",
    "check": "visible_set_is_exact",
    "family": "probe",
    "rules": ["mask.causal-upper-left"],
    "profiles": ["core"],
    "outcome": "fail",
    "seconds": 0.25,
    "error_over_budget": "inf",
    "rule": "mask.causal-upper-left",
    "message": "batch 0, head 0, row 0 sees keys 0 to 4",
    "reason": None,
}
COUNTS = dict.fromkeys(("pass", "errored", "crashed", "timeout", "not_supported", "xfail", "xpass"), 0) | {"fail": 1}
FOOTER: dict[str, Any] = {
    "kind": "footer",
    "counts": COUNTS,
    "verdict": "not_conformant",
    "statement": "kernels/mine.py:attention is not conformant to attnspec 0.1, profile core, on cpu.",
    "declared_share": 1.0,
    "finished": "2026-01-31T12:00:01.5+01:00",
    "seconds": 1.5,
    "pairs_met": 3,
    "pairs_possible": 4,
}
ENTRY: dict[str, Any] = {
    "rule": "mask.hidden-nan",
    "outcome": "fail",
    "reason": "0 * NaN",
    "versions": "2.13",
    "link": "https://example.org",
}
EXPECTED: dict[str, Any] = {"format": 1, "backend": "torch_eager", "entries": [ENTRY]}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("case", CASE),
        ("golden-manifest", MANIFEST),
        ("capabilities", DECLARED),
        ("report", HEADER),
        ("report", LINE),
        ("report", LINE | {"outcome": "pass", "error_over_budget": 0.5, "rule": None, "message": None}),
        ("report", FOOTER),
        ("expectations", EXPECTED),
        ("expectations", EXPECTED | {"entries": []}),
    ],
)
def test_a_schema_accepts(name: str, data: dict[str, Any]) -> None:
    schemas.check(json.loads(json.dumps(data)), name, "here")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("case", CASE | {"name": "../escape"}),
        ("case", CASE | {"rules": []}),
        ("case", CASE | {"rules": ["mask"]}),
        ("case", CASE | {"more": 1}),
        ("case", CASE | {"problem": {**CASE["problem"], "mask": "bool.kq.padding"}}),
        ("case", CASE | {"problem": {**CASE["problem"], "q_len": 10**9}}),
        ("case", CASE | {"problem": {**CASE["problem"], "scale": math.inf}}),
        ("case", CASE | {"tensors": {"query": {"dtype": "int8", "shape": [1]}}}),
        ("golden-manifest", MANIFEST | {"format": 2}),
        ("golden-manifest", MANIFEST | {"cases": MANIFEST["cases"] * 2}),
        ("golden-manifest", MANIFEST | {"cases": [{"name": "a", "sha256": {"case": "0", "tensors": "0"}}]}),
        ("capabilities", DECLARED | {"features": ["attn_mask.rank5"]}),
        ("capabilities", DECLARED | {"head_dims": [1, 2, 3]}),
        ("report", HEADER | {"kind": "head"}),
        ("report", HEADER | {"started": "yesterday"}),
        ("report", LINE | {"outcome": "passed"}),
        ("report", LINE | {"error_over_budget": "huge"}),
        ("report", FOOTER | {"counts": {"pass": 1}}),
        ("report", FOOTER | {"declared_share": 1.5}),
        ("expectations", EXPECTED | {"entries": [ENTRY | {"case": "golden/x"}]}),
        ("expectations", EXPECTED | {"entries": [{k: v for k, v in ENTRY.items() if k != "rule"}]}),
        ("expectations", EXPECTED | {"entries": [ENTRY | {"outcome": "pass"}]}),
    ],
)
def test_a_schema_rejects_in_one_line(name: str, data: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        schemas.check(data, name, "here.json")
    assert one_line(error.value)
    assert str(error.value).startswith("here.json: ")


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"format": 2}'])
def test_a_bad_file_is_an_input_error_of_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        schemas.load(path, "golden-manifest")
    assert one_line(error.value)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        schemas.load(tmp_path / "nowhere.json", "case")


# ---------------------------------------------------------------- problems

SIZES = st.integers(1, 65536)
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
        causal=draw(st.sampled_from((None, *CAUSAL_ALIGNMENTS))),
        scale=draw(st.none() | NUMBERS),
        scores=draw(NUMBERS),
        values=draw(st.sampled_from(VALUES)),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


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
        "q=1/k=1/d=1/dropout=1.5",
        "q=1/k=1/d=1/dropout=nan",
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


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda: format_named("fp8"), "'fp8'"),
        (lambda: profile("fast"), "'fast'"),
        (lambda: Capabilities(features=("windows",)), "'windows'"),
        (lambda: Capabilities(refuses=(("attn_mask", "speed"),)), "'speed'"),
        (lambda: Capabilities(dtypes=("int8",)), "'int8'"),
        (lambda: Capabilities(causal_alignment="left"), "'left'"),
        (lambda: Capabilities(lse_base="10"), "'10'"),
        (lambda: Capabilities(accuracy="loose"), "'loose'"),
    ],
)
def test_an_unknown_name_is_an_input_error_that_tells_the_right_ones(act: Any, named: str) -> None:
    with pytest.raises(InputError) as error:
        act()
    assert one_line(error.value)
    assert named in str(error.value)
    assert "use one of" in str(error.value)


def one_line(error: InputError) -> bool:
    """Whether the message is one line that is not empty."""
    return len(str(error).splitlines()) == 1


# ---------------------------------------------------------------- capabilities and profiles

PAIR = ("attn_mask", "is_causal")


@pytest.mark.parametrize(
    ("declared", "text", "lacking"),
    [
        (Capabilities(), "q=5/k=9/d=8/causal/mask=bool.b11k.padding", None),
        (Capabilities(features=("attn_mask",)), "q=5/k=9/d=8/mask=float.qk.bias", None),
        (Capabilities(features=()), "q=5/k=9/d=8/mask=bool.k.padding", "attn_mask.bool"),
        (Capabilities(features=("attn_mask.bool",)), "q=5/k=9/d=8/mask=bool.k.padding", "attn_mask.rank1"),
        (Capabilities(refuses=(PAIR,)), "q=5/k=9/d=8/causal/mask=bool.k.all", "attn_mask with is_causal"),
        (Capabilities(refuses=(PAIR,)), "q=5/k=9/d=8/causal", None),
        (Capabilities(dtypes=("float32",)), "q=5/k=9/d=8/dtype=bf16", "bfloat16"),
        (Capabilities(head_dims=(1, 64)), "q=5/k=9/d=8/dv=65", "head_dim"),
        (Capabilities(), "q=5/k=9/d=8/causal=lower_right", "causal_alignment"),
        (Capabilities(), "q=9/k=9/d=8/causal=lower_right", None),
    ],
)
def test_capabilities_say_what_of_a_problem_they_lack(declared: Capabilities, text: str, lacking: str | None) -> None:
    said = declared.lacks(Problem.parse(text))
    assert (said is None) if lacking is None else (said is not None and lacking in said)


@pytest.mark.parametrize(
    ("text", "lse", "names"),
    [
        ("q=5/k=9/d=8", False, {"core"}),
        ("q=5/k=9/d=8/causal", False, {"core"}),
        ("q=5/k=9/d=8/causal", True, {"lse"}),
        ("q=0/k=9/d=8", False, set()),
        ("q=5/k=9/d=8/mask=bool.k.padding", False, {"masks"}),
        ("q=5/k=9/d=8/hq=4/hkv=2/dtype=fp16", False, {"grouped", "half"}),
        ("q=5/k=9/d=8/dtype=float64/scale=1", False, {"double"}),
        ("q=5/k=9/d=8/scale=1", False, set()),
        ("q=5/k=9/d=8/dropout=0.5", False, {"dropout"}),
    ],
)
def test_profiles_hold_the_problems_that_their_chapter_says(text: str, lse: bool, names: set[str]) -> None:
    assert {p.name for p in PROFILES.values() if p.holds(Problem.parse(text), lse)} == names
