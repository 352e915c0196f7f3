"""The command line, as a user meets it: exit codes, one line for bad input, and reports that are whole or not there.

Every test starts the program anew; what several tests look at is run once, in a fixture of the session.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CONSOLE_SCRIPT, CORE_CASE, Process, run, target_of, write_expectations

from attnspec.conformance.catalogue import case_named

Attnspec = Callable[..., Process]
File = Callable[..., Path]

ONE = ("--jobs=1", f"--case={CORE_CASE}")
CAUSAL_CASE = "visible_set_is_exact/q=5/k=70/d=64/dtype=float32/causal/seed=1"
GROUPED_CASE = "query_heads_read_their_group/b=2/hq=6/hkv=3/q=9/k=21/d=16/dtype=float32/seed=1"
RIGHT = "from torch.nn.functional import scaled_dot_product_attention as attention\n"
ESCAPE = "\x1b"


def told(process: Process) -> str:
    """What the program says of bad input: one line, exit code 2, nothing else."""
    assert process.stdout == ""
    assert process.returncode == 2, process.stderr
    assert re.fullmatch(r"attnspec: error: [^\n]+\n", process.stderr)
    return process.stderr


# A kernel that is right, and two that are not


def test_a_right_kernel_is_conformant(attnspec: Attnspec, kernel_file: File, tmp_path: Path) -> None:
    kernel_file(RIGHT)
    process = attnspec("validate", "mine.py:attention", "--jobs=2", f"--case={CORE_CASE}", f"--case={CAUSAL_CASE}")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines()[-1].endswith(" s: the 2 chosen cases that the kernel supports pass (spec 0.1)")
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


@pytest.mark.parametrize(
    ("name", "case", "rule"),
    [
        ("shifted_causal", CAUSAL_CASE, "mask.causal-upper-left"),
        ("tiled_heads", GROUPED_CASE, "grouped.head-map"),
    ],
)
def test_a_wrong_kernel_is_named_with_the_rule_and_a_rerun(attnspec: Attnspec, name: str, case: str, rule: str) -> None:
    process = attnspec("validate", target_of(name), "--jobs=1", f"--case={case}")
    assert process.returncode == 1
    assert process.stdout.splitlines()[-1].endswith(f"not conformant: breaks {rule}")
    assert f"FAIL {case}\n  rule       {rule} (MUST, chapter " in process.stderr
    assert f"rerun      attnspec validate {target_of(name)} --case {case}\n" in process.stderr
    assert ESCAPE not in process.stdout + process.stderr


def test_the_user_s_folder_and_pytest_settings_do_not_disturb(
    attnspec: Attnspec, kernel_file: File, tmp_path: Path
) -> None:
    kernel_file(RIGHT)
    for name in ("conftest", "reference", "spec", "conformance", "golden", "implementations", "test_mine"):
        kernel_file(f"raise RuntimeError('{name} was imported')\n", f"{name}.py")
    kernel_file(
        "[pytest]\naddopts = --strict-markers --nonsense -x\nrequired_plugins = none\ntimeout = 1\n", "pytest.ini"
    )
    before = {path.name for path in tmp_path.iterdir()}
    hostile = {
        "PYTEST_ADDOPTS": "--nonsense",
        "PYTEST_PLUGINS": "no_such_plugin",
        "PYTHONWARNINGS": "error::UserWarning",
    }
    process = attnspec("validate", "mine.py:attention", *ONE, **hostile)
    assert (process.returncode, process.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} - before <= {"__pycache__"}


# Bad input


@pytest.mark.parametrize(
    ("text", "attribute", "said"),
    [
        (None, "attention", "target file 'mine.py' does not exist"),
        (RIGHT, "missing", "mine.py has no attribute 'missing'"),
        ("attention = 3", "attention", "attention is not callable, but int"),
        ("raise ValueError('first\\nsecond')", "attention", "raised on import: ValueError: first second"),
        ("import os\nos._exit(0)", "attention", "killed its process on import"),
        ("def attention(x): ...", "attention", "takes x: it must take query, key and value"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_line(
    attnspec: Attnspec, kernel_file: File, tmp_path: Path, text: str | None, attribute: str, said: str
) -> None:
    if text is not None:
        kernel_file(text)
    assert said in told(attnspec("validate", f"mine.py:{attribute}", "--report=report.jsonl", *ONE))
    assert list(tmp_path.glob("report*")) == []


def test_a_target_that_cannot_be_used_stops_the_whole_level_at_once(attnspec: Attnspec) -> None:
    began = time.monotonic()
    assert "target module 'missing' does not exist" in told(attnspec("validate", "missing:attention", "--jobs=1"))
    assert time.monotonic() - began < 25  # every case tried in turn takes a minute and more


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device=nonsense",), "device 'nonsense' cannot be used here"),
        (("--accuracy=exact",), "accuracy has 'exact'; use one of fused, eager"),
    ],
)
def test_a_setting_that_the_target_cannot_have_is_one_line(
    attnspec: Attnspec, options: tuple[str, ...], said: str
) -> None:
    assert said in told(attnspec("validate", "torch.nn.functional:scaled_dot_product_attention", *ONE, *options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--profile=corr", "unknown profile 'corr': use one of core"),
        ("--rule=mask.nonsense", "unknown rule 'mask.nonsense': see `attnspec list rules`"),
        ("--case=nonsense", "unknown case 'nonsense'"),
        ("--case=visible_set_is_exact/q=1/k=1", "lacks d="),
        ("--dtype=int8", "unknown dtype 'int8': use one of float32"),
        ("--level=slow", "unknown level 'slow': use one of quick, full"),
        ("--shard=1", "shard '1': use I/N, such as 1/4"),
        ("--shard=5/4", "shard 5/4: use I/N with I from 1 to N"),
        ("--profile=double --dtype=fp32", "no case is left"),
        ("--case=inputs_stay_unchange/q=1/k=1/d=1", "; did you mean 'inputs_stay_unchanged'?"),
        ("--report=.", "report '.' cannot be written: it names no file"),
        ("--report=missing/report.jsonl", "report 'missing/report.jsonl' cannot be written: No such file or directory"),
        ("--expectations=missing.json", "missing.json: cannot be read"),
        ("--expectations=nojson.json", "nojson.json: is not JSON"),
        ("--expectations=schema.json", "schema 'expectations'"),
        ("--expectations=case.json", "case.json: unknown case"),
        ("--expectations=rule.json", "rule.json: unknown rule 'mask.nonsense'"),
    ],
)
def test_a_wrong_option_is_one_line(
    attnspec: Attnspec, kernel_file: File, tmp_path: Path, options: str, said: str
) -> None:
    kernel_file("{", "nojson.json")
    kernel_file('{"format": 2}', "schema.json")
    for name, entry in (("case", "nonsense/q=1/k=1/d=1"), ("rule", "mask.nonsense")):
        write_expectations(tmp_path / f"{name}.json", {name: entry})
    before = sorted(tmp_path.iterdir())
    assert said in told(attnspec("validate", "missing.py:attention", *options.split()))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments", ["show nonsense", "show nonsense/q=1", "list cases --level=slow", "matrix --backends=none"]
)
def test_the_other_commands_tell_bad_input_in_one_line_too(attnspec: Attnspec, arguments: str) -> None:
    told(attnspec(*arguments.split()))


@pytest.mark.parametrize("arguments", ["", "validate", "nonsense", "validate a:b --nonsense", "validate a:b --jobs=x"])
def test_a_wrong_command_line_is_exit_code_2_without_a_traceback(attnspec: Attnspec, arguments: str) -> None:
    process = attnspec(*arguments.split())
    assert process.returncode == 2
    assert "Traceback" not in process.stderr


# Recorded deviations


@pytest.mark.parametrize(
    ("name", "case", "entry", "code", "statement"),
    [
        ("shifted_causal", CAUSAL_CASE, {"rule": "mask.causal-upper-left"}, 0, "not conformant: 1 recorded deviation"),
        ("honest", CAUSAL_CASE, {"case": CAUSAL_CASE}, 1, f"not conformant as recorded: {CAUSAL_CASE} passes, against"),
    ],
)
def test_a_recorded_deviation_is_excused_until_it_passes(
    attnspec: Attnspec, tmp_path: Path, name: str, case: str, entry: dict[str, str], code: int, statement: str
) -> None:
    path = write_expectations(tmp_path / "expected.json", entry)
    process = attnspec("validate", target_of(name), f"--expectations={path}", "--jobs=1", f"--case={case}")
    assert process.returncode == code
    assert statement in process.stdout
    assert "conformant to" not in process.stdout


# Commands that only tell


def test_the_version_is_that_of_the_suite_and_of_the_spec(attnspec: Attnspec) -> None:
    assert attnspec("--version").stdout == "attnspec 0.1.0 (spec 0.1)\n"


@pytest.mark.parametrize(
    ("what", "keys"),
    [
        ("backends", {"name", "status"}),
        ("profiles", {"name", "summary"}),
        ("rules", {"id", "strength", "chapter", "checks"}),
        ("cases", {"id", "family", "rules", "profiles"}),
    ],
)
def test_a_list_can_be_read_by_a_program(attnspec: Attnspec, what: str, keys: set[str]) -> None:
    rows = json.loads(attnspec("list", what, "--json").stdout)
    assert rows
    assert all(row.keys() == keys for row in rows)


@pytest.mark.parametrize("what", ["backends", "profiles", "rules", "cases"])
def test_a_list_in_a_pipe_is_plain_text(attnspec: Attnspec, what: str) -> None:
    process = attnspec("list", what, NO_COLOR="1")
    assert process.returncode == 0
    assert process.stderr == ""
    assert ESCAPE not in process.stdout


def test_a_list_whose_reader_has_gone_ends_quietly(tmp_path: Path) -> None:
    process = run(["bash", "-c", f"{CONSOLE_SCRIPT} list cases --level=full | head -1"], tmp_path)
    assert process.stdout.count("\n") == 1
    assert process.stderr == ""


@pytest.mark.parametrize(("name", "key"), [("mask.bool", "rule"), (CORE_CASE, "case")])
def test_a_rule_and_a_case_are_shown(attnspec: Attnspec, name: str, key: str) -> None:
    assert json.loads(attnspec("show", name, "--json").stdout)[key] == name


def test_a_rule_is_shown_in_words(attnspec: Attnspec) -> None:
    lines = attnspec("show", "mask.bool").stdout.splitlines()
    assert lines[0].split() == ["rule", "mask.bool"]
    assert lines[1].split() == ["strength", "MUST"]


def test_a_case_that_is_listed_can_be_listed_again_by_its_options(attnspec: Attnspec) -> None:
    listed = attnspec("list", "cases", "--profile=masks", "--dtype=bf16", "--rule=mask.combine").stdout.splitlines()
    assert listed
    assert {case_named(case).problem.dtype for case in listed} == {"bfloat16"}


def test_the_program_can_be_started_as_a_module(tmp_path: Path) -> None:
    python = str(CONSOLE_SCRIPT.with_name("python"))
    assert run([python, "-m", "attnspec.conformance.cli", "--version"], tmp_path).returncode == 0


def test_nothing_slow_is_imported_to_tell_a_version() -> None:
    script = (
        "import sys; from attnspec.conformance import cli; print({'torch', 'hypothesis', 'pytest'} & set(sys.modules))"
    )
    assert run([str(CONSOLE_SCRIPT.with_name("python")), "-c", script], Path(os.sep)).stdout == "set()\n"
