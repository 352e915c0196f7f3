"""Faults of T5's relative position bias: of its buckets."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

BUCKET, DIRECTION = "relative-bias.bucket", "relative-bias.direction"
SHAPE = "relative-bias.shape"
EXACT = "    exact = count // 2\n"
FAR = "far = distance.abs() if bidirectional else (-distance).clamp(min=0)"
RETURNED = "return found + count * (distance > 0) if bidirectional else found"
REACHED = "t**later * exact**step >= max_distance**step * exact**later"
COUNTED = "range(1, later)"

MUTANTS = (
    Mutant("buckets-one-exact-more", "forms/relative_bucket", EXACT, "    exact = count // 2 + 1\n", KIND, BUCKET,
           also=(("max_distance <= exact:", "max_distance <= exact - 1:"),)),
    Mutant("buckets-one-exact-less", "forms/relative_bucket", EXACT,
           "    exact = max(count // 2 - 1, 1)\n", KIND, BUCKET),
    Mutant("buckets-exact-of-both-directions", "forms/relative_bucket", EXACT,
           "    exact = min(num_buckets // 2, max_distance - 1)\n", KIND, BUCKET,
           also=(("later = count - exact", "later = max(count - exact, 1)"),
                 ("max_distance <= exact:", "max_distance <= count // 2:"))),
    Mutant("buckets-boundary-one-late", "forms/relative_bucket", REACHED, REACHED.replace(">=", ">"), KIND, BUCKET),
    Mutant("buckets-by-a-float64-logarithm", "forms/relative_bucket", REACHED,
           "t >= exact and int(math.log(t / exact) / math.log(max_distance / exact) * later) >= step", KIND, BUCKET,
           also=(("import torch\n", "import math\n\nimport torch\n"),)),
    Mutant("buckets-by-a-logarithm-of-max-distance", "forms/relative_bucket", REACHED,
           "t**later >= max_distance**step * exact**later", KIND, BUCKET),
    Mutant("buckets-linear", "forms/relative_bucket", REACHED,
           "(t - exact) * later >= (max_distance - exact) * step", KIND, BUCKET),
    Mutant("buckets-one-short-of-the-last", "forms/relative_bucket", COUNTED, "range(1, later - 1)", KIND, BUCKET),
    Mutant("buckets-not-clamped", "forms/relative_bucket", COUNTED, "range(1, later + 1)", KIND, BUCKET),
    Mutant("buckets-of-far-keys-wrap", "forms/relative_bucket", FAR,
           f"{FAR}\n    far = torch.where(far > 10 * max_distance, far % max_distance, far)", KIND, BUCKET),
    Mutant("buckets-rounded-up", "forms/relative_bucket_search", "torch.searchsorted(starts, (-distance).clamp(min=0)"
           ".long(), right=True) - 1", "torch.searchsorted(starts, (-distance).clamp(min=0).long()).clamp("
           "max=buckets - 1)", KIND, BUCKET),
    Mutant("buckets-guess-left-as-it-is", "forms/relative_bucket_search", "        starts.append(guess)",
           "        starts.append(round(single * math.exp(step / wide * math.log(max_distance / single))))", KIND,
           BUCKET),
    Mutant("buckets-of-max-distance-128", "forms/relative_bucket_search",
           "torch.tensor(first_distances(buckets, max_distance))",
           "torch.tensor(first_distances(buckets, 128 if buckets // 2 < min(max_distance, 128) else max_distance))",
           "scale-softcap-bias/silently-ignored-argument", BUCKET),
    Mutant("buckets-direction-swapped", "forms/relative_bucket", "count * (distance > 0)", "count * (distance < 0)",
           KIND, DIRECTION),
    Mutant("buckets-of-the-diagonal-beyond", "forms/relative_bucket", "count * (distance > 0)",
           "count * (distance >= 0)", KIND, DIRECTION),
    Mutant("buckets-without-direction", "forms/relative_bucket", RETURNED, "return found", KIND, DIRECTION),
    Mutant("buckets-causal-of-both-sides", "forms/relative_bucket", FAR, "far = distance.abs()", KIND, DIRECTION),
    Mutant("buckets-causal-of-later-keys", "forms/relative_bucket", "(-distance).clamp(min=0)", "distance.clamp(min=0)",
           KIND, DIRECTION),
    Mutant("buckets-always-bidirectional", "forms/relative_bucket_search", "if not bidirectional:\n", "if False:\n",
           "scale-softcap-bias/silently-ignored-argument", DIRECTION),
    Mutant("buckets-offset-by-all", "forms/relative_bucket_search", "behind = buckets + ", "behind = num_buckets + ",
           KIND, DIRECTION),
    Mutant("buckets-odd-number-taken", "forms/relative_bucket", "bidirectional and num_buckets % 2", "False",
           "validation-or-degenerate/reference-wrong", SHAPE),
    Mutant("buckets-too-few-taken", "forms/relative_bucket", "count < 2 or max_distance <= exact",
           "max_distance <= exact", "validation-or-degenerate/reference-wrong", SHAPE),
    Mutant("buckets-short-max-distance-taken", "forms/relative_bucket", "count < 2 or max_distance <= exact",
           "count < 2", "validation-or-degenerate/reference-wrong", SHAPE),
)  # fmt: skip
