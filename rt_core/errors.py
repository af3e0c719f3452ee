"""Every error and warning that rt raises on purpose."""

__all__ = [
    "AmbiguousName",
    "AttackViolation",
    "EncoderError",
    "IntegerInputs",
    "InvalidInputs",
    "MissingLabels",
    "OutputError",
    "PlanError",
    "PluginError",
    "PluginWarning",
    "RobustnessWarning",
    "RtError",
    "ShapeError",
    "StoreError",
    "UnknownName",
]


class RtError(Exception):
    """The base of every error that crosses the seam; a bad parameter alone is a plain ``ValueError``."""


class PluginError(RtError):
    """A plugin could not be loaded, or an entry of it could not be resolved."""


class UnknownName(RtError, LookupError):
    """Nothing of that name is installed."""


class AmbiguousName(RtError, LookupError):
    """A bare name has two owners; ``distribution/name`` tells them apart."""


class ShapeError(RtError, ValueError):
    """A tensor does not have the axes that it should have."""


class InvalidInputs(RtError, ValueError):
    """Inputs hold something that no encoder can be asked about: NaN, values out of bounds, a wrong type."""


class IntegerInputs(InvalidInputs, TypeError):
    """Integers, such as token ids, carry no gradient."""


class EncoderError(RtError, ValueError):
    """The wrapped network failed, or gave something that is no representation."""


class OutputError(RtError, TypeError):
    """A network returned a dict, a tuple or an object, and nothing says which part is the representation."""


class AttackViolation(RtError, RuntimeError):
    """An attack returned inputs outside its ball, outside the bounds, not finite, or of another shape or dtype."""


class MissingLabels(RtError, ValueError):
    """A metric needs labels and the dataset has none."""


class PlanError(RtError, ValueError):
    """An evaluation cannot be run as it is written."""


class StoreError(RtError, RuntimeError):
    """A run's folder belongs to another plan, or holds a file that is not what it should be."""


class PluginWarning(UserWarning):
    """A plugin was left out; everything else works."""


class RobustnessWarning(UserWarning):
    """A number may not mean what it seems to: a stuck attack, an encoder that is not deterministic, a classifier's logits."""
