"""The JSON Schemas: closed, described, bounded, and of one vocabulary with the code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from attnspec.golden.forms import FORMS
from attnspec.spec import schemas
from attnspec.spec.capabilities import ACCURACIES, FEATURES, LSE_BASES, Capabilities, covers
from attnspec.spec.dtypes import FORMATS
from attnspec.spec.errors import InputError
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, VALUES, Problem


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
    assert schemas.schema("form-case")["properties"]["form"]["enum"] == list(FORMS)
    assert schemas.schema("golden-manifest")["properties"]["cases"]["items"]["properties"]["form"]["enum"] == [
        "attention",
        *FORMS,
    ]
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
    "cases": [{"name": "causal-wide-float32", "form": "attention", "sha256": {"case": "0" * 64, "tensors": "f" * 64}}],
}
FORM_CASE: dict[str, Any] = {
    "name": "merge-two-float32",
    "form": "merge",
    "problem": "q=5/shift=-200/garbage/seed=600",
    "rules": ["flash.merge-associative"],
    "note": "Two parts.",
    "tensors": {
        "outputs": {"dtype": "float32", "shape": [2, 1, 1, 5, 8]},
        "output": {"dtype": "float64", "shape": [5]},
    },
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
        ("form-case", FORM_CASE),
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
        ("form-case", FORM_CASE | {"form": "attention"}),
        ("form-case", FORM_CASE | {"problem": "q=5 seed=600"}),
        ("form-case", FORM_CASE | {"problem": CASE["problem"]}),
        ("form-case", FORM_CASE | {"tensors": {"output": {"dtype": "float64", "shape": [1] * 6}}}),
        ("form-case", FORM_CASE | {"tensors": {"outputs": {"dtype": "float64", "shape": [1]}}}),
        ("golden-manifest", MANIFEST | {"format": 2}),
        ("golden-manifest", MANIFEST | {"cases": [MANIFEST["cases"][0] | {"form": "softmax"}]}),
        ("golden-manifest", MANIFEST | {"cases": MANIFEST["cases"] * 2}),
        ("golden-manifest", MANIFEST | {"cases": [MANIFEST["cases"][0] | {"sha256": {"case": "0", "tensors": "0"}}]}),
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


def one_line(error: InputError) -> bool:
    """Whether the message is one line that is not empty."""
    return len(str(error).splitlines()) == 1
