"""The losses against their formulas written out in plain Python, at the places where they are delicate, and by what they leave alone."""

import math
import pickle

import numpy as np
import pytest
import torch

from rt_core import Bank, Batch, Encoder
from rt_core.evaluation import describe
from rt_core.fingerprints import fingerprint
from rt_core.randomness import SampleRandom
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_core.traces import FrozenTensor
from rt_core.views import crop_and_flip
from rt_unsupervised_attacks.losses import KLVAT, LOSSES, AdvCL, HoVasconcelos, InfoNCE, NTXent, RoCL, WassersteinVAE, find_loss, prepared

CONTRASTIVE = [
    RoCL(),
    RoCL(negatives="batch"),
    NTXent(negatives=3),
    NTXent(negatives="batch"),
    NTXent(form="a2a"),
    NTXent(form="ds"),
    HoVasconcelos(),
    HoVasconcelos(normalize=True),
    AdvCL(),
    InfoNCE(),
    InfoNCE(queue=torch.eye(16)),
]
ALL = [KLVAT(), WassersteinVAE(), WassersteinVAE(squared=True), *CONTRASTIVE]


def waves(inputs):
    return torch.cat([(3 * inputs.flatten(1)).sin(), inputs.flatten(1).square()], dim=1)


def batch_of(encoder, inputs, bank=None, own=None):
    with torch.no_grad():
        return Batch(ids=tuple(map(str, range(len(inputs)))), inputs=inputs, clean=encoder(inputs), aim="away", bank=bank, own=own)


class Three:
    """Three samples in float64, and what the formulas speak of, as lists of floats."""

    def __init__(self, shape=(4,), bank=None, own=None):
        self.encoder, self.random = Encoder(waves, name="waves"), SampleRandom.of(0, range(3))
        self.inputs, self.moved = (tiny_inputs(3, shape, purpose=purpose).double() for purpose in ("inputs", "moved"))
        self.batch = batch_of(self.encoder, self.inputs, bank, own)
        self.x, self.hat = waves(self.inputs).tolist(), waves(self.moved).tolist()

    def view(self, inputs, purpose="view"):
        return waves(crop_and_flip(inputs, self.random, purpose)).tolist()

    def others(self, count):
        """The other samples that are drawn for each: lists of rows."""
        draws = self.random.uniform("others", (count,)).tolist()
        return [[[row for row in range(3) if row != sample][int(2 * draw)] for draw in draws[sample]] for sample in range(3)]

    def check(self, loss, expected):
        value = loss(self.encoder, self.batch, self.moved, self.random)
        torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def dot(first, second):
    return sum(a * b for a, b in zip(first, second, strict=True))


def cos(first, second):
    return dot(first, second) / math.sqrt(dot(first, first) * dot(second, second))


def nce(positive, negatives, temperature):
    """−log e^{positive/T} / (e^{positive/T} + Σ e^{negative/T})"""
    own = math.exp(positive / temperature)
    return -math.log(own / (own + sum(math.exp(negative / temperature) for negative in negatives)))


def nt_xent(first, second, temperature):
    views, terms = first + second, []
    for i in range(6):
        others = [cos(views[i], views[k]) for k in range(6) if k not in (i, (i + 3) % 6)]
        terms.append(nce(cos(views[i], views[(i + 3) % 6]), others, temperature))
    return sum(terms) / 6


# Values, from the formulas


def test_kl_vat():
    three = Three()

    def softmax(row):
        total = sum(map(math.exp, row))
        return [math.exp(value) / total for value in row]

    pairs = [(softmax(x), softmax(hat)) for x, hat in zip(three.x, three.hat, strict=True)]
    three.check(KLVAT(), [sum(p * math.log(p / q) for p, q in zip(first, second, strict=True)) for first, second in pairs])


@pytest.mark.parametrize("squared", [False, True])
def test_wasserstein_vae(squared):
    three, expected = Three(), []
    for x, hat in zip(three.x, three.hat, strict=True):  # 4 means and 4 log variances
        means = sum((a - b) ** 2 for a, b in zip(x[:4], hat[:4], strict=True))
        deviations = sum((math.exp(a / 2) - math.exp(b / 2)) ** 2 for a, b in zip(x[4:], hat[4:], strict=True))
        expected.append(means + deviations if squared else math.sqrt(means + deviations))
    three.check(WassersteinVAE(squared=squared), expected)


@pytest.mark.parametrize("negatives", [1, 4, "batch"])
def test_rocl(negatives):
    three = Three()
    views = three.view(three.inputs)
    others = [[row for row in range(3) if row != sample] for sample in range(3)] if negatives == "batch" else three.others(negatives)
    expected = [nce(cos(three.hat[i], views[i]), [cos(three.hat[i], three.x[row]) for row in others[i]], temperature=0.3) for i in range(3)]
    three.check(RoCL(negatives=negatives, temperature=0.3), expected)


def test_nt_xent_of_one_sample_s_two_terms():
    three = Three()
    views, others, expected = three.view(three.inputs), three.others(5), []
    for i in range(3):
        positive = cos(three.hat[i], views[i])
        terms = [nce(positive, [cos(anchor[i], three.x[row]) for row in others[i]], temperature=0.4) for anchor in (three.hat, views)]
        expected.append(sum(terms) / 2)
    three.check(NTXent(negatives=5, temperature=0.4), expected)


def test_nt_xent_of_a_batch():
    three = Three()
    views, moved_views = three.view(three.inputs), three.view(three.moved)
    both = nt_xent(three.hat, moved_views, 0.4)

    three.check(NTXent(form="a2s", negatives="batch", temperature=0.4), nt_xent(three.hat, views, 0.4))
    three.check(NTXent(form="a2a", temperature=0.4), both)
    three.check(NTXent(form="ds", temperature=0.4), nt_xent(three.x, views, 0.4) + both)


@pytest.mark.parametrize("normalize", [False, True])
def test_ho_vasconcelos_sums_over_the_attacked_samples(normalize):
    three = Three()
    similar, views = cos if normalize else dot, three.view(three.inputs)
    expected = 0.0
    for i in range(3):  # the anchor is the view, the denominator runs over the attacked
        expected += nce(similar(three.hat[i], views[i]), [similar(three.hat[j], views[i]) for j in range(3) if j != i], temperature=0.5)
    three.check(HoVasconcelos(normalize=normalize), expected)


@pytest.mark.parametrize(("radius", "used"), [(None, 8 / 4), (3.0, 3.0)])
def test_advcl(radius, used):
    three = Three(shape=(1, 8, 9))
    details = []
    for picture in three.inputs[:, 0].numpy():
        rows, columns = np.mgrid[:8, :9]
        low = np.hypot(rows - 4, (columns - 4) * 8 / 9) < used  # in cycles per shorter side
        kept = np.fft.ifft2(np.fft.ifftshift(np.where(low, np.fft.fftshift(np.fft.fft2(picture)), 0))).real
        details.append(waves(torch.from_numpy(picture - kept)[None])[0].tolist())
    first, second = three.view(three.inputs, "view/1"), three.view(three.inputs, "view/2")
    total = 0.0
    for n in range(3):
        z = [first[n], second[n], three.hat[n], details[n]]
        for i in range(4):
            among = sum(math.exp(cos(z[i], view[k]) / 0.5) for k in range(3) for view in (first, second))
            total -= sum(math.log(math.exp(cos(z[i], z[j]) / 0.5) / among) for j in range(4) if j != i)
    three.check(AdvCL(radius=radius), total / 3)


@pytest.mark.parametrize("normalize", [False, True])
def test_info_nce_with_a_queue_or_the_other_keys(normalize):
    three, queue = Three(), tiny_inputs(5, (8,), purpose="queue").double()

    def momentum(inputs):
        return waves(0.8 * inputs)

    keys = momentum(crop_and_flip(three.inputs, three.random, "view")).tolist()
    similar = cos if normalize else dot
    positive = [similar(three.hat[i], keys[i]) for i in range(3)]
    queued = [nce(positive[i], [similar(three.hat[i], key) for key in queue.tolist()], 0.2) for i in range(3)]
    others = [nce(positive[i], [similar(three.hat[i], keys[j]) for j in range(3) if j != i], 0.2) for i in range(3)]

    options = {"momentum": Encoder(momentum, name="momentum"), "normalize": normalize}
    three.check(InfoNCE(queue=queue, **options), queued)
    three.check(InfoNCE(**options), others)


# Others: never itself, from the bank where there is one


@pytest.mark.parametrize("loss", [RoCL(negatives=400), NTXent(negatives=400)])
def test_a_bank_gives_every_other_sample_and_never_the_own_one(loss):
    places = torch.eye(5, dtype=torch.float64)
    encoder = Encoder(lambda inputs: inputs, name="itself")
    own = torch.tensor([4, 0, -1])
    batch = batch_of(encoder, places[[4, 0, 2]], Bank(places), own)
    moved = torch.ones(3, 5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(encoder, batch, moved, SampleRandom.of(0, range(3))).sum(), moved)

    near = batch.inputs * 0.9 + 0.1 / 5  # the gradient at places of the bank says which of them took part
    value = loss(encoder, batch, near, SampleRandom.of(0, range(3)))
    for row, mine in enumerate(own.tolist()):
        taken = {place for place in range(5) if changed(loss, encoder, batch, near, value, row, places, place)}
        assert taken == set(range(5)) - {mine}
    assert slope.isfinite().all()


def changed(loss, encoder, batch, moved, value, row, places, place):
    """Whether a loss of one row is another where a row of the bank is."""
    other = places.clone()
    other[place] = torch.tensor([0.3, 0.1, 0.7, 0.2, 0.5])
    batch = Batch(ids=batch.ids, inputs=batch.inputs, clean=batch.clean, aim="away", bank=Bank(other), own=batch.own)
    return loss(encoder, batch, moved, SampleRandom.of(0, range(3)))[row] != value[row]


@pytest.mark.parametrize("loss", [RoCL(negatives=50), RoCL(negatives="batch"), NTXent(negatives=50)])
def test_without_a_bank_the_others_are_those_of_the_batch_and_never_itself(loss):
    three = Three()
    value = loss(three.encoder, three.batch, three.moved, three.random)
    for row in range(3):
        clean = three.batch.clean.clone()
        clean[row] += 1
        changed = Batch(ids=three.batch.ids, inputs=three.inputs, clean=clean, aim="away")
        same = loss(three.encoder, changed, three.moved, three.random) == value
        assert same.tolist() == [other == row for other in range(3)]  # all but the sample itself see another neighbor


# Degenerate batches


@pytest.mark.parametrize("loss", [loss for loss in CONTRASTIVE if not (isinstance(loss, InfoNCE) and loss.queue)], ids=repr)
def test_one_sample_alone_is_refused_with_the_reason(loss):
    encoder = tiny_encoder()
    with pytest.raises(ValueError, match=r"this batch is 1 sample: the loss would be 0 without a gradient; attack at least 2 together"):
        loss.prepare(encoder, batch_of(encoder, tiny_inputs(1)), SampleRandom.of(0, [0]))
    assert encoder.passes.backwards == 0


@pytest.mark.parametrize("loss", [RoCL(), NTXent()])
def test_one_sample_alone_is_enough_beside_a_bank(loss):
    encoder = tiny_encoder()
    bank = Bank(encoder(tiny_inputs(6)).detach())
    value = loss(encoder, batch_of(encoder, tiny_inputs(1), bank, torch.tensor([0])), tiny_inputs(1), SampleRandom.of(0, [0]))
    assert value.shape == (1,)
    assert value > 0

    alone = Bank(encoder(tiny_inputs(1)).detach())
    with pytest.raises(ValueError, match="the bank holds none but itself; give a larger bank"):
        loss.prepare(encoder, batch_of(encoder, tiny_inputs(1), alone, torch.tensor([0])), SampleRandom.of(0, [0]))


def test_the_high_pass_needs_pictures():
    three = Three()
    with pytest.raises(ValueError, match=r"inputs have shape \[3, 4\]; the high pass of advcl reads pictures"):
        AdvCL().prepare(three.encoder, three.batch, three.random)


# Gradients


@pytest.mark.parametrize("place", ["coincidence", "zero", "zero beside others", "far"])
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_gradients_are_finite_everywhere(loss, place):
    scale = 1.0 if place != "far" else 10.0 if isinstance(loss, WassersteinVAE) else 1e4  # its log variances have an exponential
    encoder = Encoder(lambda inputs: scale * inputs[:, :, ::2, ::2].flatten(1), name="itself")  # 16 numbers
    inputs = tiny_inputs(4, (1, 8, 8))
    moved = inputs.clone()
    if place == "zero":
        inputs, moved = torch.zeros_like(inputs), torch.zeros_like(inputs)
    elif place == "zero beside others":
        moved[1] = 0
    elif place == "far":
        moved = tiny_inputs(4, (1, 8, 8), purpose="moved")
    moved.requires_grad_()
    value = loss(encoder, batch_of(encoder, inputs), moved, SampleRandom.of(0, range(4)))
    (slope,) = torch.autograd.grad(value.sum(), moved, allow_unused=True)

    assert value.isfinite().all()
    assert slope is None or slope.isfinite().all()
    if loss.flat and place in ("coincidence", "zero"):
        assert slope.abs().max() < 1e-6
    if "zero" in place and isinstance(loss, (RoCL, NTXent, AdvCL)) and getattr(loss, "form", "a2s") == "a2s":
        assert not slope[1].any()  # a zero vector has no direction


def test_a_small_contrast_is_not_rounded_to_none():
    encoder = Encoder(lambda inputs: inputs, name="itself")
    queue, queries = torch.tensor([[-1.0, 0.0]]), torch.tensor([[0.9, 0.1]]).requires_grad_()
    value = InfoNCE(queue=queue, temperature=0.05)(encoder, batch_of(encoder, queries.detach()), queries, SampleRandom.of(0, [0]))
    (slope,) = torch.autograd.grad(value.sum(), queries)
    assert 0 < value < 1e-15
    assert slope.any()


# What is computed once, and what is left alone


@pytest.mark.parametrize(
    ("loss", "once", "each"),
    [
        (KLVAT(), 0, 1),
        (RoCL(), 1, 1),
        (NTXent(), 1, 1),
        (NTXent(negatives="batch"), 1, 1),
        (NTXent(form="a2a"), 0, 2),
        (NTXent(form="ds"), 1, 2),
        (HoVasconcelos(), 1, 1),
        (AdvCL(), 3, 1),
        (InfoNCE(), 1, 1),
    ],
    ids=repr,
)
def test_what_does_not_move_is_represented_once(loss, once, each):
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    batch = batch_of(encoder, inputs)
    before = encoder.passes.forwards
    value = prepared(loss, encoder, batch, SampleRandom.of(0, range(4)))
    assert encoder.passes.forwards - before == 4 * once
    for _ in range(3):
        value(inputs)
    assert encoder.passes.forwards - before == 4 * (once + 3 * each)


@pytest.mark.parametrize("loss", [loss for loss in ALL if getattr(loss, "form", "a2s") == "a2s"], ids=repr)
def test_a_loss_prepared_once_is_the_loss(loss):
    encoder, inputs, random = tiny_encoder(), tiny_inputs(4), SampleRandom.of(0, range(4))
    batch = batch_of(encoder, inputs)
    value = prepared(loss, encoder, batch, random)
    for moved in (inputs, inputs.flip(-1)):
        assert torch.equal(value(moved), loss(encoder, batch, moved, random))
        assert torch.equal(prepared(lambda *given: loss(*given), encoder, batch, random)(moved), value(moved))


def test_the_momentum_encoder_and_the_queue_stay_as_they_were():
    network, queue = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.BatchNorm1d(16)), torch.randn(6, 16)
    before, kept = {name: value.clone() for name, value in network.state_dict().items()}, queue.clone()
    loss, encoder, inputs = InfoNCE(queue=queue, momentum=network), tiny_encoder(), tiny_inputs(4).requires_grad_()
    value = loss(encoder, batch_of(encoder, inputs.detach()), inputs, SampleRandom.of(0, range(4)))
    torch.autograd.grad(value.sum(), inputs)

    assert all(part.training for part in network.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())  # no update, no statistics
    assert torch.equal(queue, kept)
    assert torch.equal(loss.queue.on(torch.device("cpu")), kept)


# As values


def test_losses_are_values():
    for name, make in LOSSES.items():
        assert find_loss(name) == make() == pickle.loads(pickle.dumps(make()))
        assert hash(make()) == hash(make())
        assert isinstance(describe(make()), dict)
    first, second = InfoNCE(queue=torch.zeros(2, 3)), InfoNCE(queue=torch.ones(2, 3))
    assert first == InfoNCE(queue=torch.zeros(2, 3)) == pickle.loads(pickle.dumps(first))
    assert first != second
    assert fingerprint(first) != fingerprint(second)
    assert describe(first)["queue"]["tensor"] == [2, 3]
    assert describe(first)["queue"] != describe(second)["queue"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64, torch.int64])
def test_a_frozen_tensor_holds_what_it_was_made_of(dtype):
    given = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype).T  # not contiguous
    frozen = FrozenTensor.of(given)
    back = frozen.on(torch.device("cpu"))
    assert torch.equal(back, given)
    assert back.dtype == dtype
    back.zero_()
    assert torch.equal(frozen.on(torch.device("cpu")), given)
    assert FrozenTensor.of(frozen) is frozen


def test_losses_are_found_by_name_by_mapping_or_as_they_are():
    def mine(encoder, batch, moved, random):
        return moved.sum()

    assert find_loss(mine) is mine
    assert find_loss({"use": "rocl", "temperature": 0.1}) == RoCL(temperature=0.1)
    for given, words in [
        ("rocll", "no loss is named 'rocll'; did you mean 'rocl'"),
        ({"use": "rocl", "heat": 1}, "loss 'rocl' does not take these options: .*heat"),
        (3, "loss is 3; expected a name .kl_vat, .* or a function of .encoder, batch, moved, random."),
    ]:
        with pytest.raises(ValueError, match=words):
            find_loss(given)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (RoCL, {"temperature": 0}, "temperature is 0; it must be positive"),
        (RoCL, {"temperature": "warm"}, "temperature is 'warm'; expected a plain number"),
        (RoCL, {"negatives": 0}, "negatives is 0; at least one"),
        (NTXent, {"negatives": "all"}, "negatives is 'all'; expected how many, or 'batch'"),
        (NTXent, {"form": "s2s"}, "form is 's2s'; expected 'a2s', 'a2a' or 'ds'"),
        (AdvCL, {"radius": -1}, "radius is -1; it must be positive, or None"),
        (InfoNCE, {"queue": torch.zeros(3)}, r"queue has shape \[3\]; expected keys, \[queue, dim\]"),
        (HoVasconcelos, {"temperature": float("nan")}, "temperature is nan; expected a finite number"),
    ],
)
def test_options_out_of_range_are_refused_with_the_remedy(make, options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)
