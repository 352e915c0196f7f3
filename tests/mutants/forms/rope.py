"""Faults of rotary position embeddings."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

ROTATION, LAYOUT, PARTIAL, POSITION = "rope.rotation", "rope.layout", "rope.partial", "rope.position"
DISTANCE, PRECISION, GRADIENT, SHAPE = "rope.distance", "rope.precision", "rope.gradient", "rope.shape"
BUDGET = "accuracy.rope-within-budget"
FREQUENCY = "inv_freq = 1.0 / base ** (2 * pair / rotary_dim)"
ANGLE = "angle = positions[..., None].to(torch.float32) * inv_freq"
BACK = "turned(grad, cos, -sin, ctx.interleaved)"
REST = "torch.cat([out.to(x.dtype), rest], -1)"
INDEX = "turn = turn[positions]"
ROTATED = "rotated = part * cos + rotate_half(part, interleaved) * sin"


def at(positions: str) -> str:
    """The angle of other positions."""
    return f"positions = {positions}\n    {ANGLE}"


MUTANTS = (
    Mutant("rope-layouts-swapped", "forms/rope", "return Rotation.apply(x, cos, sin, interleaved)",
           "return Rotation.apply(x, cos, sin, not interleaved)", KIND, LAYOUT),
    Mutant("rope-always-half-split", "forms/rope", "return Rotation.apply(x, cos, sin, interleaved)",
           "return Rotation.apply(x, cos, sin, False)", KIND, LAYOUT),
    Mutant("rope-interleaved-in-halves-out", "forms/rope", "torch.stack([y1, y2], -1).flatten(-2)",
           "torch.cat([y1, y2], -1)", KIND, LAYOUT),
    Mutant("rope-half-split-interleaved-out", "forms/rope", "torch.cat([y1, y2], -1)",
           "torch.stack([y1, y2], -1).flatten(-2)", KIND, LAYOUT),
    Mutant("rope-table-not-spread-for-interleaved", "forms/rope_complex",
           "shape = (-1, 2) if interleaved else (2, -1)",
           "turn = torch.cat([turn, turn], -1)[..., ::2] if interleaved else turn\n"
           "    shape = (-1, 2) if interleaved else (2, -1)", KIND, LAYOUT),
    Mutant("rope-turns-backwards", "forms/rope", "y1 = x1 * cos - x2 * sin", "y1 = x1 * cos + x2 * sin", KIND, ROTATION,
           also=(("y2 = x1 * sin + x2 * cos", "y2 = x2 * cos - x1 * sin"),)),
    Mutant("rope-conjugate", "forms/rope_complex", INDEX, "turn = turn.conj()[positions]",
           KIND, ROTATION),
    Mutant("rope-sine-has-one-sign", "forms/rope", "y1 = x1 * cos - x2 * sin", "y1 = x1 * cos + x2 * sin", KIND,
           ROTATION),
    Mutant("rope-second-element-not-rotated", "forms/rope", "y2 = x1 * sin + x2 * cos", "y2 = x2 * 1.0", KIND,
           ROTATION),
    Mutant("rope-adds-the-angle", "forms/rope", "y2 = x1 * sin + x2 * cos", "y2 = x2 + sin", KIND, ROTATION),
    Mutant("rope-base-of-10000-always", "forms/rope", FREQUENCY, FREQUENCY.replace("base", "10000.0"), KIND,
           ROTATION),
    Mutant("rope-exponent-over-head-dim", "forms/rope", FREQUENCY, FREQUENCY.replace("rotary_dim", "head_dim"), KIND,
           ROTATION),
    Mutant("rope-exponent-over-head-dim-in-the-table", "forms/rope_complex", "dtype=torch.float64) / rotary_dim)",
           "dtype=torch.float64) / x.shape[-1])", KIND, ROTATION),
    Mutant("rope-exponent-without-the-2", "forms/rope", FREQUENCY, FREQUENCY.replace("2 * pair", "pair"), KIND,
           ROTATION),
    Mutant("rope-pairs-from-1", "forms/rope", FREQUENCY, FREQUENCY.replace("2 * pair", "(2 * pair + 2)"), KIND,
           ROTATION),
    Mutant("rope-frequencies-reversed", "forms/rope", ANGLE, ANGLE + ".flip(-1)", KIND, ROTATION),
    Mutant("rope-all-elements-turn", "forms/rope", "    wide = torch.promote_types(x.dtype, torch.float32)\n",
           "    wide = torch.promote_types(x.dtype, torch.float32)\n"
           "    rotary_dim = head_dim if head_dim % 2 == 0 else rotary_dim\n", KIND, PARTIAL),
    Mutant("rope-rest-is-0", "forms/rope", REST, "torch.cat([out.to(x.dtype), 0 * rest], -1)", KIND, PARTIAL),
    Mutant("rope-rest-in-bfloat16", "forms/rope", REST, "torch.cat([out.to(x.dtype), rest.bfloat16().to(x.dtype)], -1)",
           KIND, PARTIAL),
    Mutant("rope-rest-dropped", "forms/rope", REST, "out.to(x.dtype)", KIND, PARTIAL),
    Mutant("rope-last-elements-turn", "forms/rope_table", "part = x[..., :rotary_dim]",
           "x = x.roll(rotary_dim, -1)\n    part = x[..., :rotary_dim]", KIND, PARTIAL,
           also=(("return torch.cat([rotated, x[..., rotary_dim:]], -1)",
                  "return torch.cat([rotated, x[..., rotary_dim:]], -1).roll(-rotary_dim, -1)"),)),
    Mutant("rope-position-from-1", "forms/rope", ANGLE, at("positions + 1"), KIND, POSITION),
    Mutant("rope-offset-dropped", "forms/rope", ANGLE, at("positions - positions[..., :1]"), KIND, POSITION),
    Mutant("rope-offset-dropped-for-one-token", "forms/rope", ANGLE, at("positions if length > 1 else 0 * positions"),
           KIND, POSITION),
    Mutant("rope-decode-one-behind", "forms/rope", ANGLE, at("positions - int(length == 1)"), KIND, POSITION),
    Mutant("rope-positions-of-batch-0", "forms/rope", ANGLE, at("positions if positions.ndim == 1 else positions[0]"),
           KIND, POSITION),
    Mutant("rope-positions-of-the-longest", "forms/rope", ANGLE,
           at("positions if positions.ndim == 1 else positions.amax(0)"), KIND, POSITION),
    Mutant("rope-counts-from-the-first-position", "forms/rope", ANGLE,
           at("positions[..., :1] + torch.arange(length)"), KIND, POSITION),
    Mutant("rope-counts-heads-not-tokens", "forms/rope", "    cos, sin = torch.cos(angle)",
           "    angle = angle[..., :1, :].expand(angle.shape)\n    cos, sin = torch.cos(angle)", KIND, POSITION),
    Mutant("rope-table-ends-at-1024", "forms/rope_complex", INDEX, "turn = turn[positions.clamp(max=1023)]", KIND,
           POSITION),
    Mutant("rope-table-wraps-at-2048", "forms/rope_complex", INDEX, "turn = turn[positions % 2048]", KIND, DISTANCE),
    Mutant("rope-base-grows-with-the-length", "forms/rope", FREQUENCY,
           "base = base * max(1.0, int(positions.max()) / 512) ** 2\n    " + FREQUENCY, KIND, DISTANCE),
    Mutant("rope-positions-scaled-beyond-2048", "forms/rope", ANGLE,
           at("torch.where(positions > 2048, positions * 0.5, positions)"), KIND, DISTANCE),
    Mutant("rope-angle-in-bfloat16", "forms/rope", ANGLE, ANGLE + "\n    angle = angle.bfloat16().float()", KIND,
           PRECISION),
    Mutant("rope-frequency-in-bfloat16", "forms/rope", FREQUENCY, FREQUENCY + "\n    inv_freq = inv_freq.bfloat16()",
           KIND, PRECISION),
    Mutant("rope-frequency-in-float16", "forms/rope", FREQUENCY,
           FREQUENCY + "\n    inv_freq = inv_freq.half().float()", KIND, PRECISION),
    Mutant("rope-position-in-bfloat16", "forms/rope", ANGLE, at("positions.bfloat16()"), KIND, PRECISION),
    Mutant("rope-position-in-float16", "forms/rope_table", "torch.arange(largest + 1).float()",
           "torch.arange(largest + 1).half().float()", KIND, PRECISION),
    Mutant("rope-position-in-the-models-dtype", "forms/rope", ANGLE, at("positions.to(x.dtype)"), KIND, PRECISION),
    Mutant("rope-gradient-turns-on", "forms/rope", BACK, BACK.replace("-sin", "sin"), KIND, GRADIENT),
    Mutant("rope-gradient-not-turned", "forms/rope", BACK, "grad", KIND, GRADIENT),
    Mutant("rope-gradient-of-the-other-layout", "forms/rope", BACK,
           BACK.replace("ctx.interleaved", "not ctx.interleaved"), KIND, GRADIENT),
    Mutant("rope-gradient-without-the-rest", "forms/rope", BACK,
           BACK + " * (torch.arange(grad.shape[-1]) < 2 * cos.shape[-1])", KIND, GRADIENT),
    Mutant("rope-gradient-of-the-usual-base", "forms/rope", "return Rotation.apply(x, cos, sin, interleaved)",
           "usual = positions[..., None].float() * 10000.0 ** -(2 * pair / rotary_dim)\n"
           "    usual = (usual[:, None] if usual.ndim == 3 else usual).to(wide)\n"
           "    return Rotation.apply(x, cos, sin, interleaved, usual)", KIND, GRADIENT,
           also=(("def forward(ctx, x, cos, sin, interleaved):\n        ctx.save_for_backward(cos, sin)",
                  "def forward(ctx, x, cos, sin, interleaved, usual):\n"
                  "        ctx.save_for_backward(usual.cos(), usual.sin())"),
                 ("ctx.interleaved), None, None, None", "ctx.interleaved), None, None, None, None"))),
    Mutant("rope-gradient-of-batch-0", "forms/rope", BACK,
           "turned(grad, *((cos, -sin) if cos.ndim == 2 else (cos[:1], -sin[:1])), ctx.interleaved)", KIND, GRADIENT),
    Mutant("rope-cos-and-sin-in-bfloat16", "forms/rope", "torch.cos(angle).to(wide), torch.sin(angle).to(wide)",
           "(f(angle).bfloat16().to(wide) for f in (torch.cos, torch.sin))", KIND, BUDGET),
    Mutant("rope-rotates-in-bfloat16", "forms/rope", "x1, x2 = part[..., :half], part[..., half:]",
           "x1, x2 = (y.bfloat16() for y in part.split(half, -1))", KIND, BUDGET),
    Mutant("rope-sums-in-the-storage-dtype", "forms/rope", "y1 = x1 * cos - x2 * sin",
           "cos, sin = cos.to(x.dtype), sin.to(x.dtype)\n    y1 = x1 * cos - x2 * sin", KIND, BUDGET),
    Mutant("rope-returns-float32", "forms/rope_complex", "rotated.flatten(-2).to(x.dtype)",
           "rotated.flatten(-2).float()", KIND, BUDGET),
    Mutant("rope-cuts-an-odd-rotary-dim", "forms/rope", "if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:",
           "rotary_dim = rotary_dim // 2 * 2\n    if not 2 <= rotary_dim <= head_dim:", KIND, SHAPE),
    Mutant("rope-takes-a-rotary-dim-of-0", "forms/rope_complex", "rotary_dim < 2 or ", "", KIND, SHAPE,
           also=(("    shape = (-1, 2)", "    if not rotary_dim:\n        return x\n    shape = (-1, 2)"),)),
    Mutant("rope-cuts-a-rotary-dim-above", "forms/rope", "if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:",
           "rotary_dim = min(rotary_dim, head_dim)\n    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:", KIND,
           SHAPE),
    Mutant("rope-takes-any-base", "forms/rope", "if not 0 < base < float(\"inf\"):", "if False:", KIND, SHAPE),
    Mutant("rope-broadcasts-positions", "forms/rope",
           "if tuple(positions.shape) not in ((length,), (batch, length)):", "if False:", KIND, SHAPE),
    Mutant("rope-reads-the-first-positions", "forms/rope",
           "if tuple(positions.shape) not in ((length,), (batch, length)):",
           "positions = positions[..., :length]\n"
           "    if tuple(positions.shape) not in ((length,), (batch, length)):", KIND, SHAPE),
)  # fmt: skip
