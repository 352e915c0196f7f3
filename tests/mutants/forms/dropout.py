"""Faults of dropout with a given mask."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

INVERTED, ON_WEIGHTS, ONE, LSE, BACK = (
    "dropout.inverted", "dropout.on-weights", "dropout.one", "dropout.lse", "dropout.backward-mask",
)  # fmt: skip
DROPPED = "dropped = torch.where(keep, weights * factor, 0.0)"
FACTOR = "1 / (1 - dropout_p) if dropout_p < 1 else 0.0"
EMPTIES = "    empty = (scores == -torch.inf).all(-1, keepdim=True)\n"
LSE_LINE = "lse = torch.logsumexp(scores.masked_fill(empty, 0.0), -1)"

MUTANTS = (
    Mutant("given-dropout-not-scaled-up", "forms/dropout", FACTOR, "1.0", KIND, INVERTED),
    Mutant("given-dropout-divided-by-p", "forms/dropout", FACTOR, "1 / dropout_p", KIND, INVERTED),
    Mutant("given-dropout-scaled-twice", "forms/dropout", FACTOR, "(1 - dropout_p) ** -2 if dropout_p < 1 else 0.0",
           KIND, INVERTED),
    Mutant("given-dropout-renormalised", "forms/dropout", DROPPED,
           f"{DROPPED}\n    dropped = dropped / dropped.sum(-1, keepdim=True).clamp(min=1e-30)", KIND, INVERTED),
    Mutant("given-dropout-keeps-what-it-drops", "forms/dropout", "torch.where(keep,", "torch.where(~keep,", KIND,
           INVERTED),
    Mutant("given-dropout-mask-of-head-0", "forms/dropout", "torch.where(keep,", "torch.where(keep[:, :1],", KIND,
           ON_WEIGHTS),
    Mutant("given-dropout-hides-scores", "forms/dropout", EMPTIES,
           f"    scores = scores.masked_fill(~keep, -torch.inf)\n{EMPTIES}", KIND, ON_WEIGHTS,
           also=((DROPPED, "dropped = weights * factor"),)),
    Mutant("given-dropout-on-scores", "forms/dropout", EMPTIES,
           f"    scores = torch.where(keep | (scores == -torch.inf), scores, 0.0)\n{EMPTIES}", KIND, ON_WEIGHTS,
           also=((DROPPED, "dropped = weights * 1.0"),)),
    Mutant("given-dropout-ignored", "forms/dropout", DROPPED, "dropped = weights * 1.0", KIND, ON_WEIGHTS),
    Mutant("given-dropout-on-the-output", "forms/dropout", "output = dropped @ value",
           "output = weights @ value * torch.where(keep[..., :1], factor, 0.0)", KIND, ON_WEIGHTS),
    Mutant("given-dropout-of-1-is-nan", "forms/dropout", FACTOR, "1 / torch.tensor(1 - dropout_p)", KIND, ONE,
           also=((DROPPED, "dropped = weights * factor * keep"),)),
    Mutant("given-dropout-of-1-is-none", "forms/dropout", DROPPED, f"{DROPPED} if dropout_p < 1 else weights", KIND,
           ONE),
    Mutant("given-dropout-in-the-lse", "forms/dropout", LSE_LINE,
           LSE_LINE.replace("scores.masked_fill(empty, 0.0)", "scores.masked_fill(empty, 0.0).where(keep, -1e30)"),
           KIND, LSE),
    Mutant("given-dropout-factor-in-the-lse", "forms/dropout", LSE_LINE,
           f"{LSE_LINE} - torch.log(torch.tensor(max(1 - dropout_p, 0.01), dtype=wide))", KIND, LSE),
    Mutant("given-dropout-not-in-the-backward", "forms/dropout", DROPPED,
           f"{DROPPED}\n    dropped = weights + (dropped - weights).detach()", KIND, BACK),
    Mutant("given-dropout-no-factor-in-the-backward", "forms/dropout", DROPPED,
           f"{DROPPED}\n    dropped = weights * keep + (dropped - weights * keep).detach()", KIND, BACK),
    Mutant("given-dropout-no-gradient-of-weights", "forms/dropout", DROPPED, f"{DROPPED}.detach()", KIND,
           "backward.dropout"),
)  # fmt: skip
