"""Losses that an attack can raise, a sample's own or a whole batch's (Petrov & Kwiatkowska 2022, section 4.3 and appendix A)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from rt_core.divergences import kl, wasserstein2
from rt_core.encoders import Encoder, as_encoder
from rt_core.naming import did_you_mean
from rt_core.randomness import SampleRandom
from rt_core.traces import Batch, FrozenTensor, check_number, check_whole
from rt_core.views import crop_and_flip, low_frequencies

__all__ = ["KLVAT", "LOSSES", "AdvCL", "HoVasconcelos", "InfoNCE", "Loss", "NTXent", "RoCL", "WassersteinVAE", "find_loss", "prepared"]

Value = Callable[[Tensor], Tensor]


class Loss(Protocol):
    """What a loss-based attack raises: any function of this shape.

    It gives one number a sample, [batch], or, for the ``batch_l_…`` attacks, one for the whole batch. ``batch`` has the clean inputs and
    representations, ids and the bank; ``random`` draws from each sample's stream. A loss may have more:

    prepare: ``prepare(encoder, batch, random)`` gives the function of ``moved`` alone, so that what does not move is computed once a run;
    joint: True where a sample's number depends on the samples beside it; flat: True where the gradient at the clean input is zero;
    aims: ``("away",)`` unless it says otherwise. Whatever the aim, a loss is raised: one that can aim at ``batch.targets`` changes its sign.
    """

    def __call__(self, encoder: Encoder, batch: Batch, moved: Tensor, random: SampleRandom) -> Tensor:
        """Moved: [batch, *input], with a gradient -> [batch], or one number"""


class _Prepared:
    """A loss that is what it prepares."""

    joint: ClassVar[bool] = False
    flat: ClassVar[bool] = False

    def __call__(self, encoder: Encoder, batch: Batch, moved: Tensor, random: SampleRandom) -> Tensor:
        """Moved: [batch, *input] -> [batch], or one number"""
        return self.prepare(encoder, batch, random)(moved)

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Return the loss as a function of the moved inputs alone."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class KLVAT(_Prepared):
    """KL(softmax f(x) ‖ softmax f(x̂)): virtual adversarial training (Miyato et al. 2019), UAT-OT (Alayrac et al. 2019), Nguyen et al. 2022."""

    flat: ClassVar[bool] = True

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> [batch]"""
        return lambda moved: kl(batch.clean, encoder(moved))


@dataclass(frozen=True, kw_only=True)
class WassersteinVAE(_Prepared):
    """2-Wasserstein distance of the Gaussians [mean, log variance] that an encoder gives for x and x̂ (Cemgil et al. 2020).

    Args:
        squared: take the square of the distance instead.
    """

    squared: bool = False
    flat: ClassVar[bool] = True

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> [batch]"""
        return lambda moved: wasserstein2(batch.clean, encoder(moved), squared=self.squared)


@dataclass(frozen=True, kw_only=True)
class RoCL(_Prepared):
    """−log e^{s(x̂, κ(x))/T} / (e^{s(x̂, κ(x))/T} + Σ e^{s(x̂, σ(x))/T}), s the cosine, κ(x) another view of x (Kim et al. 2020).

    Args:
        temperature: T.
        negatives: how many other samples σ(x), drawn anew for each (one may come twice): from the bank where there is one, or else from
            the batch; or ``"batch"``: all others of the batch, as Kim et al., for a ``batch_l_…`` attack.

    Raises:
        ValueError: an option out of its range.
    """

    temperature: float = 0.5
    negatives: int | str = 1

    def __post_init__(self) -> None:
        _check(self)

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.negatives == "batch"

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> [batch]"""
        views = _unit(_still(encoder, crop_and_flip(batch.inputs, random, "view")))
        others = _unit(_others(self, batch, random))

        def value(moved: Tensor) -> Tensor:
            queries = _unit(encoder(moved))
            return _contrast((queries * views).sum(1) / self.temperature, _against(queries, others) / self.temperature)

        return value


@dataclass(frozen=True, kw_only=True)
class NTXent(_Prepared):
    """The NT-Xent loss of SimCLR, attacked as by Jiang et al. 2020: mean over both branches of −log softmax of the other view, among all
    2N − 2 views of other samples, s the cosine.

    x̂ and κ(x), another view, are the two branches (``form="a2s"``, adversarial to standard); or x̂ and κ(x̂), one perturbation in both
    (``"a2a"``, adversarial to adversarial); or that plus the loss of x and κ(x) (``"ds"``, dual stream: the same gradient).

    Args:
        temperature: T.
        form: as above.
        negatives: for a2s, how many other samples are drawn for each, as for ``RoCL``: then the loss is a sample's own two terms. With
            ``"batch"``, and for a2a and ds, the others are those of the batch, attacked like itself: one number for the batch.

    Raises:
        ValueError: an option out of its range.
    """

    temperature: float = 0.5
    form: str = "a2s"
    negatives: int | str = 32

    def __post_init__(self) -> None:
        _check(self)
        if self.form not in ("a2s", "a2a", "ds"):
            raise ValueError(f"form is {self.form!r}; expected 'a2s', 'a2a' or 'ds'")

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.form != "a2s" or self.negatives == "batch"

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> [batch], or one number where it is joint"""
        view = partial(crop_and_flip, random=random, purpose="view")
        if self.joint:
            _check_company(self, batch)
        if self.form == "a2a":
            return lambda moved: _nt_xent(encoder(moved), encoder(view(moved)), self.temperature)
        views = _still(encoder, view(batch.inputs))
        if self.form == "ds":
            clean = _nt_xent(batch.clean, views, self.temperature)
            return lambda moved: clean + _nt_xent(encoder(moved), encoder(view(moved)), self.temperature)
        if self.joint:
            return lambda moved: _nt_xent(encoder(moved), views, self.temperature)
        keys, others = _unit(views), _unit(_others(self, batch, random))
        among = _against(keys, others) / self.temperature

        def value(moved: Tensor) -> Tensor:
            queries = _unit(encoder(moved))
            positive = (queries * keys).sum(1) / self.temperature
            return (_contrast(positive, _against(queries, others) / self.temperature) + _contrast(positive, among)) / 2

        return value


@dataclass(frozen=True, kw_only=True)
class HoVasconcelos(_Prepared):
    """Σ_i −log e^{f(x̂_i)·f(κ(x_i))/T} / Σ_j e^{f(x̂_j)·f(κ(x_i))/T}: which of the attacked samples j belongs to a view (Ho & Vasconcelos
    2020). One number for the batch; made for one step (``batch_l_fgsm``).

    Args:
        temperature: T.
        normalize: take cosines instead of inner products, for encoders whose representations are long: products saturate.

    Raises:
        ValueError: an option out of its range.
    """

    temperature: float = 0.5
    normalize: bool = False
    joint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> one number"""
        _check_company(self, batch)
        views = _scaled(self, _still(encoder, crop_and_flip(batch.inputs, random, "view")))
        return lambda moved: _own_among_all(views @ _scaled(self, encoder(moved)).T / self.temperature).sum()


@dataclass(frozen=True, kw_only=True)
class AdvCL(_Prepared):
    """Multi-view contrast of κ₁(x), κ₂(x), x̂ and HighPass(x): over the ordered pairs of the four, −log e^{s/T} over the sum of e^{s/T}
    to both views of every sample of the batch, its own included, s the cosine (Fan et al. 2021). One number, the mean over the batch.

    HighPass(x) is x without its frequencies below a radius; it is given to the encoder as it is, also where that is outside the bounds.

    Args:
        temperature: T.
        radius: of the low frequencies, in steps of the spectrum; None takes a quarter of the picture's shorter side, 8 of 32.

    Raises:
        ValueError: an option out of its range; inputs that are no pictures.
    """

    temperature: float = 0.5
    radius: float | None = None
    joint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self)
        if self.radius is not None:
            check_number("radius", self.radius)
            if not self.radius > 0:
                raise ValueError(f"radius is {self.radius:g}; it must be positive, or None for a quarter of the shorter side")

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> one number"""
        _check_company(self, batch)
        first, second = (_unit(_still(encoder, crop_and_flip(batch.inputs, random, f"view/{view}"))) for view in (1, 2))
        details, keys = _unit(_still(encoder, _high_pass(batch.inputs, self.radius))), torch.cat([first, second])

        def value(moved: Tensor) -> Tensor:
            views = torch.stack([first, second, _unit(encoder(moved)), details])  # [4, batch, dim]
            among = torch.logsumexp(views @ keys.T / self.temperature, dim=2)
            pairs = torch.einsum("ind,jnd->ijn", views, views) / self.temperature
            own = pairs.sum((0, 1)) - pairs.diagonal(dim1=0, dim2=1).sum(1)
            return ((len(views) - 1) * among.sum(0) - own).mean()

        return value


@dataclass(frozen=True, kw_only=True)
class InfoNCE(_Prepared):
    """−log e^{q·k₊/T} / (e^{q·k₊/T} + Σ e^{q·k₋/T}), q = f(x̂) and k₊ the momentum encoder's κ(x), both of unit length (MoCo). Nothing is
    put into the queue, and no encoder is updated.

    Args:
        temperature: T.
        queue: k₋, [queue, dim]; None takes the keys of the other samples of the batch (MoCo v3), for a ``batch_l_…`` attack.
        momentum: the encoder of the keys; None takes the attacked one.
        normalize: False takes q and k as they are.

    Raises:
        ValueError: an option out of its range.
    """

    temperature: float = 0.2
    queue: FrozenTensor | Any = None
    momentum: nn.Module | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        _check(self)
        if self.queue is not None:
            object.__setattr__(self, "queue", FrozenTensor.of(self.queue))
            if len(self.queue.shape) != 2 or 0 in self.queue.shape:
                raise ValueError(f"queue has shape {list(self.queue.shape)}; expected keys, [queue, dim]")

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.queue is None

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
        """Moved: [batch, *input] -> [batch]"""
        keyed = encoder if self.momentum is None else as_encoder(self.momentum)
        keys = _scaled(self, _still(keyed, crop_and_flip(batch.inputs, random, "view")).to(batch.clean))
        if self.queue is None:
            _check_company(self, batch)
            return lambda moved: _own_among_all(_scaled(self, encoder(moved)) @ keys.T / self.temperature)
        queue = _scaled(self, self.queue.on(keys.device).to(keys))

        def value(moved: Tensor) -> Tensor:
            queries = _scaled(self, encoder(moved))
            return _contrast((queries * keys).sum(1) / self.temperature, queries @ queue.T / self.temperature)

        return value


LOSSES: dict[str, Callable[..., Loss]] = {
    "kl_vat": KLVAT,
    "wasserstein_vae": WassersteinVAE,
    "rocl": RoCL,
    "nt_xent": NTXent,
    "ho_vasconcelos": HoVasconcelos,
    "advcl": AdvCL,
    "info_nce": InfoNCE,
}


def find_loss(loss: Any) -> Loss:
    """Return the loss of that name with its defaults, that of a mapping ``{"use": name, option: …}``, or the callable itself.

    A name may be ``"package.module:name"`` of a class or a function that gives a loss, such as ``"rt_linear_probes:ProbeLoss"``.

    Raises:
        ValueError: no loss has that name, or it is no loss at all.
    """
    if isinstance(loss, Mapping) and "use" in loss:
        name, options = loss["use"], {key: value for key, value in loss.items() if key != "use"}
    elif isinstance(loss, str):
        name, options = loss, {}
    elif callable(loss):
        return loss
    else:
        raise ValueError(f"loss is {loss!r}; expected a name ({', '.join(LOSSES)}) or a function of (encoder, batch, moved, random)")
    if name not in LOSSES and ":" not in str(name):
        meant = did_you_mean(str(name), LOSSES)
        raise ValueError(f"no loss is named {name!r}{meant} (there are {', '.join(LOSSES)}; or give a function, or 'package.module:name')")
    try:
        return (LOSSES.get(name) or _imported(name))(**options)
    except TypeError as error:
        raise ValueError(f"loss {name!r} does not take these options: {error}") from None


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"loss is {path!r}; write 'package.module:name' of something importable ({error})") from error


def prepared(loss: Loss, encoder: Encoder, batch: Batch, random: SampleRandom) -> Value:
    """Return a loss as a function of the moved inputs alone; what does not move is computed here, where the loss says how."""
    prepare = getattr(loss, "prepare", None)
    return partial(_asked, loss, encoder, batch, random) if prepare is None else prepare(encoder, batch, random)


def _asked(loss: Loss, encoder: Encoder, batch: Batch, random: SampleRandom, moved: Tensor) -> Tensor:
    return loss(encoder, batch, moved, random)


def _still(encoder: Encoder, inputs: Tensor) -> Tensor:
    """Represent what does not move."""
    with torch.no_grad():
        return encoder(inputs)


def _unit(rows: Tensor) -> Tensor:
    """Bring representations to length 1; one of zeros has no direction and stays zero, with a gradient of 0: [..., dim] -> same shape"""
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    zero = norm == 0
    return torch.where(zero, 0, rows / torch.where(zero, 1, norm))


def _scaled(loss: HoVasconcelos | InfoNCE, rows: Tensor) -> Tensor:
    return _unit(rows) if loss.normalize else rows


def _against(queries: Tensor, others: Tensor) -> Tensor:
    """queries: [batch, dim], others: [batch, n, dim] -> [batch, n]"""
    return torch.einsum("nd,nkd->nk", queries, others)


def _contrast(positive: Tensor, negatives: Tensor) -> Tensor:
    """−log softmax of the positive, as log(1 + Σ e^{negative − positive}): exact where it is small.

    positive: [batch], negatives: [batch, n] -> [batch]
    """
    return torch.logaddexp(torch.logsumexp(negatives - positive[:, None], dim=1), torch.zeros_like(positive))


def _own_among_all(logits: Tensor) -> Tensor:
    """logits: [batch, batch], each row's own on the diagonal -> [batch]"""
    own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    return _contrast(logits.diagonal(), logits.masked_fill(own, -torch.inf))


def _nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """first, second: [batch, dim] -> one number"""
    rows, size = _unit(torch.cat([first, second])), len(first)
    logits = rows @ rows.T / temperature
    places = torch.arange(2 * size, device=logits.device)
    partner = (places + size) % (2 * size)
    out = (places == places[:, None]) | (places == partner[:, None])
    return _contrast(logits[places, partner], logits.masked_fill(out, -torch.inf)).mean()


def _others(loss: RoCL | NTXent, batch: Batch, random: SampleRandom) -> Tensor:
    """Return representations of other samples, never a sample's own: [batch, negatives, dim]"""
    size, clean = len(batch.inputs), batch.clean
    own = torch.arange(size) if batch.bank is None else torch.full((size,), -1) if batch.own is None else batch.own.cpu()
    if batch.bank is None or loss.negatives == "batch":
        _check_company(loss, batch, "; or draw others from a bank: give bank=" if loss.negatives != "batch" else "")
    if loss.negatives == "batch":
        rows = torch.arange(size - 1) + (torch.arange(size - 1) >= torch.arange(size)[:, None])
        return clean[rows.to(clean.device)]
    choices = (size if batch.bank is None else len(batch.bank)) - (own >= 0).long()
    if (choices < 1).any():
        raise ValueError(f"{type(loss).__name__} contrasts a sample with others, and the bank holds none but itself; give a larger bank")
    drawn = random.uniform("others", (int(loss.negatives),)).double()
    rows = (drawn * choices[:, None]).long()
    rows += (own[:, None] >= 0) & (rows >= own[:, None])
    if batch.bank is None:
        return clean[rows.to(clean.device)]
    return batch.bank.take(rows.flatten()).to(clean).reshape(*rows.shape, -1)


def _high_pass(inputs: Tensor, radius: float | None) -> Tensor:
    """Take from pictures what their frequencies below a radius add up to: [batch, channel, height, width] -> same shape"""
    if inputs.ndim != 4:
        raise ValueError(f"inputs have shape {list(inputs.shape)}; the high pass of advcl reads pictures, [batch, channel, height, width]")
    height, width = inputs.shape[2:]
    low = low_frequencies(height, width, min(height, width) / 4 if radius is None else radius).to(inputs.device)
    return inputs - torch.fft.ifft2(torch.fft.fft2(inputs) * low).real


def _check(loss: Any) -> None:
    check_number("temperature", loss.temperature)
    if not loss.temperature > 0:
        raise ValueError(f"temperature is {loss.temperature:g}; it must be positive")
    negatives = getattr(loss, "negatives", "batch")
    if negatives != "batch":
        if isinstance(negatives, str):
            raise ValueError(f"negatives is {negatives!r}; expected how many, or 'batch'")
        object.__setattr__(loss, "negatives", check_whole("negatives", negatives))


def _check_company(loss: Any, batch: Batch, otherwise: str = "") -> None:
    if len(batch.inputs) < 2:
        raise ValueError(
            f"{type(loss).__name__} contrasts a sample with others of its batch, and this batch is 1 sample: the loss would be 0 without a "
            f"gradient; attack at least 2 together{otherwise}"
        )
