"""Gradient attacks on a loss of one's own: L-FGSM, L-BIM and L-PGD, and the same on a loss of a whole batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from rt_core.divergences import Divergence
from rt_core.encoders import Encoder
from rt_core.errors import ShapeError
from rt_core.randomness import SampleRandom
from rt_core.traces import Attempt, Batch
from rt_unsupervised_attacks.gradient import Iterated, Objective, OneStep
from rt_unsupervised_attacks.losses import find_loss, prepared

__all__ = ["LBIM", "LFGSM", "LPGD", "BatchLBIM", "BatchLFGSM", "BatchLPGD"]


@dataclass(frozen=True, kw_only=True)
class _OnLoss:
    """What loss-based attacks share: the loss, checked, as the objective."""

    loss: Any
    joint: ClassVar[bool] = False
    climbs: ClassVar[str] = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of the attack beside this class
        loss = find_loss(self.loss)
        if isinstance(self.loss, Mapping):
            object.__setattr__(self, "loss", loss)
        name = self.loss if isinstance(self.loss, str) else getattr(loss, "__name__", type(loss).__name__)
        if getattr(loss, "joint", False) and not self.joint:
            raise ValueError(f"loss is {name}, with these options a loss of a whole batch; take Batch{type(self).__name__} (batch_l_…)")
        if getattr(loss, "flat", False) and self.start == "clean":  # type: ignore[attr-defined]
            raise ValueError(f"loss is {name}, and its gradient at the clean input is zero: start='eta' or 'random' can leave it")

    @property
    def aims(self) -> tuple[str, ...]:
        return tuple(getattr(find_loss(self.loss), "aims", ("away",)))

    def objective(self, encoder: Encoder, batch: Batch, divergence: Divergence, random: SampleRandom) -> Objective:
        """Return the loss of this batch, to be climbed."""
        loss = prepared(find_loss(self.loss), encoder, batch, random)

        def value(moved: Tensor) -> Tensor:
            given = loss(moved)
            if given.shape != (len(moved),) and not (self.joint and given.ndim == 0):
                also = ", or one number" if self.joint else " (for one number of the whole batch take a batch_l_… attack)"
                raise ShapeError(f"the loss has shape {list(given.shape)}; expected one number a sample, [{len(moved)}]{also}")
            return given

        return Objective(value)

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """[batch, *input] -> same shape"""
        attempt = super().__call__(encoder, batch, divergence, random=random)  # type: ignore[misc]
        history = getattr(attempt, "history", None)
        if history is None:
            return attempt
        # A history is of the divergence: what the loss was at the first and the last step is said in the notes.
        if history.isnan().any():
            raise ValueError(
                f"the loss is NaN at {history.isnan().double().mean():.0%} of its steps: there is nothing to follow; mend the loss"
            )
        return replace(attempt, history=None, notes={**attempt.notes, "loss_first": history[:, 0], "loss_last": history[:, -1]})


@dataclass(frozen=True, kw_only=True)
class LFGSM(_OnLoss, OneStep):
    """One step of size ``epsilon`` from the input, up a loss (Petrov & Kwiatkowska 2022, section 4.3).

    Args:
        loss: a name of ``LOSSES``, or a function ``loss(encoder, batch, moved, random) -> [batch]``; see ``Loss``. It is raised.
        start: where the gradient is taken: ``"eta"``, within ``eta`` of the input, or ``"clean"``, at the input itself, as the paper
            writes it: there the losses that compare x̂ with x alone have none.
        epsilon, norm, eta, mask: as for ``UFGSM``.

    Raises:
        ValueError: a parameter out of its range; a loss of a whole batch.
    """

    start: str = "eta"

    def __post_init__(self) -> None:
        if self.start not in ("eta", "clean"):
            raise ValueError(f"start is {self.start!r}; expected 'eta' or 'clean'")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class LPGD(_OnLoss, Iterated):
    """Climb a loss by projected gradient steps from a random start (Petrov & Kwiatkowska 2022, section 4.3).

    Costs ``steps`` forward and backward passes, what the loss computes once (another view: one forward pass) and what it needs beside.
    The notes ``loss_first`` and ``loss_last`` are the loss at the first and at the last gradient.

    Args:
        loss: a name of ``LOSSES``, or a function ``loss(encoder, batch, moved, random) -> [batch]``; see ``Loss``. It is raised.
        keep: ``"last"`` iterate or the ``"best"`` one, by the loss; restarts: likewise.
        others: as for ``UPGD``; ``start="clean"`` is for losses that have a gradient there.

    Raises:
        ValueError: a parameter out of its range; a loss of a whole batch.
    """


@dataclass(frozen=True, kw_only=True)
class LBIM(LPGD):
    """L-PGD from beside the input, x + η, or with ``start="clean"`` from the input itself (Petrov & Kwiatkowska 2022, section 4.3)."""

    start: str = "eta"


@dataclass(frozen=True, kw_only=True)
class BatchLFGSM(LFGSM):
    """L-FGSM on a loss of the whole batch, which may give one number for it (Petrov & Kwiatkowska 2022, Eq. 3).

    Results depend on which samples are attacked together. Options as for ``LFGSM``.
    """

    joint: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class BatchLBIM(LBIM):
    """L-BIM on a loss of the whole batch, see ``BatchLFGSM``. Where the loss is one number, the best iterate is that of all samples."""

    joint: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class BatchLPGD(LPGD):
    """L-PGD on a loss of the whole batch, see ``BatchLFGSM``. Where the loss is one number, the best iterate is that of all samples."""

    joint: ClassVar[bool] = True
