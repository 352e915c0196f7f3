"""Every planted fault of the CUDA kernels is found by the cases it names, which the kernels as they are pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_mutants import MUTANTS, CudaMutant, mutated
from findings import finding

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import case_named
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.running import run_case
from attnspec.implementations.cuda_flash.backend import CudaFlash


def kernel_of(backend: CudaFlash) -> Kernel:
    return Kernel(backend.name, backend.name, backend, backend.capabilities)


def cases_of(mutant: CudaMutant) -> list[Case]:
    return [case_named(name) for name in mutant.cases]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_is_found_by_its_cases(mutant: CudaMutant, tmp_path: Path) -> None:
    kernel = kernel_of(mutated(mutant, tmp_path))
    assert mutant.cases
    for case in cases_of(mutant):
        assert finding(kernel, case) is not None, case.id


@pytest.mark.parametrize("name", sorted({name for mutant in MUTANTS for name in mutant.cases}))
def test_the_kernels_as_they_are_pass_these_cases(name: str) -> None:
    run_case(kernel_of(CudaFlash()), case_named(name))


def test_no_two_faults_are_one() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)
