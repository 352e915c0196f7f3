"""Form `relative_bucket`: distances, and their buckets in T5's relative position bias (chapter "position-bias")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.relative_bias import buckets

FAR = (1, 2, 3, 10, 100, 1000)  # multiples of max_distance

GROUPS: dict[str, dict[str, str]] = {
    "The numbers of T5, for both directions and for causal attention; every distance up to 140, and some far ones.": {
        "relative-bucket-t5": "buckets=32/max_distance=128/span=140/far",
        "relative-bucket-t5-causal": "buckets=32/max_distance=128/causal/span=140/far",
    },
    "Distances whose logarithm is a whole number of buckets, which a rounded logarithm misses.": {
        "relative-bucket-powers": "buckets=20/max_distance=160/span=170",
        "relative-bucket-powers-causal": "buckets=10/max_distance=160/causal/span=170",
        "relative-bucket-thousands-causal": "buckets=12/max_distance=384/causal/span=400/far",
    },
    "The fewest buckets, an odd number for a direction, and a max_distance just above the exact ones.": {
        "relative-bucket-fewest": "buckets=4/max_distance=2/span=5/far",
        "relative-bucket-fewest-causal": "buckets=2/max_distance=2/causal/span=5/far",
        "relative-bucket-one-exact": "buckets=6/max_distance=20/span=30",
        "relative-bucket-odd": "buckets=14/max_distance=50/span=60/far",
        "relative-bucket-odd-causal": "buckets=7/max_distance=50/causal/span=60/far",
        "relative-bucket-short": "buckets=32/max_distance=9/span=20/far",
        "relative-bucket-short-causal": "buckets=32/max_distance=17/causal/span=30/far",
    },
    "Many buckets and long distances.": {
        "relative-bucket-320": "buckets=320/max_distance=800/span=900/far",
        "relative-bucket-64": "buckets=64/max_distance=256/span=300/far",
        "relative-bucket-long": "buckets=32/max_distance=4096/span=600/far",
        "relative-bucket-long-causal": "buckets=32/max_distance=4000/causal/span=600/far",
    },
}


@dataclass(frozen=True)
class RelativeBucketProblem(WordProblem):
    """Distances and buckets. buckets: num_buckets, of both directions together; causal: not bidirectional; span: every
    distance from -span to span; far: multiples of max_distance too, and their neighbours."""

    form: ClassVar[str] = "relative_bucket"
    truths: ClassVar[tuple[str, ...]] = ("buckets",)
    leading: ClassVar[str] = ""

    buckets: int = 0
    max_distance: int = 0
    causal: bool = False
    span: int = 0
    far: bool = False

    def distances(self) -> list[int]:
        """Return the distances: position of the key minus that of the query."""
        near = list(range(-self.span, self.span + 1))
        far = [self.max_distance * times + by for times in FAR for by in (-1, 0, 1)] if self.far else []
        return [*near, *far, *(-distance for distance in far)]

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        count = (len(self.distances()),)
        return {"distance": ("int32", count), "buckets": ("float64", count)}

    def inputs(self) -> Tensors:
        """Return the distances."""
        return {"distance": torch.tensor(self.distances(), dtype=torch.int32)}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the bucket of each distance."""
        options = {"num_buckets": self.buckets, "max_distance": self.max_distance}
        found = buckets(inputs["distance"].numpy(), bidirectional=not self.causal, **options)
        return {"buckets": found.astype(np.float64)}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        return ("relative-bias.bucket", "relative-bias.direction")
