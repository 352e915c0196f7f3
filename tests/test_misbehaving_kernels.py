"""A kernel that hangs, crashes, prints, leaves or takes all memory, as a user meets it on the command line."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CONSOLE_SCRIPT, CORE_CASE, Process, clean_environment, run, write_expectations

from attnspec.conformance.report import read_report

Attnspec = Callable[..., Process]
File = Callable[..., Path]

MISBEHAVING = """
import os, sys, time
import torch
from torch.nn.functional import scaled_dot_product_attention

def attention(query, key, value):
    q_len = query.shape[2]
    output = scaled_dot_product_attention(query, key, value)
    if q_len == 11:
        time.sleep(1000)
    if q_len == 12:
        os._exit(0)
    if q_len == 13:
        print("x" * 2**20)
        print("y" * 2**20, file=sys.stderr)
    if q_len == 14:
        raise ValueError("first\\nsecond")
    if q_len == 15:
        return output[..., :1]
    if q_len == 16:
        return output.double()
    if q_len == 17:
        return [output]
    if q_len == 18:
        return output * torch.nan
    if q_len == 19:
        sys.exit("leaving")
    if q_len == 21:
        return attention(query, key, value)
    if q_len == 22:
        hoard = []
        while True:
            hoard.append(torch.ones(2**24))
    return output
"""
MISBEHAVIOUR = [  # q_len, outcome, rule
    (10, "pass", None),
    (11, "timeout", "contract.declared-runs"),
    (12, "crashed", "contract.declared-runs"),
    (13, "pass", None),
    (14, "fail", "profile.core"),
    (15, "fail", "contract.output-shape"),
    (16, "fail", "contract.output-dtype"),
    (17, "fail", "contract.output-type"),
    (18, "fail", "contract.output-written"),
    (19, "fail", "profile.core"),
    (20, "pass", None),
    (21, "fail", "profile.core"),
    (22, "crashed", "contract.declared-runs"),
    (23, "pass", None),
]


def case_of(q_len: int) -> str:
    """The case by which the misbehaving kernel is told what to do."""
    return f"output_stays_within_budget/q={q_len}/k=9/d=8/dtype=float32"


@pytest.fixture(scope="session")
def misbehaved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Process, Path]:
    """One run of a kernel that does something else in each case, and its report."""
    folder = tmp_path_factory.mktemp("misbehaved")
    (folder / "mine.py").write_text(MISBEHAVING)
    cases = [f"--case={case_of(q_len)}" for q_len, _, _ in MISBEHAVIOUR]
    options = ["--jobs=1", "--timeout=10", "--memory=2", "--report=report.jsonl", *cases]
    return run([str(CONSOLE_SCRIPT), "validate", "mine.py:attention", *options], folder), folder / "report.jsonl"


@pytest.mark.parametrize(("q_len", "outcome", "rule"), MISBEHAVIOUR)
def test_what_a_kernel_does_in_one_case_is_that_case_s_result(
    misbehaved: tuple[Process, Path], q_len: int, outcome: str, rule: str | None
) -> None:
    (result,) = (r for r in read_report(misbehaved[1]).results if r.id == case_of(q_len))
    assert (result.outcome, result.rule) == (outcome, rule)


def test_the_report_of_a_kernel_that_misbehaves_is_whole(misbehaved: tuple[Process, Path]) -> None:
    report = read_report(misbehaved[1])
    assert len(report.results) == len(MISBEHAVIOUR)
    assert report.header["target"] == "mine.py:attention"
    assert report.header["hardware"] == "cpu"
    assert report.footer["verdict"] == "not_conformant"
    assert [path.name for path in misbehaved[1].parent.glob("report*")] == ["report.jsonl"]


def test_a_kernel_that_misbehaves_is_not_conformant(misbehaved: tuple[Process, Path]) -> None:
    process = misbehaved[0]
    assert process.returncode == 1
    assert "4 pass, 7 fail, 2 crashed, 1 timeout" in process.stdout
    assert "Traceback" not in process.stdout + process.stderr


def test_a_kernel_that_takes_all_memory_is_told_the_limit(misbehaved: tuple[Process, Path]) -> None:
    (result,) = (r for r in read_report(misbehaved[1]).results if r.id == case_of(22))
    assert "held more than 2 GiB and was ended" in (result.message or "")


def test_what_a_kernel_prints_drowns_nothing(misbehaved: tuple[Process, Path]) -> None:
    process, report = misbehaved
    assert len(process.stdout) + len(process.stderr) < 20_000
    assert report.stat().st_size < 40_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_file_and_no_process(kernel_file: File, tmp_path: Path, number: int) -> None:
    kernel_file(MISBEHAVING.replace("time.sleep(1000)", "open('pid', 'w').write(str(os.getpid())); time.sleep(1000)"))
    cases = [f"--case={case_of(10)}", f"--case={case_of(11)}"]
    command = [str(CONSOLE_SCRIPT), "validate", "mine.py:attention", "--jobs=1", "--report=report.jsonl", *cases]
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), **settings) as process:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        assert (tmp_path / "report.jsonl.part").exists()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (stdout, stderr) == ("", "attnspec: interrupted; nothing was written\n")
    assert list(tmp_path.glob("report*")) == []
    worker = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{worker}").exists())


def wait_until(holds: Callable[[], object]) -> None:
    """Wait, a minute at most, until something holds."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("nothing happened within a minute")


def test_a_recorded_crash_is_excused(attnspec: Attnspec, kernel_file: File, tmp_path: Path) -> None:
    kernel_file(MISBEHAVING)
    path = write_expectations(tmp_path / "expected.json", {"case": case_of(12), "outcome": "crashed"})
    options = ("--jobs=1", f"--expectations={path}", f"--case={case_of(10)}", f"--case={case_of(12)}")
    process = attnspec("validate", "mine.py:attention", *options)
    assert process.returncode == 0
    assert "not conformant: 1 recorded deviation" in process.stdout


def test_a_time_limit_beyond_any_clock_is_a_long_one(attnspec: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from torch.nn.functional import scaled_dot_product_attention as attention\n")
    done = attnspec("validate", "mine.py:attention", "--jobs=1", "--timeout=99999999999", f"--case={CORE_CASE}")
    assert (done.returncode, done.stderr) == (0, "")
