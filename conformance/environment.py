"""What ran, and on what: the facts of a report's header. It never claims hardware that did not run."""

from __future__ import annotations

import platform
from typing import Any

from attnspec.conformance.kernel import Kernel

LONGEST_NAME = 200  # characters of a name in a report


def described(kernel: Kernel) -> dict[str, Any]:
    """Return what a report's header says of a kernel and its surroundings."""
    import torch

    return {
        "target": kernel.target,
        "backend": kernel.name[:LONGEST_NAME],
        "accuracy": kernel.capabilities.accuracy,
        "device": kernel.device,
        "hardware": hardware(kernel),
        "notes": list(kernel.notes),
        "capabilities": kernel.capabilities.to_json(),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": f"{platform.system()} {platform.machine()}",
        },
    }


def hardware(kernel: Kernel) -> str:
    """Return what computed: a backend's own word for it (`hardware`, a text or a function of the device),
    else the GPU's name, else the device's kind."""
    import torch

    own = getattr(kernel.run, "hardware", None)
    if callable(own):
        own = own(kernel.device)
    if isinstance(own, str):
        return own[:LONGEST_NAME]
    if kernel.device.startswith("cuda"):
        return torch.cuda.get_device_name(kernel.device)
    return kernel.device
