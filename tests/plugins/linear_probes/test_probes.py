"""Linear probes: the minimum, the paper's recipe, what they are chosen by, how they see inputs, what they leave alone, files."""

import gc
import hashlib
import pickle
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import rt_core as rt
from reference import GOLDEN, numbers
from rt_core import Encoder, MissingLabels, RobustnessWarning, SampleRandom, represent
from rt_core.datasets import as_samples, tensors
from rt_core.fingerprints import fingerprint
from rt_core.perturbing import represent_rows
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_core.traces import FrozenTensor
from rt_linear_probes import LinearProbe, Probe, ProbeLoss, as_probe, fit_probe, lowpass, probes
from rt_linear_probes.probes import _apart, _labels, encoder_print
from rt_linear_probes.regression import descend, logistic_regression, probe_rate
from rt_unsupervised_attacks import LPGD

CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def problem(n=60, dim=5, classes=3, seed=0):
    """Rows of overlapping classes: [n, dim] float64, [n]"""
    targets = torch.arange(n) % classes
    centers = torch.randn(classes, dim, generator=generator(seed), dtype=torch.float64)
    return centers[targets] + torch.randn(n, dim, generator=generator(seed + 1), dtype=torch.float64), targets


def labelled(n=60, classes=(0, 1, 2), *, ids=None, groups=None, shape=(3, 8, 8)):
    """Tiny inputs that can be told apart: the brightness of a corner is the class."""
    inputs = tiny_inputs(n, shape, purpose="train")
    labels = torch.tensor(classes)[torch.arange(n) % len(classes)]
    for row in range(n):
        inputs[row].flatten()[2:20] = (row % len(classes)) / max(len(classes) - 1, 1)
    return tensors(inputs, labels=labels, ids=ids, groups=groups)


def right(probe, encoder, samples):
    rows = range(len(samples))
    found = probe.predict(represent(encoder, samples))
    return (found == torch.tensor(samples.labels(rows))).double().mean().item()


# The minimum


@pytest.mark.parametrize("penalty", [1.0, 1e-2, 1e-4])
def test_the_regression_is_at_the_one_minimum(penalty):
    rows, targets = problem()
    solution = logistic_regression(rows, targets, 3, penalty=penalty)
    at = solution.clone().requires_grad_()
    loss = cross_entropy(rows @ at[:, :-1].T + at[:, -1], targets) + penalty / 2 * at[:, :-1].square().sum()
    (slope,) = torch.autograd.grad(loss, at)
    assert slope.abs().max() <= 1e-7
    # Newton's method, in all numbers at once; the free direction of the biases is held at a mean of 0.
    newton = torch.zeros(18, dtype=torch.float64)

    def value(flat):
        weight, bias = flat.reshape(3, 6)[:, :-1], flat.reshape(3, 6)[:, -1]
        loss = cross_entropy(rows @ weight.T + bias, targets) + penalty / 2 * weight.square().sum()
        return loss + bias.sum().square() / 2

    for _ in range(30):
        downhill = torch.autograd.functional.jacobian(value, newton)
        newton = newton - torch.linalg.solve(torch.autograd.functional.hessian(value, newton), downhill)
    torch.testing.assert_close(solution, newton.reshape(3, 6), rtol=0, atol=1e-6 / penalty**0.5)


def test_a_search_that_starts_elsewhere_ends_at_the_same_minimum():
    rows, targets = problem()
    start = torch.randn(3, 6, generator=generator(5), dtype=torch.float64)
    start[:, -1] -= start[:, -1].mean()
    found = [logistic_regression(rows, targets, 3, penalty=1e-2, start=one) for one in (None, start)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_a_search_that_ends_before_the_slope_says_so():
    rows, targets = problem()
    with pytest.warns(
        RobustnessWarning, match=r"\(weight decay 0.01, 60 rows of 5 numbers\) ended at a slope of [\d.e-]+, above the 1e-30"
    ):
        found = logistic_regression(rows, targets, 3, penalty=1e-2, slope=1e-30)
    torch.testing.assert_close(found, logistic_regression(rows, targets, 3, penalty=1e-2), rtol=0, atol=1e-5)
    with pytest.warns(RobustnessWarning, match="slope of nan"):
        logistic_regression(rows.masked_fill(rows > 2, torch.nan), targets, 3, penalty=1e-2)


def test_a_fit_holds_the_representations_once():
    """Of 8 bytes a number, beside what they are made from: no copy for the samples that are fitted or chosen by."""
    samples = tensors(torch.rand(3_000, 4, generator=generator()), labels=torch.arange(3_000) % 2)
    held, numbers_ = [], 3_000 * 200

    def counted(rows, targets, classes, **options):
        held.append(sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in alive(numbers_ // 2)}.values()))
        return logistic_regression(rows, targets, classes, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "logistic_regression", counted)
        fit_probe(Encoder(nn.Linear(4, 200), name="wide"), samples)
    assert len(held) > 2
    assert max(held) == 8 * numbers_


def alive(least):
    """Tensors that hold at least so many numbers, whoever holds them."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is torch.Tensor and one.numel() >= least]


def test_a_fit_is_that_minimum_on_all_samples_for_representations_as_they_are():
    encoder, samples = tiny_encoder(), labelled()
    probe = fit_probe(encoder, samples)
    given = represent(encoder, samples).double()
    mean, deviation = given.mean(0), given.std(0, correction=0)
    weight, bias = (part.double() for part in probe.on(CPU))
    at = torch.cat([weight * deviation, (bias + weight @ mean)[:, None]], dim=1).requires_grad_()
    loss = cross_entropy((given - mean) / deviation @ at[:, :-1].T + at[:, -1], torch.tensor(samples.labels(range(60))))
    (slope,) = torch.autograd.grad(loss + probe.chosen / 2 * at[:, :-1].square().sum(), at)
    assert slope.abs().max() < 1e-6
    assert probe.weight.dtype == "float32"
    assert right(probe, encoder, samples) == 1


def test_the_decay_with_the_least_cross_entropy_on_samples_apart_is_taken():
    encoder, samples = tiny_encoder(), labelled(120)
    inputs = samples.inputs(range(120)).clone()
    inputs[::3] = tiny_inputs(40, purpose="noise")  # so that the strongest and the weakest decay are both wrong
    samples = tensors(inputs, labels=samples.labels(range(120)))
    probe = fit_probe(encoder, samples)
    given, targets = represent(encoder, samples).double(), torch.tensor(samples.labels(range(120)))
    apart = _apart(targets.tolist(), samples, 0, 0.1)
    rows = (given - given.mean(0)) / given.std(0, correction=0)
    losses = {}
    for power in range(-6, 1):
        found = logistic_regression(rows[~apart], targets[~apart], 3, penalty=10.0**power)
        losses[10.0**power] = cross_entropy(rows[apart] @ found[:, :-1].T + found[:, -1], targets[apart]).item()
    assert probe.chosen == pytest.approx(min(losses, key=losses.get))
    assert probe.chosen not in (1.0, 1e-6)
    assert "chosen on 12 of 120 samples" in probe.about


# The paper's recipe


def test_the_schedule_is_that_of_the_paper():
    found = [probe_rate(epoch) for epoch in range(25)]
    torch.testing.assert_close(numbers(found), numbers(GOLDEN["schedules"]["linear_probe_lr_epoch0_24"]), rtol=1e-12, atol=0)


def test_the_steps_are_momentum_without_decay_and_a_last_single_sample_joins_the_batch_before():
    rows, targets = problem(9)
    start = torch.randn(3, 6, generator=generator(2), dtype=torch.float64) / 100
    orders = [np.random.default_rng(epoch).permutation(9) for epoch in range(3)]
    sizes = []

    def given(epoch, chosen):
        sizes.append(len(chosen))
        return rows[chosen]

    found = list(descend(given, targets, start, orders, batch=4, rate=2.0, drops=(1,)))
    assert sizes == [4, 5] * 3
    weight, speed = start.clone(), torch.zeros_like(start)
    for epoch, order in enumerate(orders):
        for part in (order[:4], order[4:]):
            pull = torch.softmax(rows[part] @ weight[:, :-1].T + weight[:, -1], 1) - nn.functional.one_hot(targets[part], 3)
            slope = torch.cat([pull.T @ rows[part], pull.sum(0)[:, None]], dim=1) / len(part)
            speed = 0.9 * speed + slope
            weight = weight - (2.0 if epoch == 0 else 0.2) * speed
        torch.testing.assert_close(found[epoch], weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("view", ["plain", "lowpass", "noise"])
def test_the_paper_s_recipe_takes_its_best_epoch(view):
    encoder, samples = tiny_encoder(), labelled()
    # Its rate is for representations of a usual size.
    options = {"view": view, "recipe": "paper", "rate": 1.0} | ({"sigma": 0.05} if view == "noise" else {})
    found = [fit_probe(encoder, samples, epochs=epochs, **options) for epochs in (4, 12)]
    assert found[1].selection_accuracy >= found[0].selection_accuracy
    assert 0 <= found[0].chosen < 4
    assert right(found[1], encoder, samples) > 0.6
    assert "representations made anew in each epoch" in found[1].about
    assert fit_probe(encoder, samples, epochs=4, **options) == found[0]


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 60),
        ({"view": "lowpass"}, 60),
        ({"view": "noise", "draws": 3}, 180),
        ({"recipe": "paper", "epochs": 5, "augment": False}, 60),
        ({"recipe": "paper", "epochs": 5, "augment": False, "view": "lowpass"}, 60),
        ({"recipe": "paper", "epochs": 5}, 5 * 54 + 6 + 1),
        ({"recipe": "paper", "epochs": 5, "view": "noise", "augment": False}, 5 * 54 + 6 + 1),
    ],
)
def test_what_does_not_change_is_represented_once(options, passes):
    encoder = tiny_encoder()
    fit_probe(encoder, labelled(), **options)
    assert (encoder.passes.forwards, encoder.passes.backwards) == (passes, 0)


def test_pictures_are_cropped_to_learn_from_and_whole_to_choose_by():
    samples, seen = labelled(), []

    def flat(inputs):
        seen.append(inputs.clone())
        return inputs.flatten(1)

    fit_probe(Encoder(flat, name="flat"), samples, recipe="paper", epochs=2)
    known = {one.numpy().tobytes() for one in samples.inputs(range(60))}
    given = [one.numpy().tobytes() for one in torch.cat(seen)]
    whole = [one for one in given if one in known]
    apart = samples.inputs(_apart(samples.labels(range(60)), samples, 0, 0.1).nonzero().flatten().tolist())
    assert sorted(whole) == sorted(one.numpy().tobytes() for one in apart)
    assert len(set(given)) == len(given) == 6 + 1 + 2 * 54  # each epoch's crops are its own


def test_a_rate_that_leads_to_infinity_is_told():
    inputs = torch.rand(30, 4, generator=generator(), dtype=torch.float64)
    samples = tensors(inputs, labels=[row % 2 for row in range(30)])
    with pytest.raises(ValueError, match=r"rate is 1e\+308, and with it the probe's weights went to infinity; give a smaller one"):
        fit_probe(Encoder(lambda rows: 1e10 * rows, name="large"), samples, recipe="paper", rate=1e308, epochs=2)


# What is chosen by


@settings(max_examples=40)
@given(
    seed=st.integers(0, 99),
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    grouped=st.booleans(),
    share=st.sampled_from([0.1, 0.3, 0.5]),
)
def test_what_is_kept_apart_is_of_every_class_and_of_whole_groups(seed, labels, grouped, share):
    groups = [str(row // 3) for row in range(len(labels))] if grouped else None
    samples = tensors(torch.zeros(len(labels), 2), labels=labels, groups=groups)
    apart = _apart(labels, samples, seed, share).tolist()
    whole, taken = Counter(labels), Counter(label for label, one in zip(labels, apart, strict=True) if one)
    for label, count in whole.items():
        assert 2 * taken[label] <= count
        if not grouped:
            assert taken[label] == min(max(1, round(share * count)), count // 2)
    if grouped:
        assert all(len({one for one, group in zip(apart, groups, strict=True) if group == name}) == 1 for name in set(groups))


def test_the_same_samples_are_kept_apart_in_any_order_of_the_dataset():
    samples = labelled(40, ids=[f"picture-{row}" for row in range(40)])
    labels, order = samples.labels(range(40)), np.random.default_rng(0).permutation(40).tolist()
    first = _apart(labels, samples, 3, 0.1)
    second = _apart([labels[row] for row in order], samples.picked(order), 3, 0.1)
    assert torch.equal(first[order], second)
    assert first.any()
    assert not torch.equal(first, _apart(labels, samples, 4, 0.1))


def test_a_class_with_nothing_to_choose_by_is_fitted_and_said():
    encoder = tiny_encoder()
    samples = labelled(31)
    labels = samples.labels(range(31))
    labels[-1] = 77  # one sample alone
    probe = fit_probe(encoder, tensors(samples.inputs(range(31)), labels=labels))
    assert probe.classes.on(CPU).tolist() == [0, 1, 2, 77]
    assert "among which 1 of 4 classes have none (77)" in probe.about
    assert right(probe, encoder, tensors(samples.inputs(range(31)), labels=labels)) > 0.9
    few = fit_probe(encoder, tensors(samples.inputs(range(3)), labels=[5, 6, 7]))
    assert few.selection_accuracy is None
    assert "nothing was chosen, since no class has two samples (of two groups): all 3 samples are fitted" in few.about
    folders = labelled(30, groups=[row % 3 for row in range(30)])  # every class is one group
    assert "nothing was chosen" in fit_probe(encoder, folders).about
    assert fit_probe(encoder, folders, recipe="paper", epochs=2).chosen == 1  # the last


def test_one_class_alone_is_warned_about():
    with pytest.warns(
        RobustnessWarning, match=r"the 20 training samples \('tensor'\) are all of class 4, so the probe can say nothing else"
    ):
        probe = fit_probe(tiny_encoder(), labelled(20, classes=(4,)))
    assert probe.predict(torch.randn(3, 16, generator=generator())).tolist() == [4, 4, 4]


# Labels


def test_labels_are_any_whole_numbers():
    encoder, samples = tiny_encoder(), labelled(45, classes=(7, 1000, 3))
    probe = fit_probe(encoder, samples)
    assert probe.classes.on(CPU).tolist() == [3, 7, 1000]
    assert right(probe, encoder, samples) > 0.9
    assert set(probe.predict(represent(encoder, samples)).tolist()) == {3, 7, 1000}


def test_labels_that_are_missing_or_no_numbers_are_refused_before_any_pass():
    encoder = tiny_encoder()
    with pytest.raises(MissingLabels, match=r"the training samples \('tensor'\) have none; give train= a dataset with labels"):
        fit_probe(encoder, tiny_inputs(20))
    for wrong, words in (
        ((0.5, 1.5), r"a label is 0.5; expected a class, a whole number from 0 on"),
        (("cat", "dog"), r"a label is 'cat'; .*; number the classes: \[sorted\(set\(labels\)\)"),
        ((None, 1), "a label is None; expected a class, a whole number"),
        ((1, -1), "a label is -1; expected a class, a whole number from 0 on; .*leave out samples without a label"),
    ):
        named = replace(as_samples(tiny_inputs(4)), find_labels=lambda rows, wrong=wrong: [wrong[row % 2] for row in rows])
        with pytest.raises(rt.InvalidInputs, match=words):
            fit_probe(encoder, named)
    assert encoder.passes.forwards == 0
    assert _labels(labelled(4)).dtype == torch.int64


def test_inputs_that_no_encoder_can_be_asked_about_are_refused():
    inputs = tiny_inputs(20)
    inputs[3, 0, 0, 0] = 2.0
    with pytest.raises(rt.InvalidInputs, match="'3'"):
        fit_probe(tiny_encoder(), tensors(inputs, labels=[row % 2 for row in range(20)]))


# How it sees inputs


def test_views_are_what_they_say():
    encoder, inputs, random = tiny_encoder(), tiny_inputs(4), SampleRandom.of(3, "abcd")
    assert Probe().viewed(inputs, random, encoder) is inputs
    assert torch.equal(Probe(view="lowpass", radius=2).viewed(inputs, random, encoder), lowpass(inputs, 2))
    probe = Probe(view="noise", sigma=0.3)
    noisy = probe.viewed(inputs, random, encoder)
    torch.testing.assert_close((noisy - inputs) / 0.3, random.normal("probe/noise", (3, 8, 8)), rtol=0, atol=1e-5)
    assert noisy.min() < 0
    assert torch.equal(replace(probe, clip=True).viewed(inputs, random, encoder), noisy.clamp(0, 1))
    assert torch.equal(probe.viewed(inputs[2:], random.select([2, 3]), encoder), noisy[2:])
    assert not torch.equal(probe.viewed(inputs, random, encoder, purpose="other"), noisy)


def test_a_view_is_what_it_is_fitted_on():
    encoder, samples = tiny_encoder(), labelled()
    inputs, labels = samples.inputs(range(60)), samples.labels(range(60))
    filtered = fit_probe(encoder, tensors(lowpass(inputs), labels=labels))
    view = fit_probe(encoder, samples, view="lowpass")
    assert torch.equal(view.weight.on(CPU), filtered.weight.on(CPU))
    assert not torch.equal(view.weight.on(CPU), fit_probe(encoder, samples).weight.on(CPU))
    noise = [fit_probe(encoder, samples, view="noise", sigma=sigma).weight for sigma in (0.1, 0.2)]
    assert noise[0] != noise[1]


@pytest.mark.parametrize("options", [{}, {"view": "noise"}, {"recipe": "paper", "epochs": 3}])
def test_a_fit_does_not_depend_on_the_batch_that_is_encoded_and_belongs_to_its_seed(options):
    encoder, samples = tiny_encoder(), labelled()
    whole = fit_probe(encoder, samples, **options)
    assert fit_probe(encoder, samples, batch=7, **options) == whole
    assert fit_probe(encoder, samples, seed=1, **options) != whole


def test_inputs_that_are_no_pictures_are_seen_plain_and_with_noise():
    encoder = Encoder(lambda inputs: (3 * inputs.flatten(1)).sin(), name="waves")
    samples = labelled(60, shape=(30,))
    for options in ({}, {"view": "noise", "sigma": 0.05}, {"recipe": "paper", "rate": 1.0}):
        assert right(fit_probe(encoder, samples, **options), encoder, samples) > 0.9
    with pytest.raises(ValueError, match="a low pass is of pictures"):
        fit_probe(encoder, samples, view="lowpass")


# What it leaves alone


@pytest.mark.parametrize("options", [{}, {"recipe": "paper", "epochs": 2, "minibatch": 32}])
def test_the_encoder_is_bit_identical_afterwards(options):
    """Case 29, and 33 samples in batches of 32 (case 47)."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 6))
    network.train()
    network[0].weight.requires_grad_(False)

    def state():
        content = b"".join(tensor.detach().numpy().tobytes() for tensor in network.state_dict().values())
        return hashlib.sha256(content).hexdigest(), network.training, [one.requires_grad for one in network.parameters()]

    before, generators = state(), torch.get_rng_state()
    samples = labelled(33)
    probe = fit_probe(Encoder(network, name="training"), samples, batch=32, **options)
    assert state() == before
    assert network[1].num_batches_tracked == 0
    assert all(one.grad is None for one in network.parameters())
    assert torch.equal(torch.get_rng_state(), generators)
    network.eval()
    assert fit_probe(Encoder(network, name="training"), samples, batch=32, **options) == probe


def test_a_fit_works_where_gradients_are_off():
    samples = labelled()
    for options in ({}, {"recipe": "paper", "epochs": 2}):
        encoder = tiny_encoder()
        expected = fit_probe(encoder, samples, **options)
        with torch.inference_mode():
            assert fit_probe(encoder, samples, **options) == expected


# As a value, and in files


def test_it_is_a_value_before_and_after():
    probe = fit_probe(tiny_encoder(), labelled(), view="lowpass", radius=2)
    assert Probe() == Probe() != Probe(view="noise")
    assert hash(probe) == hash(pickle.loads(pickle.dumps(probe)))
    assert pickle.loads(pickle.dumps(probe)) == probe
    assert probe.fitted
    assert not Probe().fitted
    assert isinstance(probe, LinearProbe)


def test_a_fitted_probe_is_not_fitted_again():
    encoder = tiny_encoder()
    probe = fit_probe(encoder, labelled())
    assert probe.fit(encoder, labelled(30), random=SampleRandom.of(5, [])) is probe
    with pytest.raises(ValueError, match="was fitted on encoder 'tiny'"):
        probe.fit(tiny_encoder(seed=1), labelled(), random=SampleRandom.of(0, []))


@pytest.mark.parametrize(
    "options", [{}, {"view": "noise", "sigma": 0.1, "clip": True}, {"recipe": "paper", "epochs": 3, "drops": (1, 2), "augment": False}]
)
def test_files_hold_all_of_it_and_refuse_another_encoder(tmp_path, options):
    encoder = tiny_encoder()
    probe = fit_probe(encoder, labelled(classes=(4, 2)), **options)
    probe.save(tmp_path / "probe.safetensors")
    again = LinearProbe.load(tmp_path / "probe.safetensors", encoder)
    assert again == probe
    rows = represent(encoder, tiny_inputs())
    assert torch.equal(again.logits(rows), probe.logits(rows))
    other = tiny_encoder(seed=1)
    with pytest.raises(ValueError, match="a probe reads the representations of its own encoder alone: fit one on this encoder") as error:
        LinearProbe.load(tmp_path / "probe.safetensors", other)
    assert encoder_print(encoder) in str(error.value)
    assert encoder_print(other) in str(error.value)


class Counting(nn.Module):
    """A network that notes what it is given, in plain attributes."""

    def __init__(self, dim=5):
        super().__init__()
        self.layer, self.calls, self.last = nn.Linear(192, dim), 0, None

    def forward(self, inputs):
        self.calls, self.last = self.calls + 1, tuple(inputs.shape)
        return self.layer(inputs.flatten(1))


def test_a_probe_knows_its_encoder_again_whatever_it_counts_and_wherever_it_is(tmp_path):
    network = Counting()
    encoder = Encoder(network, name="counting")
    probe = fit_probe(encoder, labelled())
    represent(encoder, tiny_inputs(3))
    probe.check(encoder)
    probe.check(Encoder(network, name="other name", device="cpu"))
    probe.check(Encoder(network, name="layout", channels_last=True))
    compiled = Encoder(torch.compile(network, backend="eager"), name="compiled")
    compiled(tiny_inputs(2))
    probe.check(compiled)
    probe.save(tmp_path / "probe.safetensors")
    assert Probe.load(tmp_path / "probe.safetensors", Encoder(network, name="there", device="cpu")) == probe
    data = labelled()
    plan = rt.Evaluation(
        [encoder], data, {}, ["probe_top1"], attacked=8, bank=20, train=labelled(ids=[f"other {row}" for row in range(60)])
    )
    assert rt.run(plan, progress=False).frame["value"].notna().all()


def test_a_probe_is_refused_where_its_numbers_would_be_others():
    class Double(Counting):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    network = Counting()
    network.register_buffer("shift", torch.zeros(3))
    probe, encoder = fit_probe(Encoder(network, name="net"), labelled()), Encoder(network, name="net")
    double = Double()
    double.register_buffer("shift", torch.zeros(3))
    double.load_state_dict(network.state_dict())
    halved = (torch.full((3, 1, 1), 0.5), torch.ones(3, 1, 1))
    for other in (
        Encoder(double, name="net"),
        Encoder(network, name="net", bounds=(-1, 1)),
        Encoder(network, name="net", normalize=([0.5] * 3, [1.0] * 3)),
        Encoder(network, name="net", output=lambda rows: -rows),
        Encoder(network, name="net", bounds=halved),
        Encoder(nn.Sequential(network), name="net"),
    ):
        with pytest.raises(ValueError, match="a probe reads the representations of its own encoder alone"):
            probe.check(other)
    for change in (lambda: network.layer.weight.data.add_(1e-3), lambda: network.shift.add_(1)):
        probe.check(encoder)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        change()
        with pytest.raises(ValueError, match="a probe reads the representations of its own encoder alone"):
            probe.check(encoder)
        network.load_state_dict(before)
    for stride in (1, 2):  # what has no weight is told by how it describes itself
        assert encoder_print(Encoder(nn.MaxPool2d(stride), name="pool")) == encoder_print(Encoder(nn.MaxPool2d(stride), name="pool"))
    assert encoder_print(Encoder(nn.MaxPool2d(1), name="pool")) != encoder_print(Encoder(nn.MaxPool2d(2), name="pool"))
    assert encoder_print(Encoder(lambda rows: rows + 1, name="one")) != encoder_print(Encoder(lambda rows: rows + 2, name="one"))


def test_a_check_while_the_encoder_is_in_use_hashes_once(monkeypatch):
    encoder, asked = tiny_encoder(), []
    probe = fit_probe(encoder, labelled())
    monkeypatch.setattr(probes, "fingerprint", lambda value: asked.append(1) or fingerprint(value))
    with encoder.in_use():
        for _ in range(5):
            probe.check(encoder)
    assert len(asked) <= 1


def test_files_that_hold_no_probe_and_probes_that_are_nothing_yet(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"holds .weight. and no probe; give a file that probe\.save has written"):
        Probe.load(tmp_path / "other.safetensors", tiny_encoder())
    parts = {"weight": torch.ones(2, 16), "bias": torch.ones(2), "classes": torch.tensor([0, 1])}
    save_file(parts, tmp_path / "newer.safetensors", metadata={"rt_probe": '{"view": "plain", "strange": 1}'})
    with pytest.raises(
        ValueError, match=r"newer\.safetensors holds a probe with 'strange', which this version does not know; take the version"
    ):
        Probe.load(tmp_path / "newer.safetensors", tiny_encoder())
    whole = (tmp_path / "newer.safetensors").read_bytes()
    for content in (b"", b"no tensors at all", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / "broken").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken is no whole file of tensors \(.*\); give one that probe\.save has written, or fit"):
            Probe.load(tmp_path / "broken", tiny_encoder())
    with pytest.raises(FileNotFoundError, match=r"missing', and no such file is there; give one that probe\.save has written"):
        Probe.load(tmp_path / "missing", tiny_encoder())
    with pytest.raises(FileNotFoundError, match=r"path is '.*folder.*', and its folder is not there; make it, or give another path"):
        fit_probe(tiny_encoder(), labelled()).save(tmp_path / "folder" / "probe.safetensors")
    words = "not fitted; give the plan train=…"
    for used in (
        lambda: Probe().save(tmp_path / "none.safetensors"),
        lambda: Probe().logits(torch.zeros(1, 3)),
        lambda: Probe().predict(torch.zeros(1, 3)),
        lambda: Probe().head,
        lambda: Probe().check(tiny_encoder()),
    ):
        with pytest.raises(ValueError, match=words):
            used()


def test_representations_of_another_width_are_refused():
    probe = fit_probe(tiny_encoder(), labelled())
    with pytest.raises(
        ValueError, match=r"representations have shape \[2, 9\], and the probe was fitted on encoder 'tiny' with 16 numbers each"
    ):
        probe.logits(torch.zeros(2, 9))


def test_the_head_is_the_probe_as_a_frozen_layer():
    encoder = tiny_encoder()
    probe, state = fit_probe(encoder, labelled()), torch.get_rng_state()
    rows, head = represent(encoder, tiny_inputs()), probe.head
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(head(rows), probe.logits(rows))
    assert not any(one.requires_grad for one in head.parameters())


def test_float64_stays():
    inputs = torch.rand(30, 4, generator=generator(), dtype=torch.float64)
    probe = fit_probe(Encoder(lambda rows: rows.double(), name="double"), tensors(inputs, labels=[row % 2 for row in range(30)]))
    assert probe.weight.dtype == "float64"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"view": "blurred"}, "view is 'blurred'; expected one of 'plain', 'lowpass', 'noise'"),
        ({"recipe": "adam"}, "recipe is 'adam'; expected one of 'regression', 'paper'"),
        ({"view": "noise", "sigma": 0}, "sigma is 0; it must be positive"),
        ({"view": "lowpass", "radius": -1}, "radius is -1; it must be positive"),
        ({"view": "noise", "draws": 0}, "draws is 0"),
        ({"recipe": "paper", "minibatch": 2.5}, "minibatch is 2.5"),
        ({"share": 0.7}, "share is 0.7; expected a share of the training samples to choose by"),
        ({"view": "noise", "clip": "no"}, "clip is 'no'; expected True or False"),
        ({"recipe": "paper", "augment": "no"}, "augment is 'no'; expected True or False"),
        ({"recipe": "paper", "drops": 15}, r"drops is 15; expected the epochs .*, whole numbers such as \(15, 20\)"),
        ({"recipe": "paper", "drops": ["a"]}, r"drops is \['a'\]; expected the epochs"),
        ({"recipe": "paper", "drops": "15"}, "drops is '15'; expected the epochs"),
        ({"recipe": "paper", "drops": (15, 20.5)}, r"drops is \(15, 20.5\); expected the epochs"),
        ({"weight": torch.zeros(2, 3)}, "give all three, or none"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(3), "classes": [0, 1]}, r"bias has shape \[3\]; expected \[2\]"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        Probe(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"sigma": 0.25},
            "sigma is 0.25, and a probe of view 'plain' and recipe 'regression' does not read it; say view='noise', or leave it out",
        ),
        ({"view": "lowpass", "clip": False}, "clip is False, and a probe of view 'lowpass' .* say view='noise'"),
        ({"view": "noise", "radius": 5}, "radius is 5, .* say view='lowpass'"),
        ({"view": "noise", "recipe": "paper", "draws": 4}, "draws is 4, .* say view='noise' and recipe='regression', or leave it out"),
        *(({name: 1}, f"{name} is 1, .* say recipe='paper'") for name in ("epochs", "minibatch", "rate", "drops", "augment")),
    ],
)
def test_options_that_would_not_be_read_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Probe(**options)
    encoder = tiny_encoder()
    for ask in (lambda: as_probe(options), lambda: fit_probe(encoder, labelled(), **options)):
        with pytest.raises(ValueError, match=words):
            ask()
    assert encoder.passes.forwards == 0


def test_what_is_not_read_is_none_and_what_is_has_its_default():
    known = ("sigma", "clip", "radius", "draws", "epochs", "minibatch", "rate", "drops", "augment")
    assert [getattr(Probe(), name) for name in known] == [None] * 9
    assert [getattr(Probe(view="noise"), name) for name in known[:4]] == [0.25, False, None, 4]
    assert [getattr(Probe(recipe="paper"), name) for name in known] == [None] * 4 + [25, 128, 30.0, (15, 20), True]


def test_noise_wider_than_the_bounds_is_refused_before_any_pass():
    encoder = tiny_encoder()
    with pytest.raises(
        ValueError, match=r"sigma is 25; inputs of encoder 'tiny' span a range of 1, so it must be in \(0, 1\]: write 25/255, not 25"
    ):
        fit_probe(encoder, labelled(), view="noise", sigma=25)
    assert encoder.passes.forwards == 0


def test_a_loss_is_by_margin_or_not():
    with pytest.raises(ValueError, match="margin is 'no'; expected True or False"):
        ProbeLoss(margin="no")


def test_a_table_of_options_is_a_probe():
    assert as_probe(None) == Probe()
    assert as_probe({"recipe": "paper", "drops": [3, 4]}) == Probe(recipe="paper", drops=(3, 4))
    assert as_probe({"sigma": 0.5}, view="noise", sigma=0.25) == Probe(view="noise", sigma=0.5)
    assert as_probe(Probe(view="lowpass"), view="noise") == Probe(view="lowpass")
    for ask in (as_probe, lambda given: fit_probe(tiny_encoder(), labelled(), **given)):
        with pytest.raises(ValueError, match=r"a probe has no option 'sgima'; did you mean 'sigma'\? \(it takes view, .*, augment\)"):
            ask({"sgima": 3})
        with pytest.raises(ValueError, match=r"a probe has no option 'weight'[^;]* \(it takes view"):  # what a fit sets is no option
            ask({"weight": torch.zeros(2, 16)})
    with pytest.raises(ValueError, match=r"probe is 'noise'; expected a Probe .*, or a table of its options"):
        as_probe("noise")


# The loss


def test_the_loss_is_cross_entropy_away_from_the_class_of_the_clean_input_or_to_the_target_s():
    encoder, inputs = tiny_encoder(), tiny_inputs(6)
    probe = fit_probe(encoder, labelled())
    clean, aimed, moved = (represent_rows(encoder, rows, 6) for rows in (inputs, inputs.flip(-1), inputs.flip(-2)))
    weight, bias = (part.double() for part in probe.on(CPU))
    for aim, anchor, sign in (("away", clean, 1), ("target", aimed, -1)):
        batch = rt.Batch(ids=tuple("abcdef"), inputs=inputs, clean=clean, aim=aim, targets=aimed, target_inputs=inputs.flip(-1))
        wanted = (anchor.double() @ weight.T + bias).argmax(1)
        logits = moved.double() @ weight.T + bias
        with torch.no_grad():
            found = {margin: ProbeLoss(probe=probe, margin=margin)(encoder, batch, inputs.flip(-2), None) for margin in (False, True)}
        torch.testing.assert_close(found[False].double(), sign * cross_entropy(logits, wanted, reduction="none"), rtol=1e-4, atol=1e-5)
        margins = [max(row[other] for other in range(3) if other != own) - row[own] for row, own in zip(logits, wanted, strict=True)]
        torch.testing.assert_close(found[True].double(), sign * torch.stack(margins), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("margin", [False, True])
def test_an_attack_climbs_it_and_pays_its_steps_alone(margin):
    encoder, inputs = tiny_encoder(), tiny_inputs(8)
    attack = LPGD(loss=ProbeLoss(probe=fit_probe(encoder, labelled()), margin=margin), epsilon=0.1, steps=5)
    before = encoder.passes.forwards
    trace = rt.perturb(attack, encoder, inputs)
    assert (trace.notes["loss_last"] > trace.notes["loss_first"]).all()
    assert trace.backwards == 5 * 8
    assert encoder.passes.forwards - before == 8 + 5 * 8 + 8
    assert torch.equal(rt.perturb(attack, encoder, inputs, batch=3).inputs, trace.inputs)
    toward = rt.perturb(attack, encoder, inputs, targets=inputs.flip(0))
    assert (toward.notes["loss_last"] >= toward.notes["loss_first"]).all()
    assert (toward.notes["loss_last"] > toward.notes["loss_first"]).any()


def test_two_classes_are_enough_for_it():
    """Case 23: other losses on logits need a third or fourth class."""
    encoder = tiny_encoder()
    probe = fit_probe(encoder, labelled(classes=(0, 1)))
    for margin in (False, True):
        trace = rt.perturb(
            LPGD(loss=ProbeLoss(probe=probe, margin=margin), epsilon=0.3, steps=10), encoder, labelled(classes=(0, 1)).inputs(range(8))
        )
        assert (probe.predict(trace.adversarial) != probe.predict(trace.clean)).any()


def test_it_refuses_a_probe_that_is_not_fitted_on_this_encoder():
    inputs = tiny_inputs(2)
    with pytest.raises(ValueError, match="not fitted; give the plan train=…"):
        rt.perturb(LPGD(loss=ProbeLoss(), epsilon=0.1), tiny_encoder(), inputs)
    loss = ProbeLoss(probe=fit_probe(tiny_encoder(), labelled()))
    with pytest.raises(ValueError, match="encoder 'tiny' has fingerprint"):
        rt.perturb(LPGD(loss=loss, epsilon=0.1), tiny_encoder(seed=1), inputs)


# Real digits


def test_the_default_needs_no_tuning_on_digits():
    """What shared science reports for encoders of this kind is 96.5 %."""
    train, test = rt.dataset("digits", split="train"), rt.dataset("digits", split="test")
    for name in ("digits_contrastive", "digits_robust", "digits_supervised"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            probe = fit_probe(rt.encoder(name), train)
        assert right(probe, rt.encoder(name), test) > 0.965
        assert abs(probe.selection_accuracy - right(probe, rt.encoder(name), test)) < 0.06


def test_frozen_tensors_are_what_a_store_keeps():
    probe = fit_probe(tiny_encoder(), labelled())
    assert all(isinstance(getattr(probe, name), FrozenTensor) for name in ("weight", "bias", "classes"))
    assert all(isinstance(getattr(probe, name), (str, float)) for name in ("encoder_fingerprint", "encoder_name", "chosen", "about"))
