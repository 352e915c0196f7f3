"""The golden vectors: what they cover, that they come out the same, and that no defect of a file goes unnoticed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save

from attnspec.conformance.budget import error_budget
from attnspec.conformance.comparison import compare
from attnspec.golden.cases import CASES, DTYPES, SHAPES, golden_case
from attnspec.golden.files import MANIFEST, VECTORS, files_of, manifest, sha256
from attnspec.golden.regenerate import ALL_CASES, make, regenerate, stale
from attnspec.golden.store import Golden, check, load_all
from attnspec.reference.attention import answer
from attnspec.spec.call import Call
from attnspec.spec.dtypes import FLOAT64
from attnspec.spec.errors import InputError
from attnspec.spec.problem import MASK_CONTENTS, VALUES
from attnspec.spec.rules import all_rules

MUST_RULES = {
    "alibi": ("bias", "form", "offset", "gradient"),
    "sinks": ("weight", "any-size", "lse", "empty-row", "gradient"),
    "notation": ("layout", "shapes", "dtypes"),
    "attention": ("output", "scale-default", "scale-explicit", "value-dim", "kv-broadcast", "zero-length"),
    "mask": (
        "bool",
        "additive",
        "finite-bias",
        "broadcast",
        "combine",
        "bias-then-mask",
        "causal-upper-left",
        "causal-lower-right",
        "key-padding",
        "fully-masked-row",
        "hidden-values",
    ),
    "softmax": ("weights", "any-finite-score", "lse", "lse-empty-row"),
    "grouped": ("head-map", "multi-query"),
    "accuracy": ("output-within-budget", "lse-within-budget", "gradients-within-budget", "overflow"),
    "key-lengths": ("visible", "causal", "zero"),
    "window": ("bounds", "corner", "causal", "combine"),
    "softcap": ("scores", "bias", "lse", "gradient"),
    "backward": (
        "query",
        "key",
        "value",
        "bias",
        "lse",
        "grouped",
        "broadcast",
        "empty-row",
        "hidden",
        "recompute-range",
        "matches-forward",
    ),
}
SMALL = (
    "causal-lower-right-tall-float32",
    "grouped-multi-query-2-float64",
    "mask-float-shape-b1q1-float16",
    "mask-finite-low-bfloat16",
    "zero-keys-float32",
)
VICTIM = "mask-float-shape-b1q1-float16"
PROBLEMS = [case.problem for case in CASES]
MASKS = [p.mask for p in PROBLEMS if p.mask]


@pytest.fixture(scope="module")
def goldens() -> list[Golden]:
    """Every stored case."""
    return list(load_all())


# ---------------------------------------------------------------- the stored set


def test_the_stored_set_is_the_table(goldens: list[Golden]) -> None:
    assert [golden.case for golden in goldens] == sorted(CASES, key=lambda case: case.name)
    assert len(CASES) >= 60
    assert check() == len(ALL_CASES)


def test_the_stored_set_is_small() -> None:
    assert sum(path.stat().st_size for path in VECTORS.iterdir()) < 20e6


def test_every_file_comes_out_the_same() -> None:
    assert stale(jobs=2) == []


def test_the_readable_reference_agrees_within_the_float64_budget(goldens: list[Golden]) -> None:
    for golden in goldens:
        corner = golden.case.problem.corner
        found = answer(golden.call, corner)
        budget = error_budget(in_float64(golden.call), causal_alignment=corner, accuracy="exact")
        assert found.lse is not None
        assert compare(found.output, golden.output, budget.output, FLOAT64).holds, golden.case.name
        assert compare(found.lse, golden.lse, budget.lse, FLOAT64).holds, golden.case.name


def in_float64(call: Call) -> Call:
    """The same numbers in float64."""
    mask = call.attn_mask
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    return call.but(query=call.query.double(), key=call.key.double(), value=call.value.double(), attn_mask=wide)


def test_an_empty_row_is_where_a_case_says_so(goldens: list[Golden]) -> None:
    for golden in goldens:
        if "mask.fully-masked-row" in golden.case.rules:
            nothing = -torch.inf if golden.call.sinks is None else golden.call.sinks.double()[:, None]
            empty = golden.lse == nothing
            assert empty.any(), golden.case.name
            assert not golden.output[empty].any(), golden.case.name


# ---------------------------------------------------------------- what it covers


@pytest.mark.parametrize(
    ("what", "found", "wanted"),
    [
        ("dtypes", {p.dtype for p in PROBLEMS}, set(DTYPES)),
        ("head dims", {p.head_dim for p in PROBLEMS}, {1, 3, 8, 24, 64, 65, 128}),
        ("head dims in 16 bits", {p.head_dim for p in PROBLEMS if "16" in p.dtype}, {1, 3, 8, 24, 64, 65, 128}),
        ("value dims", {np.sign(p.value_dim - p.head_dim) for p in PROBLEMS}, {-1, 0, 1}),
        ("lengths", {np.sign(p.q_len - p.k_len) for p in PROBLEMS}, {-1, 0, 1}),
        ("query lengths", {p.q_len for p in PROBLEMS}, {0, 1, 130}),
        ("key lengths", {p.k_len for p in PROBLEMS}, {0, 1, 130, 600}),
        ("group ratios", {p.q_heads // p.kv_heads for p in PROBLEMS}, {1, 2, 3, 8}),
        ("multi-query ratios", {p.q_heads for p in PROBLEMS if p.kv_heads == 1}, {1, 2, 3, 8}),
        ("causal", {(p.causal, np.sign(p.q_len - p.k_len)) for p in PROBLEMS if p.causal and p.k_len}, 6),
        ("causal one query", {p.causal for p in PROBLEMS if p.q_len == 1}, {None, "upper_left", "lower_right"}),
        ("causal and mask", {(p.causal, p.mask.kind) for p in PROBLEMS if p.causal and p.mask}, 4),
        ("mask shapes", {(m.kind, m.shape) for m in MASKS}, {(k, s) for k in ("bool", "float") for s in SHAPES}),
        ("mask contents", {m.content for m in MASKS}, set(MASK_CONTENTS)),
        ("mask dtypes", {(p.mask.kind, p.dtype) for p in PROBLEMS if p.mask}, 8),
        ("scales", {p.scale for p in PROBLEMS}, {None, -0.7, 0.0, 3.0, 1e-30}),
        ("scales with mask", {p.scale for p in PROBLEMS if p.mask}, {None, -0.7, 0.0, 3.0, 1e-30}),
        ("scales with causal", {p.scale for p in PROBLEMS if p.causal}, {None, -0.7, 0.0, 3.0}),
        ("score sizes", {p.scores for p in PROBLEMS}, {0.125, 1, 8}),
        ("values", {p.values for p in PROBLEMS}, set(VALUES)),
        ("long 16-bit rows", {p.dtype for p in PROBLEMS if p.k_len >= 512}, {"bfloat16", "float16"}),
        ("shared keys", {p.kv_batch < p.batch for p in PROBLEMS}, {True, False}),
    ],
)
def test_the_cases_cover(what: str, found: set[object], wanted: set[object] | int) -> None:
    if isinstance(wanted, int):
        assert len(found) == wanted, f"{what}: {found}"
    else:
        assert wanted <= found, f"{what}: {wanted - found} missing"


def test_a_stored_mask_hides_and_shows(goldens: list[Golden]) -> None:
    for golden in goldens:
        mask, p = golden.call.attn_mask, golden.case.problem
        if mask is not None and p.mask and p.mask.content == "random" and mask.numel() > 1:
            keep = mask if mask.dtype == torch.bool else mask.isfinite()
            assert keep.any(), golden.case.name
            assert not keep.all(), golden.case.name


def test_the_cases_cite_every_rule_and_no_other() -> None:
    cited = {rule for case in CASES for rule in case.rules}
    assert {f"{chapter}.{rule}" for chapter, rules in MUST_RULES.items() for rule in rules} == cited
    assert cited <= all_rules().keys()


# ---------------------------------------------------------------- making them


@pytest.mark.parametrize("name", SMALL)
def test_a_case_comes_out_the_same(name: str) -> None:
    files = make(golden_case(name))
    assert files.case == (VECTORS / f"{name}.json").read_bytes()
    assert files.tensors == (VECTORS / f"{name}.safetensors").read_bytes()


def test_bytes_do_not_depend_on_the_process() -> None:
    code = (
        "import sys, torch; torch.set_num_threads(int(sys.argv[2]))\n"
        "from attnspec.golden.regenerate import make; from attnspec.golden.cases import golden_case\n"
        "import hashlib; files = make(golden_case(sys.argv[1]))\n"
        "print(*(hashlib.sha256(content).hexdigest() for content in (files.case, files.tensors)))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, SMALL[0], str(torch.get_num_threads() + 1)]
    told = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout.split()
    assert told == [sha256((VECTORS / name).read_bytes()) for name in files_of(SMALL[0])]


def test_bytes_do_not_depend_on_the_order() -> None:
    content = (VECTORS / f"{VICTIM}.safetensors").read_bytes()
    tensors = parse_safetensors(content)
    assert save(dict(reversed(tensors.items()))) == content == save(tensors)
    assert b"__metadata__" not in content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of a few small cases."""
    out = tmp_path / "vectors"
    assert regenerate(out, jobs=1, cases=[golden_case(name) for name in SMALL]) == len(SMALL)
    return out


def interrupt(done: int, total: int, name: str) -> None:
    if done == 2:
        raise KeyboardInterrupt


def test_an_interrupted_run_leaves_the_old_set(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for jobs in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            regenerate(folder, jobs=jobs, progress=interrupt, cases=CASES[:5])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("broken", ["write_bytes", "rename"])
def test_a_full_disk_leaves_the_old_set(folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    real = getattr(Path, broken)

    def fails_on_the_fresh_one(path: Path, *rest: object) -> object:
        if "fresh" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *rest)

    monkeypatch.setattr(Path, broken, fails_on_the_fresh_one)
    with pytest.raises(InputError, match=r"cannot be written \(No space left"):
        regenerate(folder, jobs=1, cases=CASES[:1])
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_a_new_set_replaces_the_old_one(folder: Path) -> None:
    regenerate(folder, jobs=1, cases=CASES[:1])
    assert check(folder) == 1
    assert [path.suffix for path in sorted(folder.iterdir())] == [".json", ".json", ".safetensors"]


def test_nothing_else_is_replaced(folder: Path) -> None:
    (folder / "thesis.txt").write_text("years of work")
    file = folder / MANIFEST
    for out, told in ((folder, "thesis.txt"), (file, "is no folder"), (file / "deeper", "cannot be written")):
        with pytest.raises(InputError, match=told):
            regenerate(out, jobs=1, cases=CASES[:1])
    with pytest.raises(InputError, match="jobs is 0"):
        stale(folder, jobs=0)


def test_a_folder_that_is_not_there_is_told_before_the_work(tmp_path: Path) -> None:
    with patch("attnspec.golden.regenerate.make", side_effect=AssertionError("a case was computed")):
        with pytest.raises(InputError, match=r"none: cannot be read .No such file or directory.; name another folder"):
            stale(tmp_path / "none", jobs=1)
        with pytest.raises(AssertionError, match="a case was computed"):
            stale(tmp_path, jobs=1)
    for use in (check, manifest):
        with pytest.raises(InputError, match="none: is no folder; name one of vectors"):
            use(tmp_path / "none")


def test_stale_files_are_named(folder: Path) -> None:
    (folder / f"{VICTIM}.json").unlink()
    (folder / "more.json").write_text("{}")
    told = "\n".join(stale(folder, jobs=1, cases=[golden_case(name) for name in SMALL]))
    assert f"{VICTIM}.json: is missing" in told
    assert "more.json: no golden case" in told
