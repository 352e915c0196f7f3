"""The parts of the GPU check that need no GPU: the work of a pass, ratios and verdicts, the table, the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnspec.implementations.triton_flash import benchmark, gpu_check
from attnspec.implementations.triton_flash.benchmark import CUDNN, FLASH, OURS, Measured, Peaks, Workload

FORWARD = Workload("forward", 1024, 128, causal=False)
PEAKS = Peaks(multiply=800e12, copy=4e12)


def taking(work: Workload, **seconds: float) -> Measured:
    names = {"ours": OURS, "flash": FLASH, "cudnn": CUDNN}
    return Measured(work, {names[name]: time for name, time in seconds.items()})


def test_the_work_of_a_forward_pass_is_two_products() -> None:
    work = Workload("forward", 2048, 64, causal=False)
    assert (work.batch, work.heads, work.q_len) == (8, 32, 2048)
    assert work.operations == 2 * (2 * 8 * 32 * 2048 * 2048 * 64)


def test_the_triangle_halves_the_work_and_a_backward_pass_has_five_products() -> None:
    assert Workload("forward", 1024, 128, True).operations == FORWARD.operations / 2
    assert Workload("backward", 1024, 128, False).operations == FORWARD.operations * 5 / 2


def test_a_decode_has_one_query_and_reads_each_key_once() -> None:
    work = Workload("decode", 4096, 128, causal=False)
    assert (work.batch, work.heads, work.kv_heads, work.q_len) == (16, 16, 4, 1)
    assert work.operations == 4 * 16 * 16 * 4096 * 128
    assert work.key_bytes == 2 * (2 * 16 * 4 * 4096 * 128)


def test_long_sequences_come_alone() -> None:
    assert Workload("forward", 32768, 64, causal=True).batch == 1


def test_every_pass_is_timed_at_every_length_and_dim() -> None:
    found = list(benchmark.workloads())
    assert len(found) == len(set(found)) == (2 + 2 + 1) * 2 * 6
    assert {work.length for work in found} == {1024, 2048, 4096, 8192, 16384, 32768}


@pytest.mark.parametrize(("kind", "asked"), [("forward", 0.8), ("backward", 0.7)])
def test_a_kernel_that_is_too_slow_falls_short(kind: str, asked: float) -> None:
    work = Workload(kind, 1024, 128, causal=True)
    assert list(benchmark.shortfalls([taking(work, ours=1 / asked, flash=1.0)])) == []
    (line,) = benchmark.shortfalls([taking(work, ours=1.02 / asked, flash=1.0)])
    assert line == f"{kind}, length 1024, dim 128, causal: {asked / 1.02:.2f} of {FLASH}, {asked} is asked for"


def test_what_did_not_run_is_no_success() -> None:
    decode = Workload("decode", 1024, 64, causal=False)
    assert list(benchmark.shortfalls([taking(FORWARD, flash=1.0)])) == [
        "forward, length 1024, dim 128: triton_flash did not run"
    ]
    assert "nothing is compared" in next(benchmark.shortfalls([taking(FORWARD, ours=1.0)]))
    assert list(benchmark.shortfalls([taking(decode, ours=9.0, flash=1.0)])) == []


def test_the_share_is_of_the_matmul_and_for_a_decode_of_the_copy() -> None:
    decode = Workload("decode", 4096, 128, causal=False)
    assert taking(FORWARD, ours=FORWARD.operations / 400e12).share(PEAKS) == pytest.approx(0.5)
    assert taking(decode, ours=decode.key_bytes / 1e12).share(PEAKS) == pytest.approx(0.25)
    assert taking(FORWARD, flash=1.0).share(PEAKS) is None


def test_the_table_shows_rates_shares_and_ratios() -> None:
    row = taking(FORWARD, ours=FORWARD.operations / 400e12, flash=FORWARD.operations / 500e12)
    lines = benchmark.page("a GPU", "torch 2", PEAKS, [row])
    assert lines[-1] == "| forward | 128 | no | 1024 | 16 x 16 | 400.0 | 500.0 | - | 50% | 0.80 |"
    columns = [line.count("|") for line in lines if line.startswith("|")]
    assert len(set(columns)) == 1
    data = json.loads(json.dumps(benchmark.to_json("a GPU", "torch 2", PEAKS, [row])))
    assert data["rows"][0]["workload"]["length"] == 1024
    assert data["rows"][0]["ratio"] == pytest.approx(0.8)


def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "gpu check: torch sees no CUDA GPU; run this where there is one\n")


@pytest.mark.parametrize("given", [["--length", "0"], ["--length", "1k"], ["--head-dim", "63"], ["--kind", "sideways"]])
def test_bad_options_are_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        gpu_check.parsed(given)
    assert end.value.code == 2


def test_options_choose_what_is_timed(tmp_path: Path) -> None:
    asked = gpu_check.parsed(["--length", "2048", "--kind", "decode", "--out", str(tmp_path)])
    found = list(benchmark.workloads(asked.length, asked.head_dim, asked.kind))
    assert [(work.kind, work.length, work.head_dim) for work in found] == [("decode", 2048, 64), ("decode", 2048, 128)]
    assert asked.out == tmp_path


def test_the_suite_runs_on_the_gpu_in_a_process_of_its_own() -> None:
    command = gpu_check.suite_command("full")
    assert command[:2] == [sys.executable, "-c"]
    assert command[3:] == ["validate", "triton_flash", "--device", "cuda", "--level", "full"]


@pytest.mark.parametrize("kind", ["forward", "backward", "decode"])
def test_each_pass_is_run_and_a_refusal_is_said(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed_once(run: Callable[[], object]) -> float:
        ran.append(run())
        return 1.0

    def refuse(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    ran: list[object] = []
    attention = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(gpu_check, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_check, "seconds", timed_once)
    monkeypatch.setattr(gpu_check, "kernels", lambda work: {OURS: attention, CUDNN: refuse})
    monkeypatch.setattr(benchmark, "TOKENS", 16)
    work = Workload(kind, 16, 64, causal=False)
    assert gpu_check.times(work) == {OURS: 1.0}
    assert "torch cudnn refuses" in capsys.readouterr().err
    (found,) = ran
    rows = [tuple(x.shape) for x in (found if isinstance(found, tuple) else (found,))]
    query, key = (work.batch, 32, work.q_len, 64), (work.batch, work.kv_heads, 16, 64)
    assert rows == ([query, key, key] if kind == "backward" else [query])
