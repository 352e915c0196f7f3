"""A user's own CUDA file, by its launch description: the example of the documentation, and what does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Process
from cuda_needs import needs_toolkit

from attnspec.conformance.environment import described
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.implementations.cuda_emulator.description import SCALARS, SIZES, TENSORS, TOLD_BY, describe
from attnspec.implementations.cuda_emulator.expressions import parse
from attnspec.implementations.registry import load_cuda_file
from attnspec.reference.attention import answer
from attnspec.spec.capabilities import FEATURES, covers
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

Attnspec = Callable[..., Process]
PAGE = (Path(__file__).parent.parent / "docs" / "cuda-emulator.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```(cuda|toml|text)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
FENCE = "    __syncwarp();  // the weights are here\n"
CASE = "inputs_stay_unchanged/b=2/hq=3/q=13/k=29/d=32/dtype=float32/seed=1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example of the page, and the same with a race."""
    assert BLOCKS["cuda"].count(FENCE) == 1
    for name, text in (("my_kernel", BLOCKS["cuda"]), ("racing_kernel", BLOCKS["cuda"].replace(FENCE, ""))):
        (tmp_path / f"{name}.cu").write_text(text)
        (tmp_path / f"{name}.toml").write_text(BLOCKS["toml"])
    (tmp_path / "alone.cu").write_text(BLOCKS["cuda"])
    return tmp_path


@needs_toolkit
@pytest.mark.parametrize(
    "problem",
    [
        Problem(batch=2, q_heads=6, kv_heads=2, q_len=9, k_len=70, head_dim=48),
        Problem(q_len=70, k_len=33, head_dim=7, causal="upper_left", scale=0.3),
        Problem(batch=3, kv_batch=1, q_len=1, k_len=5, head_dim=128),
    ],
    ids=str,
)
def test_the_example_computes_attention(folder: Path, problem: Problem) -> None:
    call = make_call(problem).but(return_lse=True)
    backend = load_cuda_file(folder / "my_kernel.cu", "attention")
    output, lse = backend(call.query, call.key, call.value, **call.options())
    expected = answer(call)
    torch.testing.assert_close(output.double(), expected.output, atol=3e-6, rtol=0)
    torch.testing.assert_close(lse.double(), expected.lse, atol=3e-6, rtol=0)


@needs_toolkit
def test_no_gpu_is_claimed(folder: Path) -> None:
    kernel = resolve(f"{folder / 'my_kernel.cu'}:attention")
    facts = described(kernel)
    assert facts["hardware"] == "CUDA emulated on cpu"
    assert facts["backend"] == "my_kernel.cu:attention"
    assert set(kernel.capabilities.features) == {"is_causal", "scale", "enable_gqa", "return_lse", "kv_broadcast"}
    assert kernel.capabilities.dtypes == ("float32",)


@needs_toolkit
def test_a_race_is_a_failure_of_the_case_with_its_lines(folder: Path, attnspec: Attnspec) -> None:
    options = ("--case", CASE, "--jobs=1", "--sanitize=thread", "--report=report.jsonl")
    done = attnspec("validate", "racing_kernel.cu:attention", *options)
    assert done.returncode == 1, done.stderr
    header, result, _ = (json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines())
    assert header["hardware"] == "CUDA emulated on cpu, thread sanitizer"
    lines = (folder / "racing_kernel.cu").read_text().splitlines()
    places = [int(number) for number in re.findall(r"racing_kernel\.cu:(\d+)", " ".join(result["message"].split()))]
    named = [lines[number - 1].strip() for number in dict.fromkeys(places)]
    assert result["rule"] == "contract.declared-runs"
    assert named == ["weights[warp][lane] = weight;", next(x.strip() for x in lines if "weights[warp][j]" in x)]
    assert [int(number) for number in re.findall(r"\.cu:(\d+)", BLOCKS["text"])] == list(dict.fromkeys(places))
    assert f"--sanitize thread --case {CASE}" in done.stderr


@needs_toolkit
@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("my_kernel.cu:attend", (), "my_kernel.toml: has no table [attend]; it has [attention]"),
        ("none.cu:attention", (), "CUDA file 'none.cu' does not exist (looked in "),
        (
            "alone.cu:attention",
            (),
            "alone.cu needs a launch description, alone.toml beside it, with a table [attention]",
        ),
        ("my_kernel.cu:attention", ("--sanitize", "memory"), "sanitizer 'memory': use thread or address"),
        ("torch_eager", ("--sanitize", "address"), "target 'torch_eager' has no sanitizer"),
    ],
)
def test_a_bad_target_is_one_line(
    folder: Path, attnspec: Attnspec, target: str, options: tuple[str, ...], message: str
) -> None:
    done = attnspec("validate", target, "--case", CASE, *options)
    assert done.returncode == 2
    assert done.stderr.startswith("attnspec: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


CHANGES = {
    '"ceil(q_len / 4)"': {
        '"ceil(qlen / 4)"': r"\[attention\]: grid: 'ceil\(qlen / 4\)': unknown name 'qlen'; use batch, ",
        "\"__import__('os').getpid()\"": r"grid: .* is not allowed; use numbers, names",
        '"q_len ** 2"': "'q_len \\*\\* 2' is not allowed",
        '"scale"': "unknown name 'scale'",
        "{}": r"\[attention\]: grid\[0\]: .*\(schema 'cuda-launch'\)",
    },
    "block = [128]": {
        "": "'block' is a required property",
        "block = [128]\nthreads = 1": "Additional properties are not allowed",
    },
    'dtypes = ["float32"]': {
        'dtypes = ["float8"]': "'float8' is not one of",
        'dtypes = ["float32"]\nfeatures = ["sinks"]': "features has 'sinks', and no argument tells the kernel 'sinks'",
        'dtypes = ["float32"]\nfeatures = ["backward"]': "backward cannot be asked of one kernel",
        'dtypes = ["float32"]\nfeatures = ["magic"]': "unknown feature 'magic'",
    },
    "grid = [": {
        'kernel = "other"\ngrid = [': "no kernel 'other': the file has attention",
        "grid = (": "toml: Invalid",
    },
    '"is_causal", "scale",': {
        '"is_causal",': r"arguments: names 11, and kernel attention takes 12 \(pointer, ",
        '"lze", "scale",': "unknown name 'lze'; use .*window_right; or alone query, key, value, output, lse, ",
        '"lse", "scale",': "'lse' stands where kernel attention has parameter 11, int32",
    },
    '"lse",': {'"scale",': "'scale' stands where kernel attention has parameter 5, pointer"},
}


@needs_toolkit
@pytest.mark.parametrize(
    ("old", "new", "message"), [(old, new, message) for old, news in CHANGES.items() for new, message in news.items()]
)
def test_a_description_that_does_not_fit_is_one_line(folder: Path, old: str, new: str, message: str) -> None:
    assert BLOCKS["toml"].count(old) == 1
    (folder / "my_kernel.toml").write_text(BLOCKS["toml"].replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load_cuda_file(folder / "my_kernel.cu", "attention")
    assert "\n" not in str(caught.value)


def test_features_are_those_that_the_arguments_show(folder: Path) -> None:
    text = BLOCKS["toml"].replace('"lse",', '"lse", "attn_mask.bool", "window_left", "window_right",')
    (folder / "my_kernel.toml").write_text(text)
    features = describe(folder / "my_kernel.cu", "attention").capabilities.features
    assert {"attn_mask.bool", "attn_mask.rank3", "window_size"} < set(features)
    assert "attn_mask.float" not in features
    for feature in TOLD_BY:
        assert any(covers(feature, known) for known in FEATURES)
    assert {name for names in TOLD_BY.values() for name in names} <= SCALARS | set(TENSORS)


@pytest.mark.parametrize(
    ("text", "value"),
    [("ceil(q_len / 4)", 3), ("2 * 32 * (head_dim + 1) * 4", 16640), ("max(q_len, 7, -q_len) // 2 % 3", 2), (5, 5)],
)
def test_expressions_are_arithmetic(text: str | int, value: int) -> None:
    assert parse(text, SIZES).whole({"q_len": 10, "head_dim": 64}) == value


@pytest.mark.parametrize(
    "text",
    "q_len.real;[q_len];q_len if 1 else 2;True;'a';abs(q_len);ceil();ceil(1, 2);max(1);ceil(x=1);(;lambda: 1;"
    f"q_len << 9;(q_len := 2);max(*q_len);;1j;9 ** 9 ** 9;{10**300}".split(";"),
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, SIZES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("1 // (q_len - 10)", "by zero"), ("q_len / 4", "use a whole number")])
def test_a_value_that_is_no_count_is_told(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text, SIZES).whole({"q_len": 10})


@needs_toolkit
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"q_heads", "batch"]', '"q_heads", "1/0"]', "my_kernel.toml: [attention]: grid: '1/0': division by zero"),
        ('"q_heads", "batch"]', '"q_heads", "q_len/4"]', "grid: 'q_len/4' is 1.25: use a whole number, by // or ceil"),
        ('"q_heads", "batch"]', '"q_heads", "1e400*1"]', "grid: cannot convert float infinity to integer"),
        ('"q_heads", "batch"]', '"q_heads", -1]', "my_kernel.toml: [attention]: grid"),
        (
            "block = [128]",
            "block = [5000]",
            "[attention]: block is [5000]: use 1 to 1024 threads in all",
        ),
        ('"2 * 32 * head_dim * itemsize"', "10000000000000", "shared is 10000000000000 bytes: use 0 to 232448"),
    ],
)
def test_numbers_that_no_launch_has_are_one_line(
    folder: Path, attnspec: Attnspec, old: str, new: str, message: str
) -> None:
    path = folder / "my_kernel.toml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    done = attnspec("validate", "my_kernel.cu:attention", "--case", CASE, "--jobs=1")
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@needs_toolkit
def test_a_grid_of_no_blocks_is_refused_and_a_call_without_rows_is_not(folder: Path) -> None:
    path = folder / "my_kernel.toml"
    path.write_text(path.read_text().replace('"ceil(q_len / 4)"', '"q_len // 4"'))
    backend = load_cuda_file(folder / "my_kernel.cu", "attention")
    query, key = torch.ones(2, 3, 3, 8), torch.ones(2, 3, 5, 8)
    with pytest.raises(
        InputError, match=r"my_kernel.toml: \[attention\]: grid is \[0, 3, 2\], which runs nothing: use 1"
    ):
        backend(query, key, key)
    assert backend(query[:, :, :0], key, key).shape == (2, 3, 0, 8)
