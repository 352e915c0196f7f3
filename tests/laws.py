"""Laws, and the planted faults that each of them must find: the tests of such a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

Kernel = Callable[..., Any]
Law = Callable[[Any], None]


def law_tests(
    references: Sequence[Kernel], laws: Sequence[Law], faults: Sequence[tuple[Kernel, Law]]
) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """Return three tests: each reference keeps each law, each fault breaks its law, and no law is without a fault.

    A law takes a kernel and asserts. faults: kernels with one planted fault each, and the law that must fail on it.
    """

    @pytest.mark.parametrize("reference", references, ids=lambda part: part.__name__)
    @pytest.mark.parametrize("law", laws, ids=lambda part: part.__name__)
    def reference_keeps_the_law(law: Law, reference: Kernel) -> None:
        law(reference)

    @pytest.mark.parametrize(("fault", "law"), faults, ids=lambda part: part.__name__)
    def fault_breaks_the_law(fault: Kernel, law: Law) -> None:
        with pytest.raises(AssertionError):
            law(fault)

    def each_law_finds_a_fault() -> None:
        assert {law for _, law in faults} == set(laws)

    return reference_keeps_the_law, fault_breaks_the_law, each_law_finds_a_fault
