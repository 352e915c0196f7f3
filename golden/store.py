"""The stored vectors: the cases of a folder, read with nothing trusted.

A case of form `attention` is a `Golden`; one of another form (`golden.forms`) a `FormGolden`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnspec.golden.cases import GoldenCase
from attnspec.golden.files import (
    LARGEST_HEADER,
    LARGEST_JSON,
    MANIFEST,
    VECTORS,
    Entry,
    check_hash,
    check_numbers,
    files_of,
    manifest,
    parse_json,
    parse_tensors,
    read_bytes,
    say,
    size_of,
)
from attnspec.golden.forms import problem_of
from attnspec.golden.forms.form import FormCase
from attnspec.golden.shapes import Shapes, shapes_of
from attnspec.spec import schemas
from attnspec.spec.call import Call, Gradients
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

ATTENTION = "attention"
TRUTHS = ("output", "lse", *(f"grad_{field}" for field in Gradients._fields))  # of an attention call
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Golden:
    """A case with its stored tensors. call: inputs in the storage dtype; output: (batch, q_heads, q_len, value_dim)
    and lse: (batch, q_heads, q_len), the true values rounded once to float64; gradients: likewise, None where the
    problem asks for none."""

    case: GoldenCase
    call: Call
    output: torch.Tensor
    lse: torch.Tensor
    gradients: Gradients | None = None


@dataclass(frozen=True)
class FormGolden:
    """A case of another form than attention, with its stored tensors by name: inputs in their own dtypes, truths
    rounded once to float64."""

    case: FormCase
    tensors: Tensors

    @property
    def inputs(self) -> Tensors:
        """What goes in."""
        return {name: x for name, x in self.tensors.items() if name not in self.case.problem.truths}

    @property
    def truth(self) -> Tensors:
        """What is right."""
        return {name: x for name, x in self.tensors.items() if name in self.case.problem.truths}


def load(name: str, folder: Path = VECTORS) -> Golden:
    """Return a stored case of form attention. Raises InputError for a name that the manifest does not list, for a case
    of another form, and for any defect."""
    entry = _entry(name, folder)
    if entry.form != ATTENTION:
        raise InputError(f"{folder / MANIFEST}: case {name!r} has form {entry.form}: use load_form")
    return read(entry, folder)


def load_form(name: str, folder: Path = VECTORS) -> FormGolden:
    """Return a stored case of another form than attention. Raises InputError like `load`."""
    entry = _entry(name, folder)
    if entry.form == ATTENTION:
        raise InputError(f"{folder / MANIFEST}: case {name!r} has form {entry.form}: use load")
    return read_form(entry, folder)


def load_all(folder: Path = VECTORS) -> Iterator[Golden]:
    """Yield every stored case of form attention, in the manifest's order. Raises InputError like `load`."""
    return (read(entry, folder) for entry in manifest(folder) if entry.form == ATTENTION)


def load_forms(form: str, folder: Path = VECTORS) -> Iterator[FormGolden]:
    """Yield every stored case of a form other than attention, in the manifest's order. Raises InputError."""
    return (read_form(entry, folder) for entry in manifest(folder) if entry.form == form)


def _entry(name: str, folder: Path) -> Entry:
    for entry in manifest(folder):
        if entry.name == name:
            return entry
    raise InputError(f"{folder / MANIFEST}: lists no case {name!r}; see `attnspec golden list`")


def check(folder: Path = VECTORS) -> int:
    """Check every file against its schema, hash, shapes and dtypes; return the number of cases.

    Raises InputError, in one line, at the first defect, and for a file that the manifest does not list.
    """
    entries = manifest(folder)
    if folder == VECTORS:  # any other is held to its schemas as it is read
        schemas.load(folder / MANIFEST, "golden-manifest")
    listed = {MANIFEST, *(name for entry in entries for name in files_of(entry.name))}
    for path in sorted(folder.iterdir()):
        if path.name not in listed:
            raise InputError(f"{path}: {MANIFEST} does not list it; remove it, or regenerate the vectors")
    for entry in entries:
        read_parts(entry, folder)
        if folder == VECTORS:
            schemas.load(folder / files_of(entry.name)[0], _schema_of(entry))
    return len(entries)


def read_parts(entry: Entry, folder: Path) -> tuple[GoldenCase | FormCase, Tensors]:
    """Return the description and the tensors of a manifest's entry, of any form. Raises InputError for any defect of
    its two files."""
    case_path, tensors_path = (folder / name for name in files_of(entry.name))
    case, shapes = _read_case(case_path, entry)
    content = read_bytes(tensors_path, LARGEST_HEADER + sum(size_of(spec) for spec in shapes.values()))
    check_hash(content, entry.tensors, tensors_path)
    tensors = parse_tensors(content, shapes, tensors_path)
    truths = case.problem.truths if isinstance(case, FormCase) else TRUTHS
    check_numbers(tensors, truths, tensors_path)
    if isinstance(case, GoldenCase):
        _check_lengths(tensors, case.problem, tensors_path)
    return case, tensors


def read_form(entry: Entry, folder: Path) -> FormGolden:
    """Return the case of an entry of another form than attention. Raises InputError for any defect of its files."""
    case, tensors = read_parts(entry, folder)
    assert isinstance(case, FormCase), "the manifest's entry has a form"
    return FormGolden(case, tensors)


def read(entry: Entry, folder: Path) -> Golden:
    """Return the case of an entry of form attention. Raises InputError for any defect of its two files."""
    case, tensors = read_parts(entry, folder)
    assert isinstance(case, GoldenCase), "the manifest's entry has form attention"
    problem = case.problem
    call = Call(
        query=tensors["query"],
        key=tensors["key"],
        value=tensors["value"],
        attn_mask=tensors.get("attn_mask"),
        is_causal=problem.causal is not None,
        scale=problem.scale,
        enable_gqa=problem.q_heads != problem.kv_heads,
        key_lengths=tensors.get("key_lengths"),
        window_size=problem.window and problem.window.size,
        sinks=tensors.get("sinks"),
        alibi_slopes=tensors.get("alibi_slopes"),
        alibi_form=problem.alibi.form if problem.alibi else "symmetric",
        alibi_alignment=(problem.alibi and problem.alibi.corner) or "upper_left",
        learned_slopes=problem.alibi is not None and problem.alibi.learned,
        softcap=problem.softcap,
        grad_output=tensors.get("grad_output"),
        grad_lse=tensors.get("grad_lse"),
    )
    found = {name: tensors[f"grad_{name}"] for name in Gradients._fields if f"grad_{name}" in tensors}
    return Golden(case, call, tensors["output"], tensors["lse"], Gradients(**found) if found else None)


def _check_lengths(tensors: Tensors, problem: Problem, path: Path) -> None:
    """Raise InputError where a stored key length is none that the problem's keys have."""
    lengths = tensors.get("key_lengths")
    if lengths is not None and not bool(((lengths >= 0) & (lengths <= problem.k_len)).all()):
        raise InputError(f"{path}: key_lengths is {lengths.tolist()}; 0 to {problem.k_len} would be right")


def _schema_of(entry: Entry) -> str:
    return "case" if entry.form == ATTENTION else "form-case"


def _read_case(path: Path, entry: Entry) -> tuple[GoldenCase | FormCase, Shapes]:
    """Return a case's description and the shapes of its tensors, which its problem must agree with."""
    content = read_bytes(path, LARGEST_JSON)
    check_hash(content, entry.case, path)
    plain = entry.form == ATTENTION
    data = parse_json(content, _schema_of(entry), path)
    if data["name"] != entry.name:
        raise InputError(f"{path}: its name is {data['name']!r}; {entry.name!r} would be right")
    case: GoldenCase | FormCase
    rules, note = tuple(data["rules"]), data["note"]
    try:
        if plain:
            problem = Problem.from_json(data["problem"])
            case, right = GoldenCase(entry.name, problem, rules, note), shapes_of(problem)
        else:
            case = FormCase(entry.name, problem_of(entry.form, data["problem"]), rules, note)
            right = case.problem.shapes()
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: problem: {error}") from None
    if not plain and data["form"] != entry.form:
        raise InputError(f"{path}: its form is {data['form']}; {MANIFEST} says {entry.form}")
    check_described(data["tensors"], right, path)
    return case, right


def check_described(tensors: dict[str, Any], right: Shapes, path: Path) -> None:
    """Raise InputError where a description's dtypes and shapes are not those of its problem."""
    given = {name: (spec["dtype"], tuple(spec["shape"])) for name, spec in tensors.items()}
    for name in sorted(given.keys() | right.keys()):
        if given.get(name) != right.get(name):
            raise InputError(f"{path}: {name} is {say(given.get(name))}; its problem makes it {say(right.get(name))}")
