"""U-APGD with the published schedule is torchattacks' APGD on a view whose loss is the divergence."""

import pytest
import torch
import torchattacks
from torch import nn

from rt_core import Encoder, perturb
from rt_core.divergences import l2
from rt_unsupervised_attacks.apgd import UAPGD

# Numbers of few bits: both ways to clip to the ball are then exact, and equal.
EPSILON = 2**-5


class DivergenceLogits(nn.Module):
    """Logits [0, d] by position, or [0, -d] toward targets."""

    def __init__(self, encoder, anchor, way):
        super().__init__()
        self.encoder, self.anchor, self.way = encoder.module, anchor, way
        self.eval()

    def forward(self, inputs):
        value = self.way * l2(self.anchor, self.encoder(inputs))
        return torch.stack([torch.zeros_like(value), value, torch.zeros_like(value), torch.zeros_like(value)], dim=1)


def conv_encoder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 12, 3, stride=2), nn.Tanh(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
    return Encoder(network.eval().requires_grad_(False), name="conv")


def published(encoder, inputs, anchor, way, norm, steps, epsilon):
    """Run the library's attack; return its best iterates, their losses and the start that it drew."""
    attack = torchattacks.APGD(DivergenceLogits(encoder, anchor, way), norm=norm, eps=epsilon, steps=steps, loss="dlr")
    attack.dlr_loss = lambda logits, labels: logits[:, 1]  # the loss is the divergence itself
    torch.manual_seed(3)
    noise = 2 * torch.rand(inputs.shape) - 1 if norm == "Linf" else torch.randn(inputs.shape)
    noise = noise.to(inputs)
    size = noise.flatten(1).abs().amax(1) if norm == "Linf" else noise.square().sum((1, 2, 3)).sqrt() + 1e-12
    start = (inputs + epsilon * torch.ones_like(size).reshape(-1, 1, 1, 1) * noise / size.reshape(-1, 1, 1, 1)).clamp(0, 1)
    torch.manual_seed(3)
    loss, moved = attack.perturb(inputs, torch.zeros(len(inputs), dtype=torch.long), best_loss=True)
    return loss, moved, start


@pytest.mark.parametrize("steps", [1, 4, 10, 25, 60])
def test_linf_steps_are_the_library_s_bit_for_bit(steps):
    encoder = conv_encoder()
    inputs = (torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 256).round() / 256
    with torch.no_grad():
        clean = encoder(inputs)
    loss, moved, start = published(encoder, inputs, clean, 1, "Linf", steps, EPSILON)
    trace = perturb(UAPGD(epsilon=EPSILON, steps=steps + 1, parity=True), encoder, inputs, start=start)

    assert torch.equal(trace.inputs, moved)
    torch.testing.assert_close(trace.divergence, loss.double(), rtol=1e-6, atol=0)
    assert not torch.equal(trace.inputs, start)


def test_the_default_schedule_is_another():
    encoder, inputs = conv_encoder(), torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    ours, theirs = (perturb(UAPGD(epsilon=EPSILON, steps=25, parity=parity), encoder, inputs) for parity in (False, True))

    assert (ours.inputs != theirs.inputs).flatten(1).any(1).all()
    torch.testing.assert_close(ours.history[:, 0], theirs.history[:, 0], rtol=0, atol=0)  # from the same start


@pytest.mark.parametrize("steps", [4, 25])
def test_l2_steps_are_the_library_s_up_to_how_it_rounds_into_the_ball(steps):
    encoder = conv_encoder()
    inputs = 0.25 + torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1)) / 2
    with torch.no_grad():
        clean = encoder(inputs)
    loss, moved, start = published(encoder, inputs, clean, 1, "L2", steps, 0.5)
    trace = perturb(UAPGD(epsilon=0.5, norm="l2", steps=steps + 1, parity=True), encoder, inputs, start=start)

    torch.testing.assert_close(trace.inputs, moved, rtol=0, atol=2e-6)
    torch.testing.assert_close(trace.divergence, loss.double(), rtol=1e-5, atol=0)
