"""A backend whose ALiBi counts back from the last key, beside a causal triangle at the upper left."""

from alibi_mixed import Mixed


class FromTheEnd(Mixed):
    """The other way round."""

    name = "alibi_from_the_end"

    def origin(self, first):
        """Where ALiBi counts from."""
        return first["lower_right"]


attention = FromTheEnd("upper_left", "lower_right")
