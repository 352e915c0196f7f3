"""`docs/article.md`: its code runs as shown, its numbers are those that are computed today, what it names exists."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import article
from bench.article import Section

from attnspec.conformance.catalogue import case_named
from attnspec.spec.rules import CHAPTERS, all_rules, chapter_text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "article.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?%?(?![\w.])")
Rows = list[list[str]]


def rows_of(text: str, head: str) -> Rows:
    """Return the cells of the table whose first line is `head`, without its heading."""
    lines = text.splitlines()
    start = lines.index(head) + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def shown_and_measured(section: Callable[[], Section]) -> tuple[Rows, Rows]:
    """Return a section's table as the page shows it, and as it is measured now; its claim holds."""
    lines, holds = section()
    assert holds, lines[0]
    head = next(line for line in lines if line.startswith("|"))
    return rows_of(PAGE, head), rows_of("\n".join(lines), head)


def numbers(rows: Rows) -> list[float]:
    """Return every number in a table, a percentage as its share."""
    found = [NUMBER.findall(cell) for row in rows for cell in row]
    return [float(x.rstrip("%")) / (100 if x.endswith("%") else 1) for cell in found for x in cell]


def test_the_code_of_the_page_prints_the_shape_that_the_article_names() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/article.md", "exec"), {})
    assert printed.getvalue() == "shape of the output: torch.Size([2, 5, 64])\n"


@pytest.mark.parametrize("section", [article.cache, article.masks, article.traffic], ids=lambda part: part.__name__)
def test_what_is_no_measurement_is_shown_to_the_letter(section: Callable[[], Section]) -> None:
    shown, computed = shown_and_measured(section)
    assert shown == computed


@pytest.mark.parametrize("section", [article.variances, article.gradients], ids=lambda part: part.__name__)
def test_what_is_drawn_from_a_seed_is_shown_as_measured(section: Callable[[], Section]) -> None:
    shown, measured = shown_and_measured(section)
    assert numbers(shown) == pytest.approx(numbers(measured), rel=0.01, abs=0.003)


def test_variances_lie_within_their_statistical_error() -> None:
    for d_k, plain, scaled, sigma in (numbers([row]) for row in rows_of(PAGE, article.variances()[0][4])):
        assert sigma == pytest.approx(((2 + 6 / d_k) / article.PAIRS) ** 0.5, abs=5e-5)
        assert abs(plain / d_k - 1) < 4 * sigma
        assert abs(scaled - 1) < 4 * sigma


def test_subspaces_of_heads_are_as_far_from_orthogonal_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(article, "MODELS", article.MODELS[:2])  # the largest takes long
    shown, measured = shown_and_measured(article.heads)
    assert numbers(shown[:2]) == pytest.approx(numbers(measured), abs=0.011)


def test_tiles_stay_within_the_budget_and_change_bits() -> None:
    shown, measured = shown_and_measured(article.exactness)
    assert [row[0] for row in shown] == [row[0] for row in measured]
    for shown_row, row in zip(shown, measured, strict=True):
        assert numbers([shown_row[1:]]) == pytest.approx(numbers([row[1:]]), rel=0.5, abs=0.05)


def test_the_table_of_memory_is_that_of_the_chapter_and_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "bench")  # a script imports what lies beside it
    memory = importlib.import_module("memory")
    head = "| backend | pass | L = 256 | L = 512 | L = 1024 | L = 2048 | L = 4096 | exponent |"
    short = head.replace("| L = 2048 | L = 4096 ", "")
    shown = rows_of(chapter_text("flash-attention"), head)
    assert rows_of(PAGE, "| backend | pass | L = 4096, KiB | exponent |") == [[*row[:2], *row[-2:]] for row in shown]
    measured = rows_of(memory.table(memory.QUICK), short)
    assert numbers([row[2:5] for row in shown]) == pytest.approx(numbers([row[2:5] for row in measured]), rel=0.05)


def test_the_sizes_in_the_table_of_costs_follow_from_its_lengths() -> None:
    head = next(line for line in PAGE.splitlines() if "hidden layer, MiB" in line)
    for row in rows_of(PAGE, head):
        d, length, scores, hidden = (float(row[i]) for i in (0, 1, 3, 4))
        least, most = (float(x) for x in row[2].split(" to "))
        assert 1 < least < most
        assert (f"{length**2 * 8 / 2**20:.2f}", f"{length**2 * 8 * d / 2**20:.2f}") == (row[3], row[4])
        assert hidden > scores


def test_rules_chapters_cases_and_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`([a-z-]+(?:\.[a-z-]+)?)`", PAGE)
    rules = [name for name in named if re.fullmatch(r"[a-z-]+\.[a-z-]+", name)]
    assert rules
    assert set(rules) <= set(all_rules())
    chapters = re.findall(r"[Cc]hapters?\s+`([a-z-]+)`", PAGE)
    assert chapters
    assert set(chapters) <= set(CHAPTERS)
    for case in re.findall(r"--case (\S+)", PAGE):
        assert case_named(case).id
    for path in re.findall(r"(?:tests|docs)/[\w/]+\.(?:py|md)", PAGE):
        assert (ROOT / path).is_file(), path
