"""Reading stored vectors: every defect is told in one line that names the file, and two sets are compared."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save

from attnspec.golden.cases import golden_case
from attnspec.golden.difference import diff
from attnspec.golden.files import MANIFEST, sha256
from attnspec.golden.regenerate import regenerate
from attnspec.golden.store import check, load
from attnspec.spec.errors import InputError

SMALL = ("causal-lower-right-tall-float32", "mask-float-shape-b1q1-float16", "zero-keys-float32")
VICTIM = "mask-float-shape-b1q1-float16"
CASE = f"{VICTIM}.json"
TENSORS = f"{VICTIM}.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of a few small cases."""
    out = tmp_path / "vectors"
    regenerate(out, jobs=1, cases=[golden_case(name) for name in SMALL])
    return out


# ---------------------------------------------------------------- ways to corrupt a file


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change a file's bytes and leave the manifest as it is."""

    def corrupt(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return corrupt


def relist(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change a file's bytes, and give the manifest its new hash, as someone who means harm would."""

    def corrupt(folder: Path) -> None:
        content = change((folder / name).read_bytes())
        (folder / name).write_bytes(content)
        part = "case" if name.endswith(".json") else "tensors"

        def list_anew(manifest: Any) -> None:
            next(c for c in manifest["cases"] if c["name"] == VICTIM)["sha256"][part] = sha256(content)

        rewrite(MANIFEST, edit(list_anew))(folder)

    return corrupt


def edit(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    """Change the data of a JSON file in place."""

    def edited(content: bytes) -> bytes:
        data = json.loads(content)
        change(data)
        return json.dumps(data).encode()

    return edited


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[bytes], bytes]:
    """Change one tensor of a safetensors file, or take it away."""

    def changed(content: bytes) -> bytes:
        tensors = parse_safetensors(content)
        new = change(tensors.pop(name).clone())
        return save(tensors if new is None else tensors | {name: new.contiguous()})

    return changed


def flip_a_bit(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


def header_of(size: int) -> Callable[[bytes], bytes]:
    return lambda content: struct.pack("<Q", size) + content[8:]


def fill_first(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def filled(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = number
        return tensor

    return filled


def folder_for_a_file(folder: Path) -> None:
    (folder / CASE).unlink()
    (folder / CASE).mkdir()


def rename(data: Any) -> None:
    data["name"] = "another"


DEFECTS: dict[str, tuple[Callable[[Path], object], str, str]] = {  # corrupt, the file told, the defect told
    "truncated tensors": (rewrite(TENSORS, lambda b: b[:-9]), TENSORS, "SHA-256"),
    "truncated case": (rewrite(CASE, lambda b: b[:-9]), CASE, "SHA-256"),
    "truncated manifest": (rewrite(MANIFEST, lambda b: b[:-9]), MANIFEST, "is not JSON"),
    "no UTF-8": (rewrite(MANIFEST, lambda b: b"\xff\xfe\xfa" + b), MANIFEST, "is not JSON"),
    "deep JSON": (rewrite(MANIFEST, lambda b: b"[" * 100_000), MANIFEST, "is not JSON"),
    "flipped bit": (rewrite(TENSORS, flip_a_bit), TENSORS, "SHA-256"),
    "grown": (rewrite(TENSORS, lambda b: b + bytes(10**6)), TENSORS, "bytes; at most"),
    "grown manifest": (rewrite(MANIFEST, lambda b: b + b" " * 2**20), MANIFEST, "bytes; at most"),
    "missing tensors": (lambda folder: (folder / TENSORS).unlink(), TENSORS, "is missing"),
    "missing case": (lambda folder: (folder / CASE).unlink(), CASE, "is missing"),
    "missing manifest": (lambda folder: (folder / MANIFEST).unlink(), MANIFEST, "is missing"),
    "folder for a file": (folder_for_a_file, CASE, "no regular file"),
    "unlisted file": (lambda folder: (folder / "more.json").write_text("{}"), "more.json", "does not list it"),
    "wrong hash": (rewrite(MANIFEST, lambda b: b.replace(b'"case": "', b'"case": "0')), MANIFEST, "sha256"),
    "no cases": (rewrite(MANIFEST, edit(lambda m: m.pop("cases"))), MANIFEST, "cases"),
    "other spec": (rewrite(MANIFEST, edit(lambda m: m.update(spec_version="9.9"))), MANIFEST, "spec 9.9"),
    "twice": (rewrite(MANIFEST, edit(lambda m: m["cases"].insert(1, m["cases"][0]))), MANIFEST, "cases"),
    "backwards": (rewrite(MANIFEST, edit(lambda m: m["cases"].reverse())), MANIFEST, "names in order"),
    "traversal": (rewrite(MANIFEST, edit(lambda m: m["cases"][0].update(name="../x"))), MANIFEST, "../x"),
    "dotted name": (rewrite(MANIFEST, edit(lambda m: m["cases"][0].update(name="a..b"))), MANIFEST, "no slug"),
    "other name": (relist(CASE, edit(rename)), CASE, "its name is 'another'"),
    "unknown key": (relist(CASE, edit(lambda c: c.update(pickle="x"))), CASE, "pickle"),
    "other problem": (relist(CASE, edit(lambda c: c["problem"].update(q_len=7))), CASE, "its problem makes it"),
    "bad problem": (relist(CASE, edit(lambda c: c["problem"].update(kv_heads=2))), CASE, "use a multiple"),
    "bad mask": (relist(CASE, edit(lambda c: c["problem"].update(mask="float.qh.bias"))), CASE, "mask"),
    "other shape": (relist(TENSORS, put("key", lambda t: t[:, :, :-1])), TENSORS, "key is float16 [2, 3, 4, 8]; its"),
    "other dtype": (relist(TENSORS, put("lse", torch.Tensor.float)), TENSORS, "lse is float32 [2, 3, 4]"),
    "no lse": (relist(TENSORS, put("lse", lambda t: None)), TENSORS, "lse is absent"),
    "NaN": (relist(TENSORS, put("output", fill_first(torch.nan))), TENSORS, "output[0, 0, 0, 0] is nan"),
    "infinite query": (relist(TENSORS, put("query", fill_first(-torch.inf))), TENSORS, "query[0, 0, 0, 0] is -inf"),
    "infinite lse": (relist(TENSORS, put("lse", fill_first(torch.inf))), TENSORS, "lse[0, 0, 0] is inf"),
    "minus zero": (relist(TENSORS, put("output", fill_first(-0.0))), TENSORS, "output[0, 0, 0, 0] is -0.0"),
    "huge header": (relist(TENSORS, header_of(2**62)), TENSORS, "claims a header of 4611686018427387904 bytes"),
    "long header": (relist(TENSORS, header_of(60_000)), TENSORS, "no whole safetensors file"),
    "empty": (relist(TENSORS, lambda b: b""), TENSORS, "no whole safetensors file"),
    "a pickle": (relist(TENSORS, lambda b: b"\x80\x04K\x01."), TENSORS, "claims a header"),
    "cut, relisted": (relist(TENSORS, lambda b: b[:-9]), TENSORS, "no whole safetensors file"),
    "odd boolean": (relist(TENSORS, lambda b: b.replace(b'"F16"', b'"I16"')), TENSORS, "int16"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_told_in_one_line(folder: Path, defect: str) -> None:
    assert check(folder) == len(SMALL)
    corrupt, file, told = DEFECTS[defect]
    corrupt(folder)
    with pytest.raises(InputError) as caught:
        check(folder)
    line = str(caught.value)
    assert line.startswith(str(folder / file))
    assert told in line
    assert "\n" not in line
    assert len(line) < len(str(folder / file)) + 400


@pytest.mark.parametrize("name", ["../secret", "", "/etc/passwd", "no-such-case"])
def test_a_name_that_is_not_listed_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="lists no case"):
        load(name, folder)


def test_a_case_is_loaded_as_it_is_stored(folder: Path) -> None:
    golden = load(VICTIM, folder)
    assert golden.case == golden_case(VICTIM)
    assert golden.call.query.dtype == torch.float16
    assert golden.call.attn_mask is not None
    assert golden.call.attn_mask.shape == (2, 1, 4, 1)
    assert golden.output.dtype == golden.lse.dtype == torch.float64


# ---------------------------------------------------------------- comparing two sets


def test_equal_sets_do_not_differ(folder: Path) -> None:
    assert diff(folder, folder) == []


def test_a_difference_names_case_tensor_place_and_values(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    regenerate(other, jobs=1, cases=[golden_case(name) for name in (*SMALL[1:], "zero-queries-float32")])
    relist(TENSORS, put("lse", fill_first(0.5)))(other)
    relist(CASE, edit(lambda case: case.update(note="changed")))(other)
    first = load(VICTIM, folder)
    assert diff(folder, other) == [
        f"{SMALL[0]}: only in {folder}",
        f"{VICTIM}: note {first.case.note} and changed",
        f"{VICTIM}: lse: 1 of 24 elements differ, first at [0, 0, 0]: {first.lse[0, 0, 0].item()!r} and 0.5",
        f"zero-queries-float32: only in {other}",
    ]
