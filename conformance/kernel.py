"""The kernel under test, as the checks see it: a call goes in, a well-formed result or a finding comes out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import Problem


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
        options = self.options(call)
        try:
            returned = self.run(call.query, call.key, call.value, **options)
        except KeyboardInterrupt:  # the user's own
            raise
        except BaseException as error:  # SystemExit, pytest's outcomes and the like are the kernel's too
            raise self._raised(error) from error
        result = well_formed(returned, call)
        if result.lse is not None and self.capabilities.lse_base == "2":
            return Result(result.output, result.lse.double() * math.log(2))
        return result

    def gradients(self, call: Call) -> tuple[Result, Gradients]:
        """Run a call forward and back, and return its result and its gradients, on the CPU, checked as results are.

        call: has a grad_output, and a grad_lse where return_lse is set. A backend with a method `backward(call,
        result)` is asked for its gradients by that, every other one by torch autograd. Raises what `__call__` does;
        NotSupported for a bare callable whose output has no grad_fn, or whose backward pass raises.
        """
        call = self.place(call)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in differentiable(call).items()}
        with torch.enable_grad():
            result = self.returned(call.but(**leaves))
            flows = [
                (x, g) for x, g in ((result.output, call.grad_output), (result.lse, call.grad_lse)) if g is not None
            ]
            if self.backward is None and not all(x is not None and x.requires_grad for x, _ in flows):
                raise self._raised(RuntimeError("no gradient: output or lse has no grad_fn"))
            try:
                if self.backward is not None:
                    found = dict(zip(leaves, self.backward(call, result), strict=False))
                else:
                    outputs, grads = zip(*((x, g.to(x.dtype)) for x, g in flows if x is not None), strict=True)
                    given = torch.autograd.grad(outputs, list(leaves.values()), grads, allow_unused=True)
                    found = dict(zip(leaves, given, strict=True))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise self._raised(error) from error
        if len(found) < len(leaves):
            few = f"the backward pass gave {len(found)} gradients, not {len(leaves)}: {', '.join(leaves)}"
            raise Violation("contract.output-type", few)
        zeros = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}  # unused: the derivative is 0
        checked = {n: well_formed_gradient(n, zeros[n] if g is None else g, leaves[n]) for n, g in found.items()}
        return to_cpu(result), Gradients(**checked)

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

    def need(self, problem: Problem, return_lse: bool = False) -> None:
        """Raise NotSupported where the problem lies outside the kernel's capabilities."""
        lacking = self.capabilities.lacks(problem, return_lse)
        if lacking:
            raise NotSupported(lacking, declared=True)

    def _raised(self, error: BaseException) -> Exception:
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


def differentiable(call: Call) -> dict[str, torch.Tensor]:
    """Return the tensors of a call that have a gradient, by name: query, key, value, and an additive mask."""
    names = ("query", "key", "value", "attn_mask")
    given = {name: getattr(call, name) for name in names}
    return {name: x for name, x in given.items() if x is not None and x.dtype.is_floating_point}


def well_formed_gradient(name: str, gradient: object, leaf: torch.Tensor) -> torch.Tensor:
    """Return a gradient on the CPU, checked: a tensor of the shape and dtype of what it is the gradient of.

    Raises Violation (`contract.output-type`, `-shape`, `-dtype`).
    """
    if not isinstance(gradient, torch.Tensor):
        raise Violation("contract.output-type", f"the gradient of {name} is {said(gradient)}, not a tensor")
    if gradient.shape != leaf.shape:
        shapes = f"{tuple(gradient.shape)}, should be {tuple(leaf.shape)}"
        raise Violation("contract.output-shape", f"the gradient of {name} has shape {shapes}")
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
