"""The kernel under test, as the checks see it: a call goes in, a well-formed result or a finding comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import Problem


class NoGradientError(RuntimeError):
    """The kernel's output is cut off from its inputs."""


@dataclass(frozen=True)
class Kernel:
    """A target, resolved. run: takes query, key, value and the options of a `Call`.

    target: what the user wrote. inferred: the capabilities were read off a bare callable's signature, so that any
    exception is a refusal. flagless_gqa: `enable_gqa` is never passed, since the callable has no such parameter.
    device: where the tensors are put. backward: what gives the gradients of a call and its result, where it is not
    torch autograd.
    """

    target: str
    name: str
    run: Callable[..., Any]
    capabilities: Capabilities
    inferred: bool = False
    flagless_gqa: bool = False
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    backward: Callable[[Call, Result], Any] | None = None

    def __call__(self, call: Call) -> Result:
        """Run the call and return its result on the CPU, checked against the rules of the contract on outputs.

        Raises Violation (`contract.output-type`, `-shape`, `-dtype`, `-device`; `contract.declared-runs` where a
        backend raises on what it declares) and NotSupported (a bare callable raised).
        """
        return to_cpu(self.returned(self.place(call)))

    def returned(self, call: Call) -> Result:
        """Run the call as it is and return the very tensors that the kernel returned, checked; else as `__call__`."""
        return self._natural(self._ran(call))

    def _ran(self, call: Call) -> Result:
        """Run the call and return what came back, checked, the lse in the kernel's own base."""
        options = self.options(call)
        try:
            returned = self.run(call.query, call.key, call.value, **options)
        except KeyboardInterrupt:  # the user's own
            raise
        except BaseException as error:  # SystemExit, pytest's outcomes and the like are the kernel's too
            raise self._raised(error) from error
        return well_formed(returned, call)

    def _natural(self, result: Result) -> Result:
        """Return the result with its lse as a natural logarithm."""
        if result.lse is not None and self.capabilities.lse_base == "2":
            return Result(result.output, result.lse.double() * math.log(2))
        return result

    def gradients(self, call: Call, of: tuple[str, ...] = ()) -> tuple[Result, Gradients]:
        """Run a call forward and back, and return its result and its gradients, on the CPU, checked as results are.

        call: has a grad_output, and a grad_lse where return_lse is set. of: which inputs ask for a gradient, by name;
        all that have one by default, and the gradient of the others comes back as 0. A backend with a method
        `backward(call, result)` is asked for its gradients by that, every other one by torch autograd. Raises what
        `__call__` does; NotSupported for a bare callable whose output has no grad_fn, whose backward pass raises, or
        which gives none of slopes that ask for one.
        """
        result, back = self.forward(call, of)
        return result, back()

    def forward(self, call: Call, of: tuple[str, ...] = ()) -> tuple[Result, Callable[[], Gradients]]:
        """Run a call forward, and return its result on the CPU and what runs it back, to be called once. The arguments
        and what is raised are those of `gradients`."""
        call = self.place(call)
        leaves = {
            name: tensor.detach().requires_grad_()
            for name, tensor in call.differentiable().items()
            if not of or name in of
        }
        with torch.enable_grad():
            ran = self._ran(call.but(**leaves))
            result = self._natural(ran)
        return to_cpu(result), lambda: self._back(call, leaves, ran, result)

    def _back(self, call: Call, leaves: dict[str, torch.Tensor], ran: Result, result: Result) -> Gradients:
        """Return the gradients of a call that was run forward. leaves: the inputs that ask for one; ran, result: what
        the kernel returned, and the same with a natural lse."""
        flows = [(x, g) for x, g in ((result.output, call.grad_output), (result.lse, call.grad_lse)) if g is not None]
        if list(leaves) == ["value"]:  # on which no lse depends
            flows = flows[:1]
        bare = bare_of({name: x for name, (x, _) in zip(("output", "lse"), flows, strict=False)})
        if self.backward is None and bare:
            raise self._raised(NoGradientError(f"no gradient comes back: {bare}"))
        try:
            with torch.enable_grad():
                if self.backward is not None:
                    given = in_order(self.backward(self._in_own_base(call), ran), call)
                else:
                    outputs, grads = zip(*((x, g.to(x.dtype)) for x, g in flows if x is not None), strict=True)
                    given = torch.autograd.grad(outputs, list(leaves.values()), grads, allow_unused=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._raised(error) from error
        zeros = {name: torch.zeros_like(x) for name, x in call.differentiable().items()}  # of what is not used
        names = list(leaves if self.backward is None else zeros)
        if len(given) < len(names) or any(x is not None for x in given[len(names) :]):
            what = f"the backward pass gave {len(given)} gradients, not {len(names)}: {', '.join(names)}"
            raise Violation("contract.output-type", what)
        found = dict(zip(names, given, strict=False))
        if "alibi_slopes" in leaves and found["alibi_slopes"] is None:
            raise self._raised(NoGradientError("no gradient of alibi_slopes comes back"))
        whole = zeros | {name: gradient for name, gradient in found.items() if gradient is not None and name in leaves}
        return Gradients(**{name: well_formed_gradient(name, whole[name], zeros[name]) for name in zeros})

    def _in_own_base(self, call: Call) -> Call:
        """Return the call with the gradient of the lse that the kernel returned: to base 2 where it declares that."""
        if call.grad_lse is None or self.capabilities.lse_base != "2":
            return call
        return call.but(grad_lse=call.grad_lse * math.log(2))

    def options(self, call: Call) -> dict[str, object]:
        """Return the keyword arguments that the kernel is told of a call."""
        options = call.options()
        if self.flagless_gqa:
            options.pop("enable_gqa", None)
        return options

    def place(self, call: Call) -> Call:
        """Return the call with its tensors on the kernel's device."""
        if self.device == "cpu":
            return call
        given = {f.name: getattr(call, f.name) for f in fields(call)}
        moved = {name: x.to(self.device) for name, x in given.items() if isinstance(x, torch.Tensor)}
        return call.but(**moved)

    def asking_for_lse(self, call: Call, problem: Problem) -> Call:
        """Return a problem's call, asking for the lse where the kernel claims it."""
        return call.but(return_lse=self.capabilities.lacks(problem, return_lse=True) is None)

    def refuses(self, call: Call) -> bool:
        """Whether the call ends in an exception."""
        try:
            self.run(call.query, call.key, call.value, **self.options(call))
        except Exception:
            return True
        return False

    def need(self, problem: Problem, return_lse: bool = False) -> None:
        """Raise NotSupported where the problem lies outside the kernel's capabilities."""
        lacking = self.capabilities.lacks(problem, return_lse)
        if lacking:
            raise NotSupported(lacking, declared=True)

    def _raised(self, error: BaseException) -> Exception:
        if self.inferred and isinstance(error, NoGradientError):
            return NotSupported(str(error), declared=False)
        if self.inferred:
            return NotSupported(f"the kernel raised {in_one_line(error)}", declared=False)
        return Violation("contract.declared-runs", f"the backend declares this call, then raised {in_one_line(error)}")


def well_formed(returned: object, call: Call) -> Result:
    """Return the result of a call, checked: types, shapes, dtypes and devices.

    Raises Violation with the rule `contract.output-type`, `contract.output-shape`, `contract.output-dtype`,
    `contract.output-device`, `softmax.lse-dtype`.
    """
    output, lse = unpack(returned, call.return_lse)
    batch, heads, q_len, _ = call.query.shape
    expected = (batch, heads, q_len, call.value.shape[-1])
    if tuple(output.shape) != expected:
        raise Violation("contract.output-shape", f"output has shape {tuple(output.shape)}, should be {expected}")
    if output.dtype != call.query.dtype:
        raise Violation("contract.output-dtype", f"output is {output.dtype}, should be the query's {call.query.dtype}")
    if output.device != call.query.device:
        raise Violation("contract.output-device", f"output is on {output.device}, should be on {call.query.device}")
    if lse is None:
        return Result(output)
    if tuple(lse.shape) != expected[:3]:
        raise Violation("contract.output-shape", f"lse has shape {tuple(lse.shape)}, should be {expected[:3]}")
    lse_dtype = torch.float64 if call.query.dtype == torch.float64 else torch.float32
    if lse.dtype != lse_dtype:
        raise Violation("softmax.lse-dtype", f"lse is {lse.dtype}, should be {lse_dtype}")
    return Result(output, lse)


def bare_of(results: Mapping[str, torch.Tensor | None]) -> str:
    """Say which results, by name, autograd knows nothing of; "" where it knows all."""
    bare = (name for name, result in results.items() if result is None or not result.requires_grad)
    return " and ".join(f"{name} has no grad_fn" for name in bare)


def in_order(returned: Iterable[Any], call: Call) -> tuple[Any, ...]:
    """Return what a method `backward` gave in the order of the inputs that have a gradient: by name from a `Gradients`,
    else as it came."""
    if isinstance(returned, Gradients):
        return tuple(getattr(returned, name) for name in call.differentiable())
    return tuple(returned)


def well_formed_gradient(name: str, gradient: object, leaf: torch.Tensor) -> torch.Tensor:
    """Return a gradient on the CPU, checked: a tensor of the shape and dtype of what it is the gradient of.

    Raises Violation (`contract.output-type`, `-shape`, `-device`, `-dtype`).
    """
    if not isinstance(gradient, torch.Tensor):
        raise Violation("contract.output-type", f"the gradient of {name} is {said(gradient)}, not a tensor")
    if gradient.shape != leaf.shape:
        shapes = f"{tuple(gradient.shape)}, should be {tuple(leaf.shape)}"
        raise Violation("contract.output-shape", f"the gradient of {name} has shape {shapes}")
    if gradient.layout != torch.strided:
        raise Violation("contract.output-type", f"the gradient of {name} is {gradient.layout}, should be strided")
    if gradient.device != leaf.device:
        raise Violation("contract.output-device", f"the gradient of {name} is on {gradient.device}")
    if gradient.dtype != leaf.dtype:
        raise Violation("contract.output-dtype", f"the gradient of {name} is {gradient.dtype}, should be {leaf.dtype}")
    return gradient.detach().cpu()


def unpack(returned: object, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (output, lse or None). Raises Violation (`contract.output-type`) for anything else."""
    if isinstance(returned, Result):
        returned = returned[:2] if return_lse else returned.output
    if return_lse:
        if isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(x, torch.Tensor) for x in returned):
            return returned[0], returned[1]
        raise Violation("contract.output-type", f"with return_lse=True, {said(returned)} came back, not (output, lse)")
    if isinstance(returned, torch.Tensor):
        return returned, None
    raise Violation("contract.output-type", f"{said(returned)} came back, not a tensor")


def in_one_line(error: BaseException) -> str:
    """An exception's type and message, on one line, at most 300 characters of it."""
    try:
        message = str(error)
    except Exception:  # a message that cannot be made is no reason to stop
        message = ""
    return " ".join(f"{type(error).__name__}: {message}".split())[:300].rstrip(": ")


def said(returned: object) -> str:
    """A value's type, in words."""
    if isinstance(returned, tuple | list):
        return f"a {type(returned).__name__} of {len(returned)} ({', '.join(type(x).__name__ for x in returned[:4])})"
    return f"a value of type {type(returned).__name__}"


def to_cpu(result: Result) -> Result:
    """Return the result's tensors on the CPU, cut off from autograd."""
    return Result(*(None if x is None else x.detach().cpu() for x in result))  # type: ignore[arg-type]
