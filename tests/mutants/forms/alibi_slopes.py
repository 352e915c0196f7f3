"""Faults of the slopes of ALiBi."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

SLOPES = "alibi.slopes"
BELOW = "below = 1 << (heads.bit_length() - 1)"
BETWEEN = "slopes + between[0::2][: heads - below]"
BASE = "base = 2.0 ** (-8.0 / count)"
POWERS = "[base ** (head + 1) for head in range(count)]"

MUTANTS = (
    Mutant("slopes-of-the-next-power-of-two", "forms/alibi_slopes", BELOW, "below = 1 << (heads - 1).bit_length()",
           KIND, SLOPES),
    Mutant("slopes-of-8-by-n-for-every-n", "forms/alibi_slopes", BELOW, "below = heads", KIND, SLOPES),
    Mutant("slopes-second-for-first", "forms/alibi_slopes", BETWEEN, BETWEEN.replace("0::2", "1::2"), KIND, SLOPES),
    Mutant("slopes-of-twice-as-many-heads-unthinned", "forms/alibi_slopes", BETWEEN, BETWEEN.replace("[0::2]", ""),
           KIND, SLOPES),
    Mutant("slopes-repeated", "forms/alibi_slopes", BETWEEN, "(slopes + slopes)[:heads]", KIND, SLOPES),
    Mutant("slopes-between-first", "forms/alibi_slopes", BETWEEN, "between[0::2][: heads - below] + slopes", KIND,
           SLOPES),
    Mutant("slopes-sorted", "forms/alibi_slopes", BETWEEN, f"sorted({BETWEEN}, reverse=True)", KIND, SLOPES),
    Mutant("slopes-in-reverse", "forms/alibi_slopes", POWERS, f"{POWERS}[::-1]", KIND, SLOPES),
    Mutant("slopes-from-1", "forms/alibi_slopes", POWERS, POWERS.replace("(head + 1)", "head"), KIND, SLOPES),
    Mutant("slopes-of-base-4-by-n", "forms/alibi_slopes", BASE, "base = 2.0 ** (-4.0 / count)", KIND, SLOPES),
    Mutant("slopes-of-a-power-of-e", "forms/alibi_slopes", BASE, "base = 2.718281828459045 ** (-8.0 / count)", KIND,
           SLOPES),
    Mutant("slopes-of-n-minus-1", "forms/alibi_slopes", BASE, "base = 2.0 ** (-8.0 / max(count - 1, 1))", KIND, SLOPES),
    Mutant("slopes-are-negative", "forms/alibi_slopes", "torch.tensor(slopes,", "-torch.tensor(slopes,", KIND, SLOPES),
    Mutant("slopes-in-bfloat16", "forms/alibi_slopes", "torch.float32", "torch.bfloat16", KIND, SLOPES),
    Mutant("slopes-in-float16", "forms/alibi_slopes_running", "return torch.cat([whole, factors.cumprod(0)])",
           "return torch.cat([whole, factors.cumprod(0)]).half()", KIND, SLOPES),
    Mutant("slopes-base-in-bfloat16", "forms/alibi_slopes_running", "torch.exp2(torch.tensor(-8.0 / below))",
           "torch.exp2(torch.tensor(-8.0 / below)).bfloat16().float()", KIND, SLOPES),
    Mutant("slopes-between-start-at-the-square", "forms/alibi_slopes_running", "    factors[0] = half\n", "", KIND,
           SLOPES),
    Mutant("slopes-linear", "forms/alibi_slopes", POWERS, "[base * (count - head) / count for head in range(count)]",
           KIND, SLOPES),
)  # fmt: skip
