"""The metric of rt-example."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RelativeShift:
    """How far a representation moved, in units of its clean length; 0: not at all, 1: as far as the origin is."""

    aim = "away"
    better = "lower"
    statistic = "median"
    per = "sample"
    span = (0.0, float("inf"))

    def __call__(self, trace, bank, context):
        """-> [n]"""
        return (trace.adversarial - trace.clean).norm(dim=1) / trace.clean.norm(dim=1)
