"""Center smoothing of an encoder (Kumar & Goldstein 2021): what is configured, what is drawn for one input, and the certificate read off it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rt_center_smoothing import functions
from rt_center_smoothing.geometry import Geometry, geometry_of
from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import as_encoder, check_inputs
from rt_core.errors import RobustnessWarning, ShapeError
from rt_core.perturbing import check_batch, measure, progress_bar, represent_rows
from rt_core.randomness import SampleRandom, names_of
from rt_core.smoothing import Draws, check_sigma
from rt_core.traces import check_number, check_radius, check_whole

__all__ = [
    "ABSTAINED",
    "IMPOSSIBLE",
    "OUTPUT_FACTOR",
    "CenterSmoothing",
    "CenteredSettings",
    "Certificate",
    "Measured",
    "NoiseSettings",
    "OutputSettings",
]

ABSTAINED, IMPOSSIBLE = "abstained", "no certificate"
_TOO_MANY = 10**10  # draws, to be told as a remedy
OUTPUT_FACTOR = 3  # a center's ball is at most twice as large as the smallest one: 1 + 2, by the triangle inequality


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """What all certificates have: ``certify_draws`` copies of an input with Gaussian noise, and ``alpha_certify``, the risk of being wrong.

    sigma is in the units of the encoder's bounds. clip: whether noisy copies are clipped to them, which makes clipping a part of the encoder.
    """

    sigma: float
    certify_draws: int = 100_000
    alpha_certify: float = 0.005
    clip: bool = False

    def __post_init__(self) -> None:
        _check_positive("sigma", self.sigma)
        check_whole("certify_draws", self.certify_draws)
        _check_share("alpha_certify", self.alpha_certify, 1)
        _check_flag("clip", self.clip)
        if self.certify_draws < (needed := functions.vote_draws_needed(alpha=self.alpha_certify)):
            raise ValueError(
                f"certify_draws is {self.certify_draws}; with alpha_certify {self.alpha_certify:g} even unanimous draws tell nothing: "
                f"at least {needed} are needed"
            )

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and backward passes a sample."""
        return self.certify_draws, 0

    def rehearsal(self) -> Self:
        """Return the same with at most 64 passes, to see that all works; its numbers are worth little."""
        return replace(self, **self._reduced())

    def _reduced(self) -> dict[str, Any]:
        return {"certify_draws": 24, "alpha_certify": 0.999}


@dataclass(frozen=True, kw_only=True)
class CenteredSettings(NoiseSettings):
    """What certificates around a center have besides: ``center_draws``, of which one is the center.

    rank: ``"binomial"``, exact, or ``"hoeffding"``, as published. candidates: how many first draws can be the center, all unless given; see
    ``minimum_enclosing_center``. parity: the released script's arithmetic, numpy's median and a linearly interpolated quantile, which lies
    between two draws, so that the statements are not proven.
    """

    center_draws: int = 10_000
    rank: str = "binomial"
    candidates: int | None = None
    parity: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("center_draws", self.center_draws)
        if self.rank not in functions.RANKS:
            raise ValueError(f"rank is {self.rank!r}; expected 'binomial' or 'hoeffding'")
        _check_flag("parity", self.parity)
        if self.parity and self.rank != "hoeffding":
            raise ValueError("parity is the released script's arithmetic, whose rank is 'hoeffding': say rank='hoeffding' too")
        if self.candidates is not None:
            check_whole("candidates", self.candidates)
            if self.candidates > self.center_draws:
                raise ValueError(f"candidates is {self.candidates}; they are taken from the {self.center_draws} center draws: give fewer")

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and backward passes a sample."""
        return self.center_draws + self.certify_draws, 0

    def level(self, *, input_radius: float, delta: float) -> tuple[int | None, float | None]:
        """Return which of the sorted distances from the center is the certified one, and at which share of them it is; None if none is."""
        known: dict[str, Any] = {"input_radius": input_radius, "sigma": self.sigma, "delta": delta}
        known |= {"alpha": self.alpha_certify, "draws": self.certify_draws, "rank": self.rank}
        return functions.certify_rank(**known), functions.quantile_level(**known)

    def check_reach(self, *, input_radius: float, delta: float) -> None:
        """Warn where no certificate can come of these draws."""
        if self.level(input_radius=input_radius, delta=delta)[0] is not None:
            return
        known: dict[str, Any] = {"sigma": self.sigma, "delta": delta, "alpha": self.alpha_certify, "rank": self.rank}
        largest = functions.largest_input_radius(draws=self.certify_draws, **known)
        needed = functions.certify_draws_needed(input_radius=input_radius, **known)
        more = f"certify_draws at least {needed:,}" if needed < _TOO_MANY else ""
        enough = f"sigma must be at least {self.sigma * input_radius / largest:.4g}" if largest > 0 else ""
        remedy = " or ".join(filter(None, [enough, more]))
        if largest < 0:
            told = (
                f"certify_draws is {self.certify_draws:,}, and with rank {self.rank!r} no certificate is possible at any input_radius, so nothing "
                f"will be drawn; it takes {remedy}"
            )
        else:
            told = (
                f"input_radius is {input_radius:g}, and no certificate is possible, so nothing will be drawn for it: with {self.certify_draws:,} "
                f"certify_draws and sigma {self.sigma:g} it can be at most {largest:.4g}; for this one {remedy}"
            )
        _say(told, 5)

    def _reduced(self) -> dict[str, Any]:
        return super()._reduced() | {"center_draws": 20, "candidates": None}


@dataclass(frozen=True, kw_only=True)
class OutputSettings(CenteredSettings):
    """What a certificate of the smoothed representation has besides: ``input_radius``, and when it abstains.

    delta: it does unless the center's ball surely holds 1/2 - delta of the draws. alpha_center: the risk at the other input.
    """

    input_radius: float
    alpha_center: float = 0.005
    delta: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_radius("input_radius", self.input_radius)
        _check_share("alpha_center", self.alpha_center, 1)
        _check_share("delta", self.delta, 0.5)
        needed = functions.center_draws_needed(alpha=self.alpha_center, delta=self.delta)
        if self.center_draws < needed:
            raise ValueError(
                f"center_draws is {self.center_draws:,}; with delta {self.delta:g} and alpha_center {self.alpha_center:g} every input would be abstained from: "
                f"at least {needed:,} are needed, and about four times as many not to abstain often"
            )
        self.check_reach(input_radius=self.input_radius, delta=self.delta)

    @property
    def possible(self) -> bool:
        """Return whether these draws can certify anything; if not, none is made."""
        return self.level(input_radius=self.input_radius, delta=self.delta)[0] is not None

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and backward passes a sample."""
        return (2 * self.center_draws + self.certify_draws if self.possible else 0), 0

    def _reduced(self) -> dict[str, Any]:
        return super()._reduced() | {"delta": 0.49, "alpha_center": 0.99, "input_radius": 0.0}  # which hardly ever abstains


class Measured:
    """What is drawn for one input, each part when it is first asked for; all radii are read off it, as distances of its geometry."""

    def __init__(self, draws: Any, geometry: Geometry, settings: CenteredSettings) -> None:
        self._draws, self._geometry, self._settings = draws, geometry, settings

    @cached_property
    def center(self) -> Tensor:
        """Return the representation that the others lie around, [dim]."""
        return self._ball[0]

    @property
    def center_radius(self) -> float:
        """Return the radius of the ball around it that holds half of the draws it was chosen from."""
        return self._ball[1]

    @cached_property
    def inside(self) -> int:
        """Return how many fresh draws are in that ball."""
        return int((self._from_center("check", self._settings.center_draws) <= self.center_radius).sum())

    @cached_property
    def distances(self) -> np.ndarray:
        """Return the distances of further fresh draws from the center, in ascending order: [certify_draws]"""
        return np.sort(self._from_center("certify", self._settings.certify_draws).numpy())

    def reason(self, settings: OutputSettings) -> str:
        """Return why there is no certificate of the smoothed representation: ``""`` if there is one."""
        if not settings.possible or not math.isfinite(self.center_radius):
            return IMPOSSIBLE
        if functions.abstains(self.inside, settings.center_draws, alpha=settings.alpha_center, delta=settings.delta):
            return ABSTAINED
        return "" if math.isfinite(self.radius(settings, input_radius=settings.input_radius, delta=settings.delta)) else IMPOSSIBLE

    def radius(self, settings: CenteredSettings, *, input_radius: float, delta: float) -> float:
        """Return the radius of the ball around the center that holds enough of the draws: NaN if none can be told from so many, without a draw.

        Infinity if too many draws have no direction, or are not finite.
        """
        rank, level = settings.level(input_radius=input_radius, delta=delta)
        if rank is None or level is None:
            return math.nan
        if not settings.parity:
            return float(self.distances[rank - 1])
        with np.errstate(invalid="ignore"):
            between = float(np.quantile(self.distances, level))
        return math.inf if math.isnan(between) else between  # of infinities it is NaN

    @cached_property
    def _ball(self) -> tuple[Tensor, float]:
        rows = torch.cat([*self._draws.chunks("center", self._settings.center_draws)])
        settings, points = self._settings, self._geometry.place(rows)
        index, radius = functions.smallest_ball(self._geometry, points, candidates=settings.candidates, parity=settings.parity)
        return rows[index].clone(), radius

    def _from_center(self, purpose: str, count: int) -> Tensor:
        center = self._geometry.place(self.center[None])[0]
        return torch.cat([self._geometry.distances(center, self._geometry.place(chunk)) for chunk in self._draws.chunks(purpose, count)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """What center smoothing says of some inputs; radii are in the units of ``divergence``.

    radius: how far the smoothed representation moves at most, in the sense of ``CenterSmoothing``; half_mass_radius: of the ball around
    ``center`` that holds half of the draws at the input, certified_half_mass_radius: at every input nearby; center_radius: of the ball that
    the center was chosen for; smoothing_error: from the center to the input's own representation; inside: how many draws of the check
    were in the center's ball: all [n]. reason: ``""``, ``"abstained"`` or ``"no certificate"``, one an input; unless empty, the radius is
    NaN. abstained: [n], bool. center: [n, dim]; where no certificate is possible nothing is drawn, and dim is 0.
    """

    ids: tuple[str, ...]
    divergence: str
    radius: Tensor
    half_mass_radius: Tensor
    certified_half_mass_radius: Tensor
    center_radius: Tensor
    smoothing_error: Tensor
    inside: Tensor
    abstained: Tensor
    reason: tuple[str, ...]
    center: Tensor

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class CenterSmoothing(OutputSettings):
    """The encoder smoothed by its center under noise, with a certificate of how far that moves (Kumar & Goldstein 2021).

    The smoothed encoder draws ``center_draws`` representations f(x + noise), noise of N(0, sigma² I), and answers with the one around which
    the smallest ball holds half of them; it abstains where further draws do not confirm that ball.

    **Certified**, by ``radius``: take any x' within ``input_radius`` of x, in **l2** over all of the input's values, that was chosen without
    a look at the noise drawn at x or x'. That the smoothed encoder answers at both and the answers are further apart than ``radius`` has a
    probability of at most ``alpha_center`` + ``alpha_certify`` (see ``risk``). The radius is three times R, that of a ball around the answer
    at x; for cosine, which is no metric, R is a chord of unit vectors, and ``radius`` is (3R)² / 2.

    By ``certified_half_mass_radius``: with probability 1 - ``alpha_certify`` over the draws at x, at least half of f(x' + noise) is that near
    to the answer at x, at **all** x' within ``input_radius`` at once. ``half_mass_radius`` says so of x alone. Neither abstains.

    **Not certified**: the encoder f itself, without noise. The answer at an x' where it abstains, nor the share of errors among answers
    alone. Many x' with one draw each, all at once, by ``radius``. An x' chosen by someone who knows the seed: to them the draws are not random, so
    against such a one certify with a seed drawn afterwards. l-infinity balls. Draws at x and x' are independent, also under one id and seed.

    Args:
        sigma: of the noise, in the units of the encoder's bounds.
        input_radius: in the same units, at most what ``largest_input_radius`` says: above, no certificate is possible, and nothing is drawn.
        center_draws: for the center, and as many again for the check that it is one.
        certify_draws: for the radii.
        alpha_center, alpha_certify: probabilities of error, at x' and at x.
        delta: it abstains unless the ball surely holds 1/2 - delta of the draws. Smaller: a smaller radius, and more draws to answer.
        rank: ``"binomial"``, exact, or ``"hoeffding"``, as published.
        clip: whether noisy inputs are clipped to the bounds, as a part of the encoder.
        candidates: how many first draws can be the center, all unless given: for wide representations, 30 are enough.
        parity: the released script's arithmetic, numpy's median and interpolated quantile (``rank="hoeffding"``). That quantile is below the
            draw which the proof needs: under ``parity`` nothing above is proven.

    Raises:
        ValueError: a parameter that none can have, or too few draws to say anything, with how many are needed.
    """

    @property
    def risk(self) -> float:
        """Return the probability with which the statement about ``radius`` may be wrong."""
        return self.alpha_center + self.alpha_certify + (0 if self.candidates is None else 2.0**-self.candidates)

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and backward passes that ``certify`` takes for one input."""
        return (super().passes[0] + self.possible), 0

    def certify(
        self,
        encoder: Any,
        inputs: Tensor,
        divergence: str | Divergence = "l2",
        *,
        seed: int = 0,
        ids: Sequence[object] | None = None,
        batch: int | None = None,
        progress: bool = False,
    ) -> Certificate:
        """Return what is certified of each input; see the class.

        Args:
            encoder: an ``Encoder``, or a network with bounds 0..1.
            inputs: [n, *input], inside the encoder's bounds.
            divergence: l1, l2, linf or cosine.
            seed, ids: of the randomness, which belongs to (seed, id, input); ids are 0 … n-1 unless given.
            batch: how many noisy copies at a time, as many as 2^20 values hold, in 64 to 1,024, unless given.

        Raises:
            InvalidInputs, ShapeError, ValueError: before any pass, with the remedy.
        """
        encoder, geometry = as_encoder(encoder), geometry_of(divergence)
        check_inputs(inputs, encoder)
        names = names_of(range(len(inputs)) if ids is None else ids)
        if len(names) != len(inputs):
            raise ShapeError(f"{len(inputs)} inputs and {len(names)} ids; one an input is needed")
        size = check_batch(batch)
        check_sigma(self.sigma, encoder)
        with torch.inference_mode(False), encoder.in_use(), progress_bar(progress, len(inputs)) as bar:
            rows = []
            for one, name in zip(inputs, names, strict=True):
                draws = Draws(encoder, one, SampleRandom.of(seed, [name]), sigma=self.sigma, clip=self.clip, batch=size)
                clean = represent_rows(encoder, one[None], 1)[0] if self.possible else torch.zeros(0)
                rows.append(self.certificate_of(Measured(draws, geometry, self), geometry, clean))
                bar.update(1)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        reason, center = columns.pop("reason"), torch.stack(columns.pop("center"))
        values = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
        values["inside"] = values["inside"].long()
        abstained = torch.tensor([why == ABSTAINED for why in reason])
        return Certificate(ids=names, divergence=geometry.name, reason=tuple(reason), abstained=abstained, center=center, **values)

    def certificate_of(self, measured: Measured, geometry: Geometry, clean: Tensor) -> dict[str, Any]:
        """Return the row of one input; ``clean``: its own representation, [dim]."""
        if not self.possible:
            nothing = dict.fromkeys(
                ["radius", "half_mass_radius", "certified_half_mass_radius", "center_radius", "smoothing_error"], math.nan
            )
            return nothing | {"inside": 0, "reason": IMPOSSIBLE, "center": clean}
        around, half = {"input_radius": self.input_radius, "delta": self.delta}, {"delta": 0.0}
        reason = measured.reason(self)
        radii = {
            "radius": math.nan if reason else OUTPUT_FACTOR * measured.radius(self, **around),
            "half_mass_radius": measured.radius(self, input_radius=0.0, **half),
            "certified_half_mass_radius": measured.radius(self, input_radius=self.input_radius, **half),
            "center_radius": measured.center_radius,
        }
        return {
            **{name: geometry.divergence(distance) for name, distance in radii.items()},
            "smoothing_error": measure(find_divergence(geometry.name), measured.center[None], clean[None]).item(),
            "inside": measured.inside,
            "reason": reason,
            "center": measured.center,
        }


def _check_positive(name: str, value: Any) -> None:
    check_number(name, value)
    if not value > 0:
        raise ValueError(f"{name} is {value:g}; it must be positive")


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):  # "no" would be taken for True
        raise ValueError(f"{name} is {value!r}; expected True or False")


def _check_share(name: str, value: Any, below: float) -> None:
    check_number(name, value)
    if not 0 < value < below:
        raise ValueError(f"{name} is {value:g}; it must be in (0, {below:g})")


def _say(what: str, stacklevel: int) -> None:
    warnings.warn(what, RobustnessWarning, stacklevel=stacklevel)
