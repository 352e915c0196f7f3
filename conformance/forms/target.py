"""A target of a form: which words its signature has, and what it may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from attnspec.conformance.kernel import bare_of, in_one_line, said
from attnspec.conformance.outcome import NotSupported, Violation

Tensors = dict[str, torch.Tensor]
Target = Callable[..., Any]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def accepts(target: Target, name: str) -> bool:
    """Whether a callable's signature has a parameter that can be given by name; True where it shows none."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return True
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(p.kind is p.VAR_KEYWORD or (p.name == name and p.kind in keyword) for p in parameters)


def need(target: Target, names: Collection[str]) -> None:
    """Raise NotSupported where the signature lacks a word that a case needs."""
    missing = [name for name in names if not accepts(target, name)]
    if missing:
        raise NotSupported(f"the signature has no {', '.join(missing)}", declared=False)


def ran(rule: str, target: Target, *arguments: Any, **options: Any) -> Any:
    """Return what the target returns. Raises NotSupported where it raises NotImplementedError, a refusal, and Violation
    of `rule` for every other exception."""
    try:
        return target(*arguments, **options)
    except KeyboardInterrupt:  # the user's own
        raise
    except NotImplementedError as error:
        raise NotSupported(f"refused: {in_one_line(error)}", declared=False) from error
    except BaseException as error:
        raise Violation(rule, f"raised {in_one_line(error)}") from error


def as_numbers(tensor: torch.Tensor, shape: tuple[int, ...], kind: str, rule: str) -> torch.Tensor:
    """Return a result as float64 numbers of a shape that it broadcasts to, as a mask does.

    kind: `floating`, `integer` or `bool`. Raises Violation of `rule` for another dtype or shape.
    """
    floating, integer = tensor.dtype.is_floating_point, tensor.dtype in INTEGERS
    found = "floating" if floating else "integer" if integer else "bool" if tensor.dtype == torch.bool else "other"
    if found != kind:
        raise Violation(rule, f"{tensor.dtype} came back: use one that is {kind}")
    try:
        return tensor.double().broadcast_to(shape)
    except RuntimeError:
        raise Violation(rule, f"shape {tuple(tensor.shape)} came back: use one that broadcasts to {shape}") from None


def named(returned: Any, names: tuple[str, ...], rule: str, required: int = 1) -> Tensors:
    """Return what came back, a tensor or a tuple of tensors, under these names; the first `required` must be there.

    Raises Violation of `rule` for anything else.
    """
    found = returned if isinstance(returned, tuple | list) else (returned,)
    whole = required <= len(found) <= len(names) and all(isinstance(x, torch.Tensor) for x in found)
    if not whole:
        right = " or ".join(f"({', '.join(names[:n])})" for n in range(required, len(names) + 1))
        raise Violation(rule, f"{said(returned)} came back, not {right}")
    return dict(zip(names, found, strict=False))


def gradients(
    rule: str, found: Tensors, leaves: Tensors, flows: list[torch.Tensor], names: tuple[str, ...] = ("output", "lse")
) -> Tensors:
    """Return the gradients of the leaves, `grad_` before their names, when `flows` arrive at the results of these
    names.

    An input that no result depends on has gradient 0. Raises NotSupported where a result is missing or has no grad_fn,
    Violation of `rule` where the backward raises.
    """
    wanted = names[: len(flows)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise NotSupported(f"no gradient comes back: there is no {' and no '.join(missing)}", declared=False)
    results = {name: found[name] for name in wanted}
    if bare := bare_of(results):
        raise NotSupported(f"no gradient comes back: {bare}", declared=False)
    back = ran(rule, torch.autograd.grad, list(results.values()), list(leaves.values()), flows, allow_unused=True)
    given = (torch.zeros_like(leaf) if x is None else x for leaf, x in zip(leaves.values(), back, strict=True))
    return {f"grad_{name}": gradient for name, gradient in zip(leaves, given, strict=True)}


def there_and_back(
    target: Target,
    inputs: Tensors,
    leaves: Collection[str],
    arguments: Sequence[Any],
    options: dict[str, Any],
    rule: str,
    of_gradients: str,
) -> Tensors:
    """Call a target and return what comes back as output and lse and, where something flows back to them, the gradients
    of the leaves, through autograd.

    inputs: the tensors of a case, with `grad_output` and `grad_lse` where they flow back; leaves: names of those that
    have a gradient; arguments, options: of the call, made of `inputs`. Raises NotSupported where the signature lacks an
    option, where the target refuses by NotImplementedError and where no gradient comes back; Violation where it raises
    anything else, of `rule` in the call and of `of_gradients` in its backward pass.
    """
    need(target, options)
    flows = [inputs[name] for name in ("grad_output", "grad_lse") if name in inputs]
    given = {name: inputs[name].requires_grad_(bool(flows)) for name in leaves}
    with torch.set_grad_enabled(bool(flows)):
        found = named(ran(rule, target, *arguments, **options), ("output", "lse"), rule)
    if flows:
        found |= gradients(of_gradients, found, given, flows)
    return {name: tensor.detach() for name, tensor in found.items()}


def repeated(rule: str, what: str, run: Callable[..., Tensors], *arguments: Any) -> Tensors:
    """Return what `run` returns where it must return as it did before. what: what is different now, in words.

    Raises Violation of `rule` where it fails now.
    """
    try:
        return run(*arguments)
    except (Violation, NotSupported) as error:
        said_now = error.what if isinstance(error, Violation) else error.reason
        raise Violation(rule, f"with {what}: {said_now}") from error


def unchanged(
    run: Callable[..., Tensors],
    target: Target,
    dirty: Any,
    found: Tensors,
    what: str,
    rule: str,
    of_gradients: str,
    places: dict[str, Any] | None = None,
) -> None:
    """Raise Violation where a target gives other bits for a changed case than `found`, what `run` returned before.

    dirty: the case; what: what is changed, in words. rule: that of output and lse, of_gradients: of gradients. places:
    where in each result the bits must stay, everywhere by default.
    """
    again = repeated(rule, what, run, target, dirty)
    for name, right in found.items():
        place = ... if places is None else places[name]
        if again[name].shape != right.shape or not torch.equal(again[name][place], right[place]):
            raise Violation(of_gradients if name.startswith("grad_") else rule, f"{name} changes with {what}")
