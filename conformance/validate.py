"""One validation: the plugin run in worker processes, its results gathered into a verdict and a report.

A crash, a hang or exhausted memory of the kernel ends a worker, which is one case's result; the run goes on in
another.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest

from attnspec.conformance import SUITE_VERSION
from attnspec.conformance.catalogue import case_named
from attnspec.conformance.covering import Pairs, coverage
from attnspec.conformance.expectations import Expectations, read_expectations
from attnspec.conformance.failure_screen import failure_screen
from attnspec.conformance.memory_limit import MemoryLimit
from attnspec.conformance.outcome import BROKEN, CaseResult, Violation
from attnspec.conformance.plugin import KERNEL, RESULT, ROOM, UNUSABLE, blank_result, loading_limit, rerun_command
from attnspec.conformance.report import ReportWriter
from attnspec.conformance.selection import Selection
from attnspec.conformance.verdict import Verdict, verdict_of
from attnspec.implementations.registry import sanitizer_environment
from attnspec.spec import SPEC_VERSION
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

TIMEOUT = 120  # seconds for one case
UNUSED = (  # of pytest's own plugins: a run has thousands of short cases, and none of these has a part in it
    "cacheprovider",
    "terminal",
    "logging",
    "warnings",
    "unraisableexception",
    "threadexception",
    "faulthandler",
    "doctest",
    "stepwise",
    "junitxml",
    "pastebin",
    "setuponly",
    "setupplan",
)


@dataclass(frozen=True)
class Run:
    """What the user asked for. target: see `targets`; jobs: worker processes; timeout: seconds a case; memory: GiB a
    worker, by default its share of what is free; sanitize: `thread` or `address`, in the workers."""

    target: str
    selection: Selection = field(default_factory=Selection)
    accuracy: str | None = None
    causal_alignment: str | None = None
    device: str | None = None
    jobs: int = 0
    timeout: int = TIMEOUT
    memory: float | None = None
    fail_fast: bool = False
    expectations: Path | None = None
    report: Path | None = None
    command: tuple[str, ...] = ()
    sanitize: str | None = None
    alibi_alignment: str | None = None

    def workers(self) -> int:
        """Number of worker processes: as asked for, else one a core, at most 4, and no more than there are cases."""
        return min(self.jobs or min(os.cpu_count() or 1, 4), len(self.selection.cases()))

    def pytest_arguments(self, watch: Path) -> list[str]:
        """Return the arguments of the pytest run, which looks at no file of the user's but the target. watch: a folder
        for the last words of workers that end at the time limit."""
        s = self.selection
        asked = {"profile": s.profiles, "rule": s.rules, "dtype": s.dtypes, "case": s.case_ids}
        single = {
            "backend": self.target,
            "level": s.level,
            "shard": "/".join(map(str, s.shard)),
            "accuracy": self.accuracy,
            "causal-alignment": self.causal_alignment,
            "alibi-alignment": self.alibi_alignment,
            "device": self.device,
            "sanitize": self.sanitize,
            "timeout": self.timeout,
            "seed": s.seed,
            "watch": watch,
            "expectations": str(self.expectations.resolve()) if self.expectations else None,
        }
        plugins = ("xdist.plugin", "attnspec.conformance.plugin", *(f"no:{name}" for name in UNUSED))
        return [
            *(part for name in plugins for part in ("-p", name)),
            *("-c", os.devnull, f"--rootdir={ROOM}", "--noconftest", f"--numprocesses={self.workers()}"),
            *("--max-worker-restart=1000000", "--dist=load", "--maxschedchunk=4"),
            *(("--maxfail=1",) if self.fail_fast else ()),
            *(f"--attn-{name}={value}" for name, value in single.items() if value is not None),
            *(f"--attn-{name}={value}" for name, values in asked.items() for value in values),
            str(ROOM),
        ]


class Listener(Protocol):
    """Hears of results as they come, to show progress."""

    def heard(self, result: CaseResult, done: int, total: int) -> None:
        """A case has ended."""


@dataclass(frozen=True)
class Validation:
    """What a run gave. kernel: what the report's header says of it. pairs: of options that met."""

    verdict: Verdict
    results: tuple[CaseResult, ...]
    kernel: dict[str, Any]
    seconds: float
    pairs: Pairs


def validate(run: Run, listener: Listener | None = None) -> Validation:
    """Run the chosen cases on the target and return the verdict; write the report where one is asked for.

    Raises InputError for bad input, the target's included, and KeyboardInterrupt when interrupted; neither leaves a
    file.
    """
    expected = read_expectations(run.expectations) if run.expectations else Expectations()
    with ExitStack() as stack:
        writer = stack.enter_context(ReportWriter(run.report)) if run.report else None
        limit = MemoryLimit(run.workers(), run.memory)
        watch = Path(stack.enter_context(TemporaryDirectory(prefix="attnspec-")))
        recorder = Recorder(run, writer, listener, expected, limit, watch)
        sanitizer = {}
        if run.sanitize is not None:
            log = Path(stack.enter_context(TemporaryDirectory(prefix="attnspec-")), "sanitizer")
            sanitizer = sanitizer_environment(run.sanitize, log)
        with limit.watch():
            code = _run_pytest(run, recorder, sanitizer)
        if recorder.unusable:
            raise InputError(recorder.unusable)
        if code == pytest.ExitCode.INTERRUPTED and not recorder.stopped_early:
            raise KeyboardInterrupt
        stopped = run.fail_fast and any(result.outcome in BROKEN for result in recorder.results)
        complete = len(recorder.results) == recorder.total or stopped
        unmet = expected.unmet_rules(recorder.results) if complete else []
        pairs = coverage_of(recorder.results, recorder.kernel)
        verdict = verdict_of(recorder.results, tuple(unmet), complete, run.selection.whole, run.selection.profiles)
        seconds = time.monotonic() - recorder.began
        if writer is not None:
            recorder.header()
            writer.finish(_footer(verdict, seconds) | pairs._asdict())
    return Validation(verdict, tuple(recorder.results), recorder.kernel, seconds, pairs)


def coverage_of(results: list[CaseResult], kernel: dict[str, Any]) -> Pairs:
    """Return how far the options were crossed pairwise, by what ran."""
    ran = [Problem.parse(result.ran) for result in results if result.ran]
    return coverage(ran, Capabilities.from_json(kernel["capabilities"])) if kernel else Pairs(0, 0)


def _run_pytest(run: Run, recorder: Recorder, sanitizer: dict[str, str]) -> int:
    """Run pytest in this process as the controller of its workers, out of reach of the user's own pytest settings.
    sanitizer: variables that the workers are started with."""
    quiet: dict[str, str | None] = {
        **sanitizer,
        "PYTEST_ADDOPTS": None,
        "PYTEST_PLUGINS": None,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONSAFEPATH": "1",
    }
    before = {name: os.environ.get(name) for name in quiet}
    _set_environment(quiet)
    try:
        return int(pytest.main(run.pytest_arguments(recorder.watch), plugins=[recorder]))
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _footer(verdict: Verdict, seconds: float) -> dict[str, Any]:
    return {
        "kind": "footer",
        "counts": verdict.counts,
        "verdict": verdict.verdict,
        "statement": verdict.statement,
        "declared_share": verdict.declared_share,
        "finished": now(),
        "seconds": round(seconds, 3),
    }


def now() -> str:
    """The time, in UTC, as RFC 3339 writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Recorder:
    """A pytest plugin for the controller: gathers results, tells a crash from a hang, and streams the report."""

    def __init__(
        self,
        run: Run,
        writer: ReportWriter | None,
        listener: Listener | None,
        expected: Expectations,
        limit: MemoryLimit,
        watch: Path,
    ) -> None:
        self.run, self.writer, self.listener = run, writer, listener
        self.expected, self.limit, self.watch = expected, limit, watch
        self.outgrown = 0  # workers whose end at the memory limit has been told
        self.total = len(run.selection.cases())
        self.results: list[CaseResult] = []
        self.known: set[str] = set()  # ids of the cases that have a result
        self.kernel: dict[str, Any] = {}
        self.unusable: str | None = None
        self.stopped_early = False
        self.began = time.monotonic()
        self.heard_at: dict[Any, float] = {}  # when a worker last ended a case, or had loaded the kernel
        self.said_header = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take over what a worker hands in."""
        properties = dict(report.user_properties)
        self.heard_at[getattr(report, "node", None)] = time.monotonic()
        if UNUSABLE in properties:
            self.unusable = self.unusable or str(properties[UNUSABLE])
        if KERNEL in properties and not self.kernel:
            self.kernel = json.loads(str(properties[KERNEL]))
            self.add_left_out()
        if report.when != "teardown" and RESULT in properties:
            self.add(CaseResult.from_json(json.loads(str(properties[RESULT]))))

    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """A worker died in a case: it crashed, or it was ended at the time limit."""
        seconds = time.monotonic() - self.heard_at.get(report.node, self.began)
        if not self.kernel:
            limit = loading_limit(self.run.timeout)
            did = f"did not load within {limit} s" if seconds >= limit else "killed its process on import"
            self.unusable = self.unusable or f"target {self.run.target!r} {did}"
            sched.config.pluginmanager.getplugin("dsession").shouldstop = self.unusable
            return
        hung = self.has_hung()
        case = case_named(crashitem.partition("::")[2])
        what = f"no answer within {self.run.timeout} s" if hung else "the process of the kernel died"
        if self.limit.ended > self.outgrown:
            self.outgrown += 1
            hung, what = False, f"the process of the kernel held more than {self.limit.gib:.3g} GiB and was ended"
        found = Violation("contract.declared-runs", what)
        result = blank_result(case, "timeout" if hung else "crashed").but(
            seconds=round(seconds, 3), rule=found.rule, message=failure_screen(case, found, rerun_command(sched.config))
        )
        report.user_properties.append((RESULT, json.dumps(self.expected.applied(result).to_json())))

    def has_hung(self) -> bool:
        """Whether a worker has said, since this was last asked, that it ends at the time limit."""
        said = [path for path in self.watch.iterdir() if path.stat().st_size]
        for path in said:
            path.unlink()
        return bool(said)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Note whether the run was stopped on purpose."""
        self.stopped_early = bool(session.shouldstop or session.shouldfail)

    def add_left_out(self) -> None:
        """Add the results of all cases that the kernel is not asked to run, which workers pass over."""
        reasons = self.run.selection.left_out(Capabilities.from_json(self.kernel["capabilities"]))
        for case in self.run.selection.cases():
            if case.id in reasons:
                self.add(blank_result(case, "not_supported").but(reason=reasons[case.id], declared=False))

    def add(self, result: CaseResult) -> None:
        """Add one result, unless the case has one: to the report at once."""
        if result.id in self.known:
            return
        self.known.add(result.id)
        self.results.append(result)
        if self.writer is not None:
            self.header()
            self.writer.write(result.to_json())
        if self.listener is not None:
            self.listener.heard(result, len(self.results), self.total)
        if self.run.fail_fast and result.outcome in BROKEN:
            self.stopped_early = True

    def header(self) -> None:
        """Write the report's header, once."""
        if self.writer is None or self.said_header:
            return
        self.said_header = True
        selection = self.run.selection
        self.writer.write(
            {
                "kind": "header",
                "format": 1,
                "attnspec": SUITE_VERSION,
                "spec": SPEC_VERSION,
                "level": selection.level,
                "profiles": list(selection.profiles),
                "seed": selection.seed,
                "command": list(self.run.command),
                "started": now(),
                **self.kernel,
            }
        )
