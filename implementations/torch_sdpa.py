"""PyTorch's `scaled_dot_product_attention`, forced onto one of its kernels at a time.

What is declared was measured on torch 2.13 for the CPU, by running it (tests/test_backends.py). The public
function returns no lse, so none of them declares `return_lse`. A wrong answer is not undeclared to hide it.
"""

from __future__ import annotations

import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import Unavailable

MATH_FEATURES = tuple(name for name in FEATURES if name not in ("return_lse", "key_lengths", "window_size", "softcap"))
FUSED_FEATURES = tuple(
    name
    for name in MATH_FEATURES
    if name
    not in (
        "attn_mask.rank1",
        "attn_mask.rank3",
        "value_dim",
        "kv_broadcast",
        "dropout_p",
    )  # the CPU flash kernel raises
)
HEAD_DIMS = (1, 512)  # no limit is known; this is what was run


class TorchSdpa:
    """One kernel of `scaled_dot_product_attention`; torch raises RuntimeError for what the kernel does not take."""

    def __init__(self, kernel: SDPBackend, name: str, capabilities: Capabilities) -> None:
        self.kernel = kernel
        self.name = name
        self.capabilities = capabilities

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Return the output, (batch, q_heads, q_len, value_dim), of the query's dtype.

        Arguments: `attnspec.spec.call.Call`. Rule: `attention.output`. Source: PyTorch's
        documentation of `torch.nn.functional.scaled_dot_product_attention`.
        """
        with sdpa_kernel(self.kernel), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # why a kernel is not used: the exception that follows is enough
            return scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=attn_mask,
                dropout_p=dropout_p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )


def math() -> TorchSdpa:
    """Return the C++ composition of matmul and softmax; 16-bit inputs are computed in float32, hence class fused.

    It refuses attn_mask with is_causal. A batch row's bits change with the batch, even at one thread. It alone has
    dropout on the CPU, and takes a dropout_p below 0 and NaN for 0.
    """
    declared = Capabilities(
        features=MATH_FEATURES, head_dims=HEAD_DIMS, devices=("cpu", "cuda"), refuses=(("attn_mask", "is_causal"),)
    )
    return TorchSdpa(SDPBackend.MATH, "torch_sdpa.math", declared)


def flash() -> TorchSdpa:
    """Return the tiled CPU kernel. It takes masks of rank 2 and 4 only, applies them together with is_causal, and wants
    value_dim = head_dim and as many key as query batches. A batch row's bits change with the batch at two threads."""
    declared = Capabilities(features=FUSED_FEATURES, head_dims=HEAD_DIMS, refuses=(("attn_mask.float", "backward"),))
    return TorchSdpa(SDPBackend.FLASH_ATTENTION, "torch_sdpa.flash", declared)


def efficient() -> TorchSdpa:
    """Return the memory-efficient CUDA kernel. Raises Unavailable without a GPU; what it declares was not measured."""
    _need_cuda()
    declared = Capabilities(
        features=("attn_mask.bool", "attn_mask.float", "attn_mask.rank2", "attn_mask.rank4", "is_causal", "scale"),
        dtypes=("float32", "float16", "bfloat16"),
        deterministic=False,
        devices=("cuda",),
        refuses=(("attn_mask", "is_causal"),),
    )
    return TorchSdpa(SDPBackend.EFFICIENT_ATTENTION, "torch_sdpa.efficient", declared)


def cudnn() -> TorchSdpa:
    """Return cuDNN's CUDA kernel. Raises Unavailable without a GPU; what it declares was not measured."""
    _need_cuda()
    declared = Capabilities(
        features=("is_causal", "scale"),
        dtypes=("float16", "bfloat16"),
        head_dims=(8, 128),
        deterministic=False,
        devices=("cuda",),
    )
    return TorchSdpa(SDPBackend.CUDNN_ATTENTION, "torch_sdpa.cudnn", declared)


def _need_cuda() -> None:
    if not torch.cuda.is_available():
        raise Unavailable("needs a CUDA GPU")
