"""Making the stored vectors: the true result of every golden case, the same bytes on every machine.

The truth is the exact oracle's, proven and rounded once to float64. A new set is written beside the old one and takes
its place at the end, so that a run that fails or is interrupted leaves the old set whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save

from attnspec.golden.cases import CASES, GoldenCase
from attnspec.golden.files import FORMAT, MANIFEST, VECTORS, dtype_name, files_of, sha256
from attnspec.golden.forms import FORM_CASES
from attnspec.golden.forms.form import FormCase
from attnspec.golden.inputs import make_call
from attnspec.reference.exact import attention
from attnspec.reference.exact.backward import backward
from attnspec.spec import SPEC_VERSION
from attnspec.spec.call import Call
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

Case = GoldenCase | FormCase
ALL_CASES: tuple[Case, ...] = (*CASES, *FORM_CASES)

Progress = Callable[[int, int, str], None]  # cases done, cases in all, the name of the last


class Files(NamedTuple):
    """The content of a case's two files, and its form."""

    name: str
    case: bytes
    tensors: bytes
    form: str


def regenerate(
    out: Path = VECTORS, jobs: int | None = None, progress: Progress | None = None, cases: Iterable[Case] = ALL_CASES
) -> int:
    """Compute every case anew and put the set into the folder `out`; return the number of cases.

    jobs: processes, by default one a CPU. progress: called after each case. Raises InputError where `out` holds other
    files or cannot be written; the old set is then as it was.
    """
    out = out.resolve()
    _check_replaceable(out)
    with _folder_beside(out) as fresh:
        made = make_all(cases, jobs, progress)
        with _telling(out, "written"):
            for name, content in contents(made).items():
                (fresh / name).write_bytes(content)
            _swap(fresh, out)
    return len(made)


def stale(
    folder: Path = VECTORS,
    jobs: int | None = None,
    progress: Progress | None = None,
    cases: Iterable[Case] = ALL_CASES,
) -> list[str]:
    """Compute every case anew and compare the bytes with those in `folder`; return a line for each file that differs.

    Writes nothing. Raises InputError where a file cannot be read.
    """
    with _telling(folder, "read"):  # before the work, which a folder that is not there would waste
        stored = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    fresh = contents(make_all(cases, jobs, progress))
    lines = []
    for name in sorted(fresh.keys() | stored.keys()):
        if name not in fresh:
            lines.append(f"{folder / name}: no golden case has this file")
        elif name not in stored:
            lines.append(f"{folder / name}: is missing")
        elif stored[name] != fresh[name]:
            lines.append(f"{folder / name}: differs from what its case gives")
    return lines


def contents(made: list[Files]) -> dict[str, bytes]:
    """Return the content of every file of a folder by its name, the manifest's too."""
    made = sorted(made)
    entries = [
        {"name": f.name, "form": f.form, "sha256": {"case": sha256(f.case), "tensors": sha256(f.tensors)}} for f in made
    ]
    manifest = {"format": FORMAT, "spec_version": SPEC_VERSION, "cases": entries}
    files = {MANIFEST: to_json(manifest)}
    for name, *both, _ in made:
        files |= dict(zip(files_of(name), both, strict=True))
    return files


def make_all(cases: Iterable[Case], jobs: int | None, progress: Progress | None) -> list[Files]:
    """Return the files of every case; the largest are computed first. Raises InputError for less than one job."""
    jobs = (os.cpu_count() or 1) if jobs is None else jobs
    if jobs < 1:
        raise InputError(f"jobs is {jobs}: use 1 or more")
    largest_first = sorted(cases, key=lambda case: -work(case))
    made: list[Files] = []
    for files in _results(largest_first, jobs):
        made.append(files)
        if progress:
            progress(len(made), len(largest_first), files.name)
    return made


def _results(cases: list[Case], jobs: int) -> Iterator[Files]:
    """Yield the files of each case as they are ready; in this process for one job."""
    if jobs == 1:
        yield from map(make, cases)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _leave_interrupts_to_parent) as pool:
        try:
            for future in as_completed([pool.submit(make, case) for case in cases]):
                yield future.result()
        except BrokenProcessPool:
            raise InputError("a process that computed vectors was killed, for memory perhaps: use fewer jobs") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make(case: Case) -> Files:
    """Return the files of a case: its inputs as bits of the storage dtype, and the true results as float64."""
    described: dict[str, object] = {"name": case.name, "rules": list(case.rules), "note": case.note}
    if isinstance(case, FormCase):
        tensors = form_tensors_of(case)
        described |= {"form": case.form, "problem": str(case.problem)}
    else:
        tensors = tensors_of(case.problem)
        described |= {"problem": case.problem.to_json()}
    described["tensors"] = {name: {"dtype": dtype_name(t), "shape": list(t.shape)} for name, t in tensors.items()}
    return Files(case.name, to_json(described), save(tensors), form_of(case))


def form_of(case: Case) -> str:
    """Return the name of a case's form."""
    return case.form if isinstance(case, FormCase) else "attention"


def form_tensors_of(case: FormCase) -> dict[str, torch.Tensor]:
    """Return the tensors that are stored of a case of another form than attention, by name."""
    inputs = case.problem.inputs()
    true = {name: torch.from_numpy(array + 0.0) for name, array in case.problem.truth(inputs).items()}  # no -0
    return {name: tensor.contiguous() for name, tensor in (inputs | true).items()}


STORED = ("query", "key", "value", "attn_mask", "key_lengths", "sinks", "alibi_slopes")  # inputs, where a call has them


def tensors_of(problem: Problem) -> dict[str, torch.Tensor]:
    """Return the tensors that are stored of a problem, by name."""
    call = make_call(problem)
    given = {name: getattr(call, name) for name in STORED}
    given |= {"grad_output": call.grad_output, "grad_lse": call.grad_lse}
    true = {name: torch.from_numpy(array + 0.0) for name, array in truth(call, problem.corner).items()}  # -0 + 0 is +0
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None} | true
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def truth(call: Call, corner: str) -> dict[str, npt.NDArray[np.float64]]:
    """Return the true output (batch, q_heads, q_len, value_dim), lse (batch, q_heads, q_len) and gradients, by name, as
    float64."""
    tensors = [numbers(x) for x in (call.query, call.key, call.value)]
    options: dict[str, Any] = {
        "attn_mask": None if call.attn_mask is None else numbers(call.attn_mask),
        "is_causal": call.is_causal,
        "causal_alignment": corner,
        "scale": call.scale,
        "enable_gqa": call.enable_gqa,
        "key_lengths": None if call.key_lengths is None else call.key_lengths.numpy(),
        "sinks": None if call.sinks is None else numbers(call.sinks),
        "window_size": call.window_size,
        "softcap": call.softcap,
        "alibi_slopes": None if call.alibi_slopes is None else numbers(call.alibi_slopes),
        "alibi_form": call.alibi_form,
        "alibi_alignment": call.alibi_alignment,
    }
    exact = attention(*tensors, **options)
    found = {"output": exact.output, "lse": exact.lse}
    if call.grad_output is None:
        return found
    grad_lse = None if call.grad_lse is None else numbers(call.grad_lse)
    gradients = backward(tensors[0], tensors[1], tensors[2], numbers(call.grad_output), grad_lse=grad_lse, **options)
    return found | {f"grad_{name}": getattr(gradients, name) for name in call.differentiable()}


def numbers(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's numbers, exactly, as float64, or bool."""
    array: npt.NDArray[Any] = (tensor if tensor.dtype == torch.bool else tensor.double()).numpy()
    return array


def work(case: Case) -> int:
    """Return a number that grows with the time a case takes."""
    if isinstance(case, FormCase):
        return case.problem.work()
    p = case.problem
    return p.batch * p.q_heads * p.q_len * p.k_len * (p.head_dim + p.value_dim)


def to_json(data: object) -> bytes:
    """Return data as JSON: sorted, indented, with a newline at the end."""
    return (json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _check_replaceable(out: Path) -> None:
    """Raise InputError unless `out` is new, empty or a set of vectors: replacing it must not lose anything else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out}: is no folder; name a new or empty one, or a set of vectors")
    with _telling(out, "written"):
        names = sorted(path.name for path in out.iterdir())
    strange = [name for name in names if not name.endswith((".json", ".safetensors"))]
    if names and (strange or MANIFEST not in names):
        holds = strange[0] if strange else names[0]
        raise InputError(f"{out}: holds {holds}, so it is no set of vectors; name such a set or a new folder")


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """Give a temporary folder on the same file system as `out`, and remove it at the end."""
    with _telling(out, "written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        fresh = beside / "fresh"
        fresh.mkdir()
        yield fresh
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _swap(fresh: Path, out: Path) -> None:
    """Put the folder `fresh` in the place of `out`; the old one comes back where that fails."""
    old = fresh.with_name("old")
    if out.exists():
        out.rename(old)
    try:
        fresh.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise


@contextmanager
def _telling(folder: Path, action: str) -> Iterator[None]:
    """Turn an OSError into an InputError that names the folder; action: `read` or `written`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: cannot be {action} ({error.strerror}); name another folder") from None
