"""The merge of attention over disjoint parts of the keys, every entry proven correctly rounded.

A merge is attention over the parts: in a row, part s has the score lse_s and the value o_s, since
exp(lse_s) / sum_r exp(lse_r) is its share. So each row is a call of one query, 1, over the keys lse_s, with scale 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.reference.exact.attention import ExactResult, attention
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError


def merge(outputs: NDArray[np.floating], lses: NDArray[np.floating], *, rounded_to: Format = FLOAT64) -> ExactResult:
    """Return the merged output (batch, heads, q_len, value_dim) and lse (batch, heads, q_len), each rounded once.

    outputs: (parts, batch, heads, q_len, value_dim); lses: (parts, batch, heads, q_len), natural logarithm, -inf where
    a part sees no key; float16, float32 or float64, read as exact numbers. The output of a part that sees no key is
    not read; where no part sees one, the output is 0 and the lse -inf. Raises InputError for shapes that do not fit
    and for a NaN or an infinity that takes part. Rules: `flash.merge-associative`, `flash.merge-empty`,
    `flash.merge-gap`. Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    if outputs.ndim != 5 or outputs.shape[:-1] != lses.shape:
        raise InputError(f"outputs {outputs.shape} do not fit lses {lses.shape}: use one lse a row of each part")
    parts, *shape, value_dim = outputs.shape
    sees = (lses != -np.inf).reshape(parts, -1).T  # (rows, parts)
    scores = np.where(sees, lses.reshape(parts, -1).T, 0.0)
    value = outputs.reshape(parts, -1, value_dim).transpose(1, 0, 2)  # (rows, parts, value_dim)
    merged = attention(
        np.ones((len(sees), 1, 1, 1)),
        scores.astype(np.float64)[:, None, :, None],
        value.astype(np.float64)[:, None],
        attn_mask=sees[:, None, None, :],
        scale=1.0,
        rounded_to=rounded_to,
    )
    return ExactResult(merged.output.reshape(*shape, value_dim), merged.lse.reshape(shape))
