"""One input under Gaussian noise: its representations, in a stream for each purpose, made once for all certificates that ask."""

import hashlib
import time
import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rt_core.encoders import Encoder
from rt_core.errors import RobustnessWarning
from rt_core.fingerprints import content_of
from rt_core.perturbing import BLOCK, moved_to
from rt_core.randomness import SampleRandom
from rt_core.traces import Context, Progress

__all__ = ["Draws", "check_sigma", "say_once"]

_CHUNK = 1024  # representations that are given, remembered and kept at a time
_NOISE = 64  # draws of noise that come out of one stream
_AT_ONCE = 2**20  # values of small inputs that go through the encoder together, where the batch alone would be few
_REMEMBERED = 2**30  # bytes of representations; what is beyond is made again by whoever asks for it
_WORTH_KEEPING = 20.0  # seconds of passes after which what they made is kept
_REHEARSED = 64  # draws of which a rehearsal makes no more, and of which a share says little
_SAID: WeakKeyDictionary[Encoder, set[Any]] = WeakKeyDictionary()


def check_sigma(sigma: float, encoder: Encoder) -> None:
    """Raise ValueError where noise has a larger standard deviation than the encoder's bounds are wide: sigma is then in other units."""
    low, high = (torch.as_tensor(bound, dtype=torch.float64, device="cpu") for bound in encoder.bounds)
    width = (high - low).max().item()
    if sigma > width:
        raise ValueError(
            f"sigma is {sigma:g}; inputs of encoder {encoder.name!r} span a range of {width:g}, so it must be in (0, {width:g}]"
            + (f": write {sigma:g}/255, not {sigma:g}" if width == 1 and sigma <= 255 else "")
        )


def say_once(encoder: Encoder, key: Any, what: str, *, stacklevel: int = 3) -> None:
    """Warn of something about an encoder, however many samples and certificates find it; ``key``: what it is, apart from whom it was found at."""
    said = _SAID.setdefault(encoder, set())
    if key not in said:
        said.add(key)
        warnings.warn(what, RobustnessWarning, stacklevel=stacklevel)


class Draws:
    """Representations f(x + σ·noise) of one input x, noise of the standard normal distribution.

    The draw at a place of a purpose's stream depends on (seed, sample id, x itself, purpose, place) alone: not on the batch, nor on how many
    are asked for. An input that was changed has other draws under the same id, so that draws at two points are independent, as the
    statements about two points need. The encoder is called as it is, outside its bounds too, unless ``clip``.

    They are remembered, and with ``progress`` kept every 20 seconds of passes, so that who comes next, or again, pays nothing.

    Args:
        inputs: one input, [*input].
        random: of one sample.
        sigma: standard deviation of the noise, in the units of the encoder's bounds.
        clip: whether noisy inputs are clipped to the bounds, which makes clipping a part of what is smoothed.
        batch: how many go through the encoder together (``size``), which bounds the memory they take; 64, which stands where nobody chose
            one, becomes up to 1,024 of inputs so small that 2^20 values hold them.
    """

    def __init__(
        self,
        encoder: Encoder,
        inputs: Tensor,
        random: SampleRandom,
        *,
        sigma: float,
        clip: bool = False,
        batch: int = 64,
        progress: Progress | None = None,
    ) -> None:
        self._encoder, self._inputs, self._random = encoder, inputs, random
        self._sigma, self._clip, self._progress = sigma, clip, progress
        self.size = batch if batch != BLOCK else batch * max(1, min(16, _AT_ONCE // max(batch * inputs.numel(), 1)))
        # In bytes on the CPU: the same input has the same draws on every device.
        self._content = hashlib.blake2b(content_of(inputs), digest_size=16).hexdigest()
        self._known: dict[tuple[str, int], Tensor] = {}
        self._bytes = 0
        self._unsaved: dict[str, Tensor] = {}
        self._cost = 0.0

    @classmethod
    def of(cls, context: Context, *, sigma: float, clip: bool = False) -> "Draws":
        """Return the draws that all metrics share which see this sample alone.

        Raises:
            ValueError: the context is of several samples.
        """
        if len(context.random.ids) != 1:
            raise ValueError(f"the context is of {len(context.random.ids)} samples; draws are of one: say alone = True on the metric")
        key = ("draws", float(sigma), bool(clip))
        if key not in context.shared:
            context.shared[key] = cls(
                context.encoder,
                context.inputs[0],
                context.random,
                sigma=sigma,
                clip=clip,
                batch=context.batch,
                progress=context.progress,
            )
        return context.shared[key]

    def chunks(self, purpose: str, count: int) -> Iterator[Tensor]:
        """Yield the first ``count`` representations of a purpose's stream in order, [up to 1,024, dim], on the CPU.

        Where the encoder breaks under the noise they hold NaN or infinity: such a draw counts against a certificate. Of the first sample
        of an encoder where one does, a warning says the share.
        """
        broken = 0
        for start in range(0, count, _CHUNK):
            chunk = self._chunk(purpose, start, min(_CHUNK, count - start))
            broken += int((chunk.isnan() | (chunk == torch.inf)).any(1).sum())  # minus infinity is what masks a logit
            yield chunk
        if broken and count > _REHEARSED and purpose != "rehearsal":
            say_once(
                self._encoder,
                ("broken", self._sigma, self._clip),
                f"encoder {self._encoder.name!r} gave NaN or infinity for {broken / count:.2%} of {count:,} noisy copies of sample "
                f"{self._random.ids[0]!r} (sigma {self._sigma:g}): such draws count against certificates, of other samples too; "
                + ("mend the encoder" if self._clip else "say clip=True if it breaks outside its bounds, or mend it"),
            )

    def _chunk(self, purpose: str, start: int, wanted: int) -> Tensor:
        key, name = (purpose, start), f"{purpose}-{self._sigma!r}-{self._clip}-{self._content}-{start}"
        known = self._known.get(key)
        if known is None and self._progress is not None and (found := self._progress.load(name)) is not None:
            known = self._remember(key, torch.from_numpy(found["representations"]))
        if known is not None and len(known) >= wanted:
            return known[:wanted]
        first, began = 0 if known is None else len(known), time.monotonic()
        made = [] if known is None else [known]
        with torch.inference_mode(False), self._encoder.in_use():
            for place in range(start + first, start + wanted, self.size):
                noisy = self._noisy(purpose, place, min(place + self.size, start + wanted))
                made.append(self._represented(noisy))
        whole = self._remember(key, torch.cat(made))
        if self._progress is not None:
            self._unsaved[name] = whole
            self._cost += time.monotonic() - began
            if self._cost > _WORTH_KEEPING:
                for unsaved, representations in self._unsaved.items():
                    self._progress.save(unsaved, {"representations": representations.numpy()})
                self._unsaved, self._cost = {}, 0.0
        return whole

    def _represented(self, noisy: Tensor) -> Tensor:
        device = self._encoder.where() or noisy.device
        with torch.no_grad():
            return self._encoder(moved_to(device, noisy)).cpu()

    def _noisy(self, purpose: str, first: int, last: int) -> Tensor:
        """Return the noisy inputs at the places from ``first`` up to ``last`` of a stream."""
        shape = (_NOISE, *self._inputs.shape)
        streams = range(first // _NOISE, -(-last // _NOISE))
        noise = torch.cat([self._random.normal(f"{purpose}/{self._content}/{one}", shape)[0] for one in streams])
        chosen = noise[first - streams.start * _NOISE : last - streams.start * _NOISE]
        noisy = self._inputs.cpu() + self._sigma * chosen.to(self._inputs.dtype)
        return self._encoder.clip(noisy) if self._clip else noisy

    def _remember(self, key: tuple[str, int], representations: Tensor) -> Tensor:
        before: Any = self._known.get(key)
        more = representations.nbytes - (0 if before is None else before.nbytes)
        if self._bytes + more <= _REMEMBERED:
            self._known[key] = representations
            self._bytes += more
        return representations
