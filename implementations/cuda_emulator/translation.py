"""From a preprocessed CUDA file to C++: what no header can do, done on the text.

Three words of CUDA reach the text unexpanded: `__global__`, `__shared__` and `extern __shared__`. Lines keep their
numbers, so that what the compiler and the sanitizers say points into the user's file.
"""

from __future__ import annotations

import re

from attnspec.spec.errors import InputError

ENTRY = re.compile(r'extern\s+"C"\s+__global__\s+(?:__attribute__\s*\(\(.*?\)\)\s*)*void\s+(?P<name>\w+)\s*\(', re.S)
GLOBAL = re.compile(r"\b__global__\b")
ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|alignas\s*\((?:[^()]|\([^()]*\))*\)")
DYNAMIC = re.compile(r"(?:extern\s+__shared__|__shared__\s+extern)\s+(?P<type>[^;]*?)\b(?P<name>\w+)\s*\[\s*\]\s*;")
STATIC = re.compile(r"(?:\bstatic\s+)?\b__shared__\s+(?P<declared>[^;{}]*?);", re.S)
LEFT = re.compile(r"\b__shared__[^;]*;?", re.S)
DECLARATOR = re.compile(r"(?P<type>.*?)\b(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)$", re.S)
OPENING, CLOSING = "([{<", ")]}>"


def entries_of(text: str) -> tuple[str, ...]:
    """Return the names of the kernels that a preprocessed file defines as `extern "C" __global__ void`, in order."""
    return tuple(dict.fromkeys(found["name"] for found in ENTRY.finditer(text)))


def translated(text: str) -> str:
    """Return the C++ of a preprocessed CUDA file, with a function `cuda_emulator_launch_<entry>` for each kernel.

    Raises InputError for a `__shared__` declaration that it cannot read.
    """
    entries = entries_of(text)
    text = DYNAMIC.sub(_dynamic, text)
    text = STATIC.sub(_static, text)
    if left := LEFT.search(text):
        raise _unread(left[0])
    text = GLOBAL.sub("", text)
    return "\n".join([text, *(_launcher(name) for name in entries), ""])


def _launcher(name: str) -> str:
    return (
        f'extern "C" const char* cuda_emulator_launch_{name}(const unsigned* grid, const unsigned* threads, '
        "unsigned long shared_bytes, unsigned long seed, void** arguments) "
        f"{{ return ::cuda_emulator::launch(&{name}, grid, threads, shared_bytes, seed, arguments); }}\n"
        f'extern "C" const char* cuda_emulator_signature_{name}() {{ return ::cuda_emulator::signature(&{name}); }}'
    )


def _dynamic(found: re.Match[str]) -> str:
    """`extern __shared__ T name[];` names the start of the block's dynamic shared memory."""
    element = " ".join(ATTRIBUTE.sub(" ", found["type"]).split())
    name = found["name"]
    return _on_as_many_lines(
        f"[[maybe_unused]] static {element}*& {name} = reinterpret_cast<{element}*&>(::cuda_emulator::shared.base);",
        found[0],
    )


def _static(found: re.Match[str]) -> str:
    """`__shared__ T name[n];` is a reference into the block's memory, which each block asks for anew."""
    declared = found["declared"]
    attributes = " ".join(_attributes(declared))
    first, *others = _split(ATTRIBUTE.sub(" ", declared))
    head = DECLARATOR.match(first.strip())
    if head is None or "=" in declared:
        raise _unread(found[0])
    parts = [(head["name"], head["extents"])]
    for other in others:
        more = DECLARATOR.match(other.strip())
        if more is None or more["type"].strip():
            raise _unread(found[0])
        parts.append((more["name"], more["extents"]))
    element = " ".join(head["type"].split())
    return _on_as_many_lines(" ".join(_reference(attributes, element, *part) for part in parts), found[0])


def _unread(declaration: str) -> InputError:
    shown = " ".join(declaration.split())[:100]
    return InputError(f"cannot read the declaration {shown!r}: declare arrays by __shared__ T name[n]; without a value")


def _attributes(declared: str) -> list[str]:
    """Return the attributes of a declaration, `alignas(n)` as the attribute that a typedef may have."""
    return [
        f"__attribute__((aligned{found.removeprefix('alignas').strip()}))" if found.startswith("alignas") else found
        for found in ATTRIBUTE.findall(declared)
    ]


def _reference(attributes: str, element: str, name: str, extents: str) -> str:
    kind, slot, aligned = f"{name}__shared_type", f"{name}__shared_slot", f"{name}__shared_aligned"
    extents = " ".join(extents.split())
    return (
        f"typedef {element} {kind}{extents}; struct {aligned} {{ {attributes} {element} {name}{extents}; }}; "
        f"static ::cuda_emulator::Static {slot}; "
        f"[[maybe_unused]] {kind}& {name} = {slot}.template of_block<{kind}>(alignof({aligned}));"
    )


def _split(declared: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in declared:
        depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _on_as_many_lines(code: str, replaced: str) -> str:
    return code + "\n" * replaced.count("\n")
