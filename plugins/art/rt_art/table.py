"""What is known of ART's evasion attacks: which mode serves each, how its rows are to be handed over, and why some cannot run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["MODES", "NEEDED", "REFUSED", "SERVED", "SHORT", "Served"]

MODES = ("y", "unit", "threshold", "instance")


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """How one class of ART is served.

    Attributes:
        why: what it reads of a classifier: the reason for its modes, and for what they cannot do.
        modes: those that serve it, the default first.
        whole: it sends whole batches in their order, so a view may hold one anchor a row.
        alone: it takes one sample at a time in every mode: it mixes rows, or begins at an input of its own for each.
        sized: its ``batch_size`` is a number of rows without any other meaning, and is set to those that it is given.
        norm: that of the ball it stays in, ``"norm"`` where its option of that name says it, None where it has no ball.
        radius: the option that is the ball's radius.
        columns: how many logits it is shown at least.
        probabilities: it is shown probabilities instead of logits.
        goal: its labels are the classes to reach, not those to leave.
        begins: what it needs to begin at beside the clean input: ``"input"`` (an input of another class, given under ``begin_as``) or
            ``"noise"`` (noise must be of another class, or it searches for ever).
        gated: it returns what it found only where the class changed from that of the clean input, even by ever so little.
        aims: where it can aim in every mode; ``impersonates``: whether it can aim at a target in mode "instance".
        bisects: whether its result can be shortened along the way from the clean input and mean the same.
        lengths: options that are lengths, in the units of the inputs.
        needs: packages that it imports when it runs.
        hint: what to do about an error that the library itself raises.
        remedy: what to do where the library cannot even make it, and does not say why.
        litters: it writes files to the working directory.
        defaults: options that are set unless given.
    """

    why: str
    modes: tuple[str, ...]
    whole: bool = False
    alone: bool = False
    sized: bool = False
    norm: str | None = None
    radius: str = "eps"
    columns: int = 4
    probabilities: bool = False
    goal: bool = False
    begins: str = ""
    begin_as: str = "x_adv_init"
    gated: bool = False
    aims: tuple[str, ...] = ("away", "target")
    impersonates: bool = True
    bisects: bool = True
    lengths: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    hint: str = ""
    remedy: str = ""
    litters: bool = False
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_LOSS = "it reads the gradient of the loss alone"
_GRADIENT: Mapping[str, Any] = {"modes": MODES, "whole": True, "sized": True, "norm": "norm", "lengths": ("eps", "eps_step")}
_AUTO: Mapping[str, Any] = {
    "why": "it reads the loss, and returns what it found only where the class changed",
    "modes": ("unit", "threshold", "instance"),
    "sized": True,
    "norm": "norm",
    "gated": True,
    "lengths": ("eps", "eps_step"),
}
_SEARCH = ("threshold", "instance")
_NEAREST = "it looks for the smallest change that makes another class win"
_CLASS_ALONE = "it asks only which class wins"
_SCORES = "it lowers the probability of one class until another wins"
_BEGUN: Mapping[str, Any] = {"why": _CLASS_ALONE, "modes": _SEARCH, "alone": True, "begins": "input"}

SERVED: Mapping[str, Served] = MappingProxyType(
    {
        "FastGradientMethod": Served(why=_LOSS, **_GRADIENT),
        "BasicIterativeMethod": Served(why=_LOSS, **{**_GRADIENT, "norm": "linf"}),
        "MomentumIterativeMethod": Served(why=_LOSS, **_GRADIENT),
        "ProjectedGradientDescent": Served(why=_LOSS, **_GRADIENT),
        "ProjectedGradientDescentNumpy": Served(why=_LOSS, **_GRADIENT),
        "ProjectedGradientDescentPyTorch": Served(why=_LOSS, **_GRADIENT),
        "AutoProjectedGradientDescent": Served(**_AUTO),
        # Under norm infinity ART 1.20 steps along these two's gradient itself, not its sign, so eps_step is in units of the gradient.
        "AutoConjugateGradient": Served(**_AUTO),
        "RescalingAutoConjugateGradient": Served(**_AUTO),
        "SquareAttack": Served(
            why="it reads scores, through hooks that mode 'y' sets, and drops rows that are of another class",
            modes=("y", "threshold", "instance"),
            sized=True,
            norm="norm",
            impersonates=False,
            lengths=("eps",),
        ),
        "AutoAttack": Served(
            why="its attacks hand over to each other the rows whose class has not changed",
            modes=("instance",),
            sized=True,
            norm="norm",
            impersonates=False,
            lengths=("eps", "eps_step"),
            needs=("multiprocess",),
        ),
        "ShadowAttack": Served(
            why="it descends the loss of labels to reach, averaged over noisy copies of its one sample", modes=("y",), alone=True
        ),
        "FeatureAdversariesPyTorch": Served(
            why="it descends the squared l2 distance between the representations of two inputs, of its own accord",
            modes=("y",),
            sized=True,
            norm="linf",
            radius="delta",
            aims=("target",),
        ),
        "DeepFool": Served(why=_NEAREST, modes=_SEARCH, columns=2, impersonates=False),
        "NewtonFool": Served(why=_SCORES, modes=_SEARCH, probabilities=True, impersonates=False),
        "CarliniL2Method": Served(why=_NEAREST, modes=_SEARCH),
        "CarliniLInfMethod": Served(why=f"{_NEAREST}, whichever it is", modes=_SEARCH, impersonates=False),
        "CarliniL0Method": Served(why=_NEAREST, modes=_SEARCH),
        "ElasticNet": Served(why=_NEAREST, modes=_SEARCH),
        "ZooAttack": Served(why=f"{_NEAREST}, by differences of scores", modes=_SEARCH),
        "SaliencyMapMethod": Served(
            why="it raises the score of a class to reach, two elements at a time", modes=_SEARCH, goal=True, lengths=("theta",)
        ),
        "SimBA": Served(why=_SCORES, modes=_SEARCH, probabilities=True, lengths=("epsilon",)),
        "PixelAttack": Served(why=_SCORES, modes=_SEARCH, probabilities=True, litters=True),
        "ThresholdAttack": Served(why=_SCORES, modes=_SEARCH, probabilities=True, litters=True),
        "BoundaryAttack": Served(**_BEGUN),
        "HopSkipJump": Served(**_BEGUN),
        "SignOPTAttack": Served(**_BEGUN, begin_as="x_init", impersonates=False),
        "GeoDA": Served(
            why=_CLASS_ALONE,
            modes=_SEARCH,
            alone=True,
            begins="noise",
            aims=("away",),
            litters=True,
            remedy="max_iter is a number of queries, of which the first of several rounds must have 50 to 80; give 500 or more, or leave it "
            "out (4000), with lambda_param from 0.6 to 1",
        ),
        "SpatialTransformation": Served(
            why="it asks which class wins for each of its shifts and rotations, one for all samples that it is given",
            modes=_SEARCH,
            alone=True,
            impersonates=False,
            bisects=False,
        ),
        "VirtualAdversarialMethod": Served(
            why="it climbs the divergence between the probabilities of the clean input and its own, without labels",
            modes=_SEARCH,
            probabilities=True,
            norm="l2",
            aims=("away",),
            bisects=False,
            lengths=("eps",),
        ),
        "Wasserstein": Served(
            why="it climbs the loss until another class wins, in transport of mass",
            modes=_SEARCH,
            hint="an overflow means that regularization (3000 unless given) times the gradient is too large; give less, such as 300",
        ),
        "UniversalPerturbation": Served(
            why="one perturbation for all samples needs labels that travel with the rows",
            modes=("instance",),
            norm="norm",
            impersonates=False,
            lengths=("eps",),
            defaults=MappingProxyType({"attacker_params": {"verbose": False}}),
        ),
        "TargetedUniversalPerturbation": Served(
            why="it looks for one perturbation that takes all samples to one class, and here each has a target of its own",
            modes=("instance",),
            alone=True,
            norm="norm",
            goal=True,
            aims=("target",),
            lengths=("eps",),
            defaults=MappingProxyType({"attacker_params": {"targeted": True}}),
        ),
    }
)
"""The classes that are served."""

_PATCH = "it returns one patch and its mask, trained on many samples, not an input for each"
_DETECTOR = "it attacks object detectors and trackers, by their boxes"
_SPEECH = "it attacks speech recognizers, by their transcripts"
_TENSORFLOW = "it is made for TensorFlow"
_VIDEO = "it attacks videos, by their frames"
_PHYSICAL = "it draws on photographed objects, with parameters of the scene"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("AdversarialPatch", "AdversarialPatchNumpy", "AdversarialPatchPyTorch"), _PATCH),
        **dict.fromkeys(("AdversarialTexturePyTorch", "DPatch", "OverloadPyTorch", "RobustDPatch", "SNAL"), _DETECTOR),
        **dict.fromkeys(("CarliniWagnerASR", "ImperceptibleASR", "ImperceptibleASRPyTorch"), _SPEECH),
        **dict.fromkeys(("AdversarialPatchTensorFlowV2", "FeatureAdversariesTensorFlowV2"), _TENSORFLOW),
        "ProjectedGradientDescentTensorFlowV2": f"{_TENSORFLOW}; take ProjectedGradientDescent",
        **dict.fromkeys(("FrameSaliencyAttack", "OverTheAirFlickeringPyTorch"), _VIDEO),
        **dict.fromkeys(("GRAPHITEBlackbox", "GRAPHITEWhiteboxPyTorch", "LaserAttack"), _PHYSICAL),
        "MalwareGDTensorFlow": f"{_TENSORFLOW}, for bytes of programs",
        "DecisionTreeAttack": "it reads the branches of a scikit-learn tree",
        "HighConfidenceLowUncertainty": "it reads the variance of a Gaussian process",
        "BrendelBethgeAttack": "ART leaves it out where numba is missing, and it was not tested; HopSkipJump looks for the same boundary",
        "CompositeAdversarialAttackPyTorch": "it composes changes of color and rotations under kornia, for inputs of 3 x 32 x 32 alone",
        "FeatureAdversariesNumpy": "it takes one pass for each element of the input and step; take FeatureAdversariesPyTorch",
        "LowProFool": "it weighs the columns of a table by how they go with labels",
    }
)
"""The classes that are not, with the reason and, where there is one, what to take instead."""

NEEDED: Mapping[tuple[str, str, Any], str] = MappingProxyType({("PixelAttack", "es", 0): "cma", ("ThresholdAttack", "es", 0): "cma"})
"""Packages that an attack needs with this value of an option."""

SHORT: Mapping[str, str] = MappingProxyType(
    {
        "fgsm": "FastGradientMethod",
        "fgm": "FastGradientMethod",
        "bim": "BasicIterativeMethod",
        "mim": "MomentumIterativeMethod",
        "mifgsm": "MomentumIterativeMethod",
        "pgd": "ProjectedGradientDescent",
        "apgd": "AutoProjectedGradientDescent",
        "acg": "AutoConjugateGradient",
        "square": "SquareAttack",
        "jsma": "SaliencyMapMethod",
        "cw": "CarliniL2Method",
        "zoo": "ZooAttack",
        "hsj": "HopSkipJump",
        "boundary": "BoundaryAttack",
        "vat": "VirtualAdversarialMethod",
    }
)
"""What else people call them."""
