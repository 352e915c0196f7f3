"""The backend `cuda_flash`: on CPU tensors its kernels run in the emulator, on CUDA tensors on the GPU."""

from __future__ import annotations

import math
import os

import torch

from attnspec.implementations.cuda_emulator import toolkit
from attnspec.implementations.cuda_flash.builds import DIMS, TYPES
from attnspec.implementations.cuda_flash.launcher import Emulated, launcher_for
from attnspec.implementations.cuda_flash.operation import Flash, Options, splits_for
from attnspec.implementations.torch_eager import broadcast_mask, check_call
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError, Unavailable

ABSENT = ("sinks", "alibi_slopes", "grad_alibi_slopes", "softcap", "dropout_p")
SEED = "ATTNSPEC_CUDA_SEED"


class CudaFlash:
    """FlashAttention in CUDA C++; accuracy class fused.

    causal_alignment: `upper_left` or `lower_right`. emulated: how the emulator runs it. splits: over how many blocks
    the keys are split; None for `operation.splits_for`.
    """

    def __init__(
        self,
        name: str = "cuda_flash",
        causal_alignment: str = "upper_left",
        emulated: Emulated | None = None,
        splits: int | None = None,
    ) -> None:
        self.name = name
        self.emulated = emulated or Emulated()
        self.splits = splits
        self.capabilities = Capabilities(
            features=tuple(feature for feature in FEATURES if feature not in ABSENT),
            dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in TYPES),
            head_dims=(1, DIMS[-1]),
            causal_alignment=causal_alignment,
            batch_invariant=True,
            devices=("cuda", "cpu") if torch.cuda.is_available() else ("cpu",),
            cost="native" if torch.cuda.is_available() else "emulated",
        )

    def hardware(self, device: str) -> str:
        """Return what computes on a device: "CUDA emulated on cpu", or the GPU's name."""
        if device.startswith("cuda"):
            return torch.cuda.get_device_name(device)
        kind = self.emulated.sanitize
        return "CUDA emulated on cpu" + (f", {kind} sanitizer" if kind else "")

    def sanitized(self, sanitize: str) -> CudaFlash:
        """Return the same kernels, emulated in a build with a sanitizer, `thread` or `address`."""
        emulated = Emulated(self.emulated.seed, sanitize, self.emulated.source, self.emulated.optimise)
        return CudaFlash(self.name, self.capabilities.causal_alignment, emulated, self.splits)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        key_lengths: torch.Tensor | None = None,
        window_size: tuple[int, int] | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return attention computed in tiles, and the lse where asked for.

        Arguments: `attnspec.spec.call.Call`, tensors of any strides in float32, float16 or bfloat16, head_dim and
        value_dim up to 256. Returns output (batch, q_heads, q_len, value_dim) of the query's dtype, and lse (batch,
        q_heads, q_len) in float32. Raises InputError where the tensors do not fit, and where nothing can build the
        kernels. Rules: `attention.output`, `softmax.lse`, `mask.fully-masked-row`, `key-lengths.absent`,
        `window.bounds`, `flash.lse-recompute`. Source: Dao 2023, algorithms 1 and 2.
        """
        check_call(query, key, value, attn_mask, enable_gqa, key_lengths, window_size)
        check_kernel(query, key, value, attn_mask, key_lengths)
        (batch, q_heads, q_len, head_dim), k_len = query.shape, key.shape[2]
        left, right = (-1, -1) if window_size is None else window_size
        longest = q_len + k_len  # a longer window hides nothing more
        options = Options(
            scale=1 / math.sqrt(head_dim) if scale is None else scale,
            left=min(left, longest),
            right=0 if is_causal else min(right, longest),
            lower_right=self.capabilities.causal_alignment == "lower_right",
            splits=self.splits or splits_for(q_len, k_len),
        )
        mask = None if attn_mask is None else broadcast_mask(attn_mask, torch.Size((batch, q_heads, q_len, k_len)))
        lengths = None if key_lengths is None else key_lengths.to(torch.int32).contiguous()
        launcher = launcher_for(query.device, self.emulated)
        output, lse = Flash.apply(query, key, value, mask, lengths, options, launcher)  # type: ignore[no-untyped-call]
        return (output, lse) if return_lse else output


def check_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Raise InputError for what fits together but not these kernels: dtype, head dimension, devices."""
    if query.dtype not in TYPES:
        raise InputError(f"query {query.dtype}: cuda_flash takes {', '.join(map(str, TYPES))}")
    largest = max(query.shape[3], value.shape[3])
    if not 1 <= min(query.shape[3], value.shape[3]) <= largest <= DIMS[-1]:
        raise InputError(f"head_dim {query.shape[3]}, value_dim {value.shape[3]}: cuda_flash takes 1 to {DIMS[-1]}")
    devices = sorted({str(x.device) for x in (query, key, value, *others) if x is not None})
    if len(devices) > 1:
        raise InputError(f"tensors on {' and '.join(devices)}: put all on one device")
    if query.device.type not in ("cpu", "cuda"):
        raise InputError(f"tensors on {devices[0]}: cuda_flash runs on cpu, emulated, and on cuda")


def backend() -> CudaFlash:
    """Return the backend, its causal triangle at the upper left. Raises Unavailable where neither a GPU nor a compiler
    and CUDA's headers are at hand."""
    _need_something_to_run_on()
    return CudaFlash(emulated=Emulated(seed()))


def lower_right() -> CudaFlash:
    """Return the backend with the causal triangle, and windows, at the lower right. Raises Unavailable as `backend`."""
    _need_something_to_run_on()
    return CudaFlash("cuda_flash.lower_right", "lower_right", Emulated(seed()))


def seed() -> int | None:
    """Return the seed that the variable ATTNSPEC_CUDA_SEED sets: another order of blocks and threads in the emulator,
    under which a missing barrier shows. Raises InputError where it is no whole number."""
    text = os.environ.get(SEED, "0")
    if not text.isdecimal():
        raise InputError(f"{SEED} is {text!r}: use a whole number")
    return int(text) or None


def _need_something_to_run_on() -> None:
    if not torch.cuda.is_available():
        try:
            toolkit.compiler()
            toolkit.include_folders()
        except InputError as lacking:
            raise Unavailable(f"needs a CUDA GPU, or g++ and CUDA's headers to be emulated: {lacking}") from None
