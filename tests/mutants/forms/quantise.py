"""Faults of quantising keys and values."""

from mutants.house import Mutant

KIND = "precision-or-range/quantised-kv"
ROUNDING, SHAPE = "quantised.rounding", "quantised.scale-shape"
QUOTIENT = "quotient = x.to(wide) / scale.to(wide)"
INT8 = "quotient.round().clamp(-128, 127).to(dtype)"
E4M3 = "quotient.clamp(-448, 448).to(dtype)"
CHECK = "if scale.ndim and not fits:"
DTYPES = "if dtype not in (torch.int8, torch.float8_e4m3fn) or not scale.is_floating_point():"
NEAREST = "(quotient < middle) | ((quotient == middle) & even)"

MUTANTS = (
    Mutant("quantise-cuts-the-fraction", "forms/quantise", INT8, INT8.replace("round", "trunc"), KIND, ROUNDING),
    Mutant("quantise-rounds-down", "forms/quantise", INT8, INT8.replace("round", "floor"), KIND, ROUNDING),
    Mutant("quantise-halves-up", "forms/quantise", INT8, INT8.replace("quotient.round()", "(quotient + 0.5).floor()"),
           KIND, ROUNDING),
    Mutant("quantise-halves-away-from-0", "forms/quantise", INT8,
           INT8.replace("quotient.round()", "((quotient.abs() + 0.5).floor() * quotient.sign())"), KIND, ROUNDING),
    Mutant("quantise-e4m3-halves-away-from-0", "forms/quantise_nearest", NEAREST,
           "(quotient < middle) | ((quotient == middle) & (quotient < 0))", KIND, ROUNDING),
    Mutant("quantise-halves-to-odd", "forms/quantise_nearest", "& even)", "& ~even)", KIND, ROUNDING),
    Mutant("quantise-rounds-towards-0", "forms/quantise_nearest", NEAREST, "quotient > 0", KIND, ROUNDING),
    Mutant("quantise-int8-wraps", "forms/quantise", ".round().clamp(-128, 127).to(dtype)",
           ".round().to(torch.int64).to(dtype)", KIND, ROUNDING),
    Mutant("quantise-e4m3-overflows-to-nan", "forms/quantise", E4M3,
           "torch.where(quotient.abs() > 464, torch.nan, quotient).to(dtype)", KIND, ROUNDING),
    Mutant("quantise-e4m3-ends-at-240", "forms/quantise", E4M3, "quotient.clamp(-240, 240).to(dtype)", KIND, ROUNDING),
    Mutant("quantise-int8-ends-at-minus-127", "forms/quantise", INT8, INT8.replace("-128", "-127"), KIND, ROUNDING),
    Mutant("quantise-int8-without-sign", "forms/quantise", INT8, INT8.replace("-128", "0"), KIND, ROUNDING),
    Mutant("quantise-beyond-becomes-0", "forms/quantise", QUOTIENT,
           QUOTIENT + "\n    quotient = quotient.where(quotient.abs() < 448, 0.0)", KIND, ROUNDING),
    Mutant("quantise-without-subnormals", "forms/quantise", E4M3,
           "quotient.where(quotient.abs() >= 2.0**-6, 0.0).clamp(-448, 448).to(dtype)", KIND, ROUNDING),
    Mutant("quantise-as-e5m2", "forms/quantise", E4M3, "quotient.to(torch.float8_e5m2).float().to(dtype)", KIND,
           ROUNDING),
    Mutant("quantise-multiplies", "forms/quantise", QUOTIENT, QUOTIENT.replace(" / ", " * "), KIND, ROUNDING),
    Mutant("quantise-without-the-scale", "forms/quantise", QUOTIENT, "quotient = x.to(wide)", KIND, ROUNDING),
    Mutant("quantise-scale-of-head-0", "forms/quantise", QUOTIENT,
           QUOTIENT.replace("scale.to", "(scale[:, :1] if scale.ndim else scale).to"), KIND, ROUNDING),
    Mutant("quantise-scale-of-batch-0", "forms/quantise", QUOTIENT,
           QUOTIENT.replace("scale.to", "(scale[:1] if scale.ndim else scale).to"), KIND, ROUNDING),
    Mutant("quantise-channels-for-tokens", "forms/quantise", QUOTIENT,
           "scale = scale.mT if scale.ndim and x.shape[2] == x.shape[3] else scale\n    " + QUOTIENT, KIND, ROUNDING),
    Mutant("quantise-quotient-in-bfloat16", "forms/quantise", QUOTIENT,
           QUOTIENT + "\n    quotient = quotient.bfloat16()", KIND, ROUNDING),
    Mutant("quantise-quotient-in-the-dtype-of-x", "forms/quantise_nearest", "x.float() * (1.0 / scale)",
           "(x * (1.0 / scale).to(x.dtype)).float()", KIND, ROUNDING),
    Mutant("quantise-reciprocal-in-float16", "forms/quantise_nearest", "(1.0 / scale)", "(1.0 / scale).half()", KIND,
           ROUNDING),
    Mutant("quantise-returns-floats", "forms/quantise", E4M3, "quotient.clamp(-448, 448).to(dtype).to(x.dtype)", KIND,
           ROUNDING),
    Mutant("quantise-scale-of-the-largest", "forms/quantise", QUOTIENT,
           QUOTIENT + "\n    quotient = quotient / quotient.abs().amax() * (127 if dtype == torch.int8 else 448)", KIND,
           ROUNDING),
    Mutant("quantise-broadcasts-any-scale", "forms/quantise", CHECK, "if False:", KIND, SHAPE),
    Mutant("quantise-takes-any-dtype", "forms/quantise", DTYPES, "if False:", KIND, SHAPE),
)  # fmt: skip
