"""The pytest plugin: `pytest --pyargs attnspec.conformance --attn-backend TARGET`.

It loads in every pytest run of the environment, so it imports neither torch nor the checks until they are used.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnspec.spec.errors import InputError

if TYPE_CHECKING:
    from attnspec.conformance.case import Case, Ran
    from attnspec.conformance.expectations import Expectations
    from attnspec.conformance.kernel import Kernel
    from attnspec.conformance.outcome import CaseResult
    from attnspec.conformance.selection import Selection

ROOM = Path(__file__).parent
RESULT, KERNEL, UNUSABLE = "attnspec.result", "attnspec.kernel", "attnspec.unusable"  # names of report properties
SHOWN_FRAMES = 8  # of the traceback of a defect of the suite
LONGEST_SECONDS = 2**31  # that a watchdog waits: 68 years
LOADING_SECONDS = 120  # for torch and the kernel's own module
LONGEST_OUTPUT = 20_000  # characters of what a kernel prints that a report keeps

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--attn-backend",
        {
            "metavar": "TARGET",
            "help": "the kernel: a backend, package.module:attr, path/to/file.py:attr or path/to/file.cu:kernel",
        },
    ),
    ("--attn-level", {"default": "quick", "metavar": "LEVEL", "help": "quick (default) or full"}),
    ("--attn-profile", {"action": "append", "default": [], "metavar": "P", "help": "only cases of this profile"}),
    (
        "--attn-rule",
        {"action": "append", "default": [], "metavar": "RULE", "help": "only cases that enforce this rule"},
    ),
    ("--attn-dtype", {"action": "append", "default": [], "metavar": "DTYPE", "help": "only cases of this dtype"}),
    ("--attn-case", {"action": "append", "default": [], "metavar": "CASE", "help": "only this case"}),
    ("--attn-seed", {"default": 0, "type": int, "metavar": "N", "help": "seed of what is drawn"}),
    ("--attn-shard", {"default": "1/1", "metavar": "I/N", "help": "only the I-th of N parts"}),
    (
        "--attn-accuracy",
        {"default": None, "metavar": "CLASS", "help": "error budget of a bare callable: fused or eager"},
    ),
    ("--attn-causal-alignment", {"default": None, "metavar": "CORNER", "help": "of a bare callable's is_causal"}),
    ("--attn-alibi-alignment", {"default": None, "metavar": "CORNER", "help": "of a bare callable's alibi_slopes"}),
    ("--attn-device", {"default": None, "metavar": "D", "help": "where the tensors are put"}),
    ("--attn-sanitize", {"default": None, "metavar": "S", "help": "run a CUDA kernel under a sanitizer"}),
    (
        "--attn-timeout",
        {"default": 120, "type": int, "metavar": "S", "help": "seconds for one case in a worker"},
    ),
    (
        "--attn-watch",
        {"default": None, "metavar": "FOLDER", "help": "where a worker says that it ends at the time limit"},
    ),
    ("--attn-expectations", {"default": None, "metavar": "FILE", "help": "recorded deviations"}),
)

kernel_key = pytest.StashKey["Kernel"]()
misuse_key = pytest.StashKey[str]()
left_out_key = pytest.StashKey[dict[str, str]]()
announced_key = pytest.StashKey[bool]()
expectations_key = pytest.StashKey["Expectations"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the `--attn-*` options."""
    group = parser.getgroup("attnspec", "conformance of attention kernels")
    for name, settings in OPTIONS:
        group.addoption(name, **settings)


def selection_of(config: pytest.Config) -> Selection:
    """Return the selection that the options describe. Raises InputError."""
    from attnspec.conformance.selection import Selection, shard

    def chosen(name: str) -> tuple[str, ...]:
        return tuple(config.getoption(f"--attn-{name}"))

    return Selection(
        level=config.getoption("--attn-level"),
        profiles=chosen("profile"),
        rules=chosen("rule"),
        dtypes=chosen("dtype"),
        case_ids=chosen("case"),
        shard=shard(config.getoption("--attn-shard")),
        seed=config.getoption("--attn-seed"),
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect this folder as the suite, whatever files lie in it."""
    return Suite.from_parent(parent, path=path) if path == ROOM else None


class Suite(pytest.Directory):
    """The suite: one item a case."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the chosen cases. Raises UsageError for a wrong option."""
        try:
            if self.config.getoption("--attn-backend") is None:
                raise InputError("--attn-backend is missing: name the kernel to validate")
            cases = selection_of(self.config).cases()
        except InputError as error:  # raised here it would be an error of collection, exit code 2 and not 4
            self.session.stash[misuse_key] = str(error)
            return
        for case in cases:
            yield CaseItem.from_parent(self, name=case.id, case=case)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session) -> None:
    """Raise UsageError for a wrong option."""
    if misuse_key in session.stash:
        raise pytest.UsageError(session.stash[misuse_key])


class CaseItem(pytest.Item):
    """One case. Its outcome is the check's."""

    def __init__(self, *, case: Case, **settings: Any) -> None:
        super().__init__(**settings)
        self.case = case
        self.ran: Ran | None = None
        self.looks_like: str | None = None

    def setup(self) -> None:
        """Resolve the target, once a process."""
        if kernel_key not in self.config.stash:
            try:
                with time_limit(self.config, loading_limit(self.config.getoption("--attn-timeout"))):
                    self.config.stash[kernel_key] = _resolve(self.config)
            except InputError as error:
                self.session.shouldstop = str(error)  # every further case would only say so again
                raise

    def runtest(self) -> None:
        """Run the check. Raises what it found."""
        from attnspec.conformance.running import run_case

        with time_limit(self.config, self.config.getoption("--attn-timeout")):
            self.ran = run_case(self.config.stash[kernel_key], self.case)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the failure screen for a finding, a line for what is no fault of the suite, else its traceback."""
        from attnspec.conformance.failure_screen import failure_screen
        from attnspec.conformance.outcome import NotSupported, Violation

        if isinstance(excinfo.value, Violation):
            from attnspec.conformance.diagnosis.diagnose import diagnose

            with time_limit(self.config, self.config.getoption("--attn-timeout")):  # it runs the kernel again
                case = excinfo.value.case or self.case
                diagnosis = diagnose(self.config.stash[kernel_key], case)
            dialect = diagnosis.dialect if diagnosis else None
            if diagnosis is not None:
                rule = diagnosis.rule(case.problem)
                self.looks_like = diagnosis.line + (f" ({rule})" if rule != excinfo.value.rule else "")
            return failure_screen(self.case, excinfo.value, rerun_command(self.config), self.looks_like, dialect)
        if isinstance(excinfo.value, InputError | NotSupported):
            return str(excinfo.value)
        last = traceback.format_exception(excinfo.value, limit=-SHOWN_FRAMES)
        return f"ERRORED {self.case.id}: this is a defect of the suite\n{''.join(last)}"

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where the case comes from and its name."""
        return self.path, None, self.name


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a case in a worker of `attnspec validate` that has its kernel: nothing is left to set up or to tear down, so
    that one report says all of it, where pytest makes three. Pass over a case that the kernel is not asked to
    run, of which the controller tells: there may be a thousand of them."""
    kernel = item.config.stash.get(kernel_key, None)
    if kernel is None or not isinstance(item, CaseItem) or item.config.getoption("--attn-watch") is None:
        return None
    if item.case.id in _left_out(item.config, kernel):
        return True
    call = pytest.CallInfo.from_call(
        lambda: item.ihook.pytest_runtest_call(item=item), "call", reraise=(pytest.exit.Exception, KeyboardInterrupt)
    )
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)
    return True


def _left_out(config: pytest.Config, kernel: Kernel) -> dict[str, str]:
    if left_out_key not in config.stash:
        config.stash[left_out_key] = selection_of(config).left_out(kernel.capabilities)
    return config.stash[left_out_key]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End a worker of `attnspec validate` at once when it has said all, without taking the framework apart, which the
    controller would wait for."""
    if hasattr(config, "workerinput") and config.getoption("--attn-watch") is not None:
        atexit._run_exitfuncs()
        os._exit(0)


def rerun_command(config: pytest.Config) -> list[str]:
    """Return the command that validates the same target in the same way."""
    command = ["attnspec", "validate", config.getoption("--attn-backend")]
    for name in ("accuracy", "causal-alignment", "alibi-alignment", "device", "sanitize"):
        if config.getoption(f"--attn-{name}"):
            command += [f"--{name}", config.getoption(f"--attn-{name}")]
    return command


def _resolve(config: pytest.Config) -> Kernel:
    import torch

    from attnspec.conformance.targets import resolve

    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    return resolve(
        config.getoption("--attn-backend"),
        config.getoption("--attn-accuracy"),
        config.getoption("--attn-causal-alignment"),
        config.getoption("--attn-device"),
        config.getoption("--attn-sanitize"),
        config.getoption("--attn-alibi-alignment"),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn what a check raised into the case's result, and hand it over in the report's properties."""
    report: Any = yield
    if isinstance(item, CaseItem):
        report.sections = [(title, text[-LONGEST_OUTPUT:]) for title, text in report.sections]
        if call.when == "setup":
            _announce(item, call, report)
        elif call.when == "call":
            _conclude(item, call, report)
    return report  # type: ignore[no-any-return]


def _announce(item: CaseItem, call: pytest.CallInfo[None], report: Any) -> None:
    """Hand over, once a process, what the kernel is; or why it cannot be used."""
    import json

    if call.excinfo is not None:
        report.user_properties.append((UNUSABLE, str(call.excinfo.value)))
    elif announced_key not in item.config.stash:
        from attnspec.conformance.environment import described

        item.config.stash[announced_key] = True
        report.user_properties.append((KERNEL, json.dumps(described(item.config.stash[kernel_key]))))


def _conclude(item: CaseItem, call: pytest.CallInfo[None], report: Any) -> None:
    import json

    result = _expectations(item.config).applied(result_of(item, call, report))
    if result.outcome in ("not_supported", "xfail"):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"{result.outcome}: {result.reason}")
        if result.outcome == "xfail":
            report.wasxfail = result.reason
    elif result.outcome == "xpass":
        report.outcome, report.longrepr = "failed", result.message
    report.user_properties.append((RESULT, json.dumps(result.to_json())))


def result_of(item: CaseItem, call: pytest.CallInfo[None], report: Any) -> CaseResult:
    """Return the result of a case whose check has ended."""
    from attnspec.conformance.outcome import NotSupported, Violation

    raised = call.excinfo.value if call.excinfo else None
    result = blank_result(item.case, "pass").but(seconds=round(time.time() - call.start, 6))
    if isinstance(raised, NotSupported):
        return result.but(outcome="not_supported", reason=raised.reason, declared=not raised.declared)
    if isinstance(raised, Violation):
        shown = str(raised.case.problem) if raised.case else None
        error, message = raised.error_over_budget, str(report.longrepr)
        result = result.but(outcome="fail", rule=raised.rule, error_over_budget=error, message=message, ran=shown)
        return result.but(looks_like=item.looks_like)
    if raised is not None:
        return result.but(outcome="errored", message=str(report.longrepr))
    assert item.ran is not None, "a case that raised nothing has run"
    result, problem = result.but(error_over_budget=item.ran.error_over_budget), item.ran.problem
    return result.but(ran=str(problem), profiles=item.case.on(problem).profiles) if problem else result


def blank_result(case: Case, outcome: str) -> CaseResult:
    """Return a result of the case that says no more than its outcome."""
    from attnspec.conformance.outcome import CaseResult

    return CaseResult(case.id, case.check, case.family, case.rules, case.profiles, outcome)


def _expectations(config: pytest.Config) -> Expectations:
    if expectations_key not in config.stash:
        from attnspec.conformance.expectations import Expectations, read_expectations

        path = config.getoption("--attn-expectations")
        config.stash[expectations_key] = read_expectations(Path(path)) if path else Expectations()
    return config.stash[expectations_key]


@contextmanager
def time_limit(config: pytest.Config, seconds: float) -> Iterator[None]:
    """End this process after so many seconds, where it is a worker that can be replaced.

    The watchdog of faulthandler runs without the interpreter, so that it also ends a kernel that hangs with its lock
    held. Its last words go to a file of the folder `--attn-watch`.
    """
    if not hasattr(config, "workerinput"):
        yield
        return
    folder = config.getoption("--attn-watch")
    with open(Path(folder, config.workerinput["workerid"]) if folder else os.devnull, "w") as last_words:
        faulthandler.dump_traceback_later(min(seconds, LONGEST_SECONDS), exit=True, file=last_words)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def loading_limit(timeout: int) -> int:
    """Return the seconds that a target may take to be imported, on a busy machine too."""
    return max(timeout, LOADING_SECONDS)
