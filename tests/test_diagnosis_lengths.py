"""Diagnosis follows key_lengths: the right steps are the reference, and faults of real kernels have their names."""

from __future__ import annotations

import pytest
import torch
from mutants import mutant_named
from mutants.house import HONEST, kernel_of

from attnspec.conformance.catalogue import case_named
from attnspec.conformance.diagnosis.diagnose import diagnose
from attnspec.conformance.diagnosis.evidence import ForwardEvidence
from attnspec.conformance.diagnosis.steps import Steps, attend
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer
from attnspec.spec.problem import Problem

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = "b=3/hq=2/q=5/k=70/d=64/lengths=ragged/seed=1"
CAUSAL = "b=3/hq=2/q=5/k=70/d=64/causal=lower_right/lengths=ragged/seed=1"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        CAUSAL,
        CAUSAL.replace("lower_right", "upper_left"),
        "b=3/hq=2/q=33/k=20/d=8/lengths=zero/window=3.2.lower_right/seed=1",
        "b=3/bkv=1/hq=4/hkv=2/q=5/k=20/d=8/lengths=zero/mask=float.bhqk.random/sinks/softcap=2/seed=1",
        "b=3/hq=2/q=5/k=20/d=8/lengths=ragged/causal=lower_right/alibi=symmetric.upper_left/seed=1",
    ],
)
def test_the_right_steps_are_the_reference(text: str) -> None:
    problem = Problem.parse(text)
    call = make_call(problem).but(return_lse=True)
    right, truth = attend(call, problem.corner, Steps()).result, answer(call, problem.corner)
    torch.testing.assert_close(right.output, truth.output, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(right.lse, truth.lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kernel", "text"), [("lengths_tiled", PLAIN), ("lengths_lower_right", CAUSAL)])
def test_an_honest_kernel_has_no_name(kernel: str, text: str) -> None:
    honest = resolve(f"{HONEST}/{kernel}.py:attention")
    case = case_named(f"output_stays_within_budget/{text}")
    call = make_call(case.problem)
    assert not ForwardEvidence(call, honest(call), case.problem.corner, "fused").wrong
    assert diagnose(honest, case) is None


@pytest.mark.parametrize(
    ("mutant", "text", "name"),
    [
        ("lengths-ignored", PLAIN, "lengths-ignored"),
        ("length-of-batch-0", PLAIN, "lengths-of-batch-0"),
        ("length-one-too-many", PLAIN, "lengths-one-long"),
        ("length-one-too-few", PLAIN, "lengths-one-short"),
        ("corner-at-the-end-of-the-storage", CAUSAL, "lengths-corner-of-storage"),
        ("corner-one-too-early", CAUSAL, "causal-misses-own-key"),
        ("corner-upper-left-with-lengths", CAUSAL, "causal-other-corner"),
        ("causal-dropped-with-lengths", CAUSAL, "causal-dropped"),
    ],
)
def test_a_fault_with_lengths_has_its_name(mutant: str, text: str, name: str) -> None:
    found = diagnose(kernel_of(mutant_named(mutant)), case_named(f"output_stays_within_budget/{text}"))
    assert found is not None
    assert found.names == (name,)
