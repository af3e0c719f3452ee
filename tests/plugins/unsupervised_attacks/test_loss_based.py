"""The loss-based attacks: what they generalize, bit for bit, that they raise their loss, and what they refuse."""

import pickle
from dataclasses import dataclass, fields, replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from rt_core import Encoder, Evaluation, ShapeError, divergences, perturb, run
from rt_core.evaluation import describe
from rt_core.fingerprints import fingerprint
from rt_core.randomness import SampleRandom
from rt_core.testing import parametrize_attack_checks, tiny_encoder, tiny_inputs
from rt_core.traces import Ball, Batch, aims_of
from rt_unsupervised_attacks import UBIM, UFGSM, UPGD
from rt_unsupervised_attacks.loss_based import LBIM, LFGSM, LPGD, BatchLBIM, BatchLFGSM, BatchLPGD
from rt_unsupervised_attacks.losses import AdvCL, HoVasconcelos, InfoNCE, NTXent, RoCL, find_loss, prepared

BATCHED = {LFGSM: BatchLFGSM, LBIM: BatchLBIM, LPGD: BatchLPGD}
SMALL = {LFGSM: {"epsilon": 0.1}, LBIM: {"epsilon": 0.1, "steps": 3}, LPGD: {"epsilon": 0.1, "steps": 3}}


@dataclass(frozen=True)
class Drift:
    """The divergence from the clean representation, or minus that to the target, as a loss."""

    divergence: object = divergences.l2
    aims = ("away", "target")

    def __call__(self, encoder, batch, moved, random):
        return (1 if batch.aim == "away" else -1) * self.divergence(batch.anchor, encoder(moved))


@dataclass(frozen=True)
class Supervised:
    """The cross-entropy of a linear probe on the representations; ``toward`` another class: minus it."""

    mean: bool = False
    toward: bool = False

    @staticmethod
    @cache
    def probe():
        return torch.randn(3, 16, generator=torch.Generator().manual_seed(0))

    def labels(self, ids):
        return torch.tensor([(int(identity) + self.toward) % 3 for identity in ids])

    def __call__(self, encoder, batch, moved, random):
        values = cross_entropy(encoder(moved) @ self.probe().T, self.labels(batch.ids), reduction="none")
        return (-1 if self.toward else 1) * (values.mean() if self.mean else values)


# The hierarchy of figure 5


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("options", [{"epsilon": 0.1}, {"epsilon": 1.0, "norm": "l2"}], ids=["linf", "l2"])
@pytest.mark.parametrize("divergence", ["l2", "cosine", "kl"])
def test_u_attacks_are_l_attacks_on_the_divergence(divergence, options, targeted):
    encoder, inputs = tiny_encoder(), tiny_inputs()
    targets, loss = inputs.flip(-1) if targeted else None, Drift(divergences.find_divergence(divergence))
    several = {"steps": 4, "keep": "best", "restarts": 2, "marks": (1, 3)}
    pairs = [
        (UFGSM(**options), LFGSM(loss=loss, start="clean" if targeted else "eta", **options)),
        (UBIM(steps=4, **options), LBIM(loss=loss, steps=4, **options)),
        (UPGD(steps=4, **options), LPGD(loss=loss, steps=4, **options)),
        (UPGD(**several, **options), LPGD(loss=loss, **several, **options)),
    ]
    for plain, on_loss in pairs:
        expected = perturb(plain, encoder, inputs, targets=targets, divergence=divergence)
        for attack in (on_loss, batched(on_loss)):
            found = perturb(attack, encoder, inputs, targets=targets, divergence="l1")  # the loss alone says what is followed
            assert torch.equal(found.inputs, expected.inputs)
            assert all(torch.equal(found.marks[mark], expected.marks[mark]) for mark in expected.marks)


def batched(attack):
    return BATCHED[type(attack)](**{field.name: getattr(attack, field.name) for field in fields(attack)})


@pytest.mark.parametrize(("name", "divergence"), [("kl_vat", "kl"), ("wasserstein_vae", "wasserstein2")])
def test_vat_and_the_vae_attack_are_u_pgd_with_their_divergence(name, divergence):
    encoder, inputs = tiny_encoder(), tiny_inputs()
    expected = perturb(UPGD(epsilon=0.1, steps=4), encoder, inputs, divergence=divergence)
    found = perturb(LPGD(loss=name, epsilon=0.1, steps=4), encoder, inputs)

    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.notes["loss_first"].double(), expected.history[:, 0])
    assert torch.equal(found.notes["loss_last"].double(), expected.history[:, 3])
    assert found.history is None  # it would be of the divergence


@pytest.mark.parametrize("loss", [Supervised(), Supervised(toward=True)])
def test_supervised_fgsm_and_pgd_are_l_attacks_on_the_loss_of_a_probe(loss):
    encoder, inputs, epsilon, size = tiny_encoder(), tiny_inputs(), 0.1, 0.04
    labels, sign = loss.labels(range(8)), -1 if loss.toward else 1
    model = torch.nn.Sequential(encoder.module, torch.nn.Linear(16, 3, bias=False))  # the textbook's classifier
    model[1].weight = torch.nn.Parameter(Supervised.probe())
    low, high = Ball("linf", epsilon).box(inputs, (0.0, 1.0))

    def stepped(moved, size):
        moved = moved.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(moved), labels, reduction="sum"), moved)
        return torch.minimum(torch.maximum(moved.detach() + sign * size * slope.sign(), low), high)

    noise = SampleRandom.of(0, range(8)).uniform("start", (3, 8, 8), low=-epsilon, high=epsilon)
    pgd = torch.minimum(torch.maximum(inputs + noise, low), high)
    bim = inputs
    for _ in range(4):
        pgd, bim = stepped(pgd, size), stepped(bim, size)

    options = {"loss": loss, "epsilon": epsilon}
    assert torch.equal(
        perturb(LFGSM(start="clean", **options), encoder, inputs).inputs,
        torch.minimum(torch.maximum(inputs + sign * epsilon * slope_at(model, inputs, labels).sign(), low), high),
    )
    assert torch.equal(perturb(LPGD(step=size, steps=4, **options), encoder, inputs).inputs, pgd)
    assert torch.equal(perturb(LBIM(start="clean", step=size, steps=4, **options), encoder, inputs).inputs, bim)


def slope_at(model, inputs, labels):
    moved = inputs.clone().requires_grad_()
    return torch.autograd.grad(cross_entropy(model(moved), labels, reduction="sum"), moved)[0]


@pytest.mark.parametrize("cls", BATCHED)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_mean_of_an_instance_loss_gives_the_instance_attack(norm, cls):
    encoder, inputs = tiny_encoder(), tiny_inputs(8)  # divided by 8: no bit is lost
    options = {**SMALL[cls], "norm": norm, "epsilon": 0.1 if norm == "linf" else 1.0}
    single = perturb(cls(loss=Supervised(), **options), encoder, inputs)
    whole = perturb(BATCHED[cls](loss=Supervised(mean=True), **options), encoder, inputs)

    assert torch.equal(whole.inputs, single.inputs)
    if cls is not LFGSM:
        torch.testing.assert_close(whole.notes["loss_first"], single.notes["loss_first"].mean().expand(8))


def test_a_batch_of_one_is_an_instance():
    encoder = tiny_encoder()
    single = perturb(LPGD(loss=Supervised(), **SMALL[LPGD]), encoder, tiny_inputs(), batch=1)
    whole = perturb(BatchLPGD(loss=Supervised(mean=True), **SMALL[LPGD]), encoder, tiny_inputs(), batch=1)
    assert torch.equal(whole.inputs, single.inputs)


# They raise what they are given


LOSSES = [
    "kl_vat",
    "wasserstein_vae",
    "rocl",
    RoCL(negatives=4),
    "nt_xent",
    NTXent(temperature=0.2, negatives=7),
    InfoNCE(queue=torch.eye(16)),
    Supervised(),
]
JOINT = [
    NTXent(negatives="batch"),
    NTXent(form="a2a"),
    NTXent(form="ds"),
    RoCL(negatives="batch"),
    "ho_vasconcelos",
    HoVasconcelos(normalize=True),
    "advcl",
    AdvCL(radius=3),
    "info_nce",
    Supervised(mean=True),
]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", LOSSES + JOINT, ids=str)
def test_every_loss_is_raised(loss, norm):
    encoder, inputs = tiny_encoder(), tiny_inputs()
    classes = BATCHED.values() if loss in JOINT else BATCHED
    random = SampleRandom.of(0, range(8))
    with torch.no_grad():
        batch = Batch(ids=random.ids, inputs=inputs, clean=encoder(inputs), aim="away")
        value = prepared(find_loss(loss), encoder, batch, random)
        before = value(inputs)
        for cls in classes:
            options = {"epsilon": 0.05 if norm == "linf" else 0.7, "norm": norm} | ({} if "FGSM" in cls.__name__ else {"steps": 5})
            after = value(perturb(cls(loss=loss, **options), encoder, inputs).inputs)
            assert (after > before).all(), cls.__name__


def test_the_best_iterate_and_the_best_start_are_so_by_the_loss():
    encoder, inputs = tiny_encoder(), tiny_inputs()
    options = {"loss": Supervised(), "epsilon": 0.3, "step": 0.25, "steps": 6}

    def value(trace):
        return Supervised()(encoder, SimpleNamespace(ids=range(8)), trace.inputs, None).detach()

    last, best, more = (
        value(perturb(LPGD(**options, **chosen), encoder, inputs)) for chosen in ({}, {"keep": "best"}, {"keep": "best", "restarts": 3})
    )
    assert (best >= last).all()
    assert (best > last).any()
    assert (more >= best).all()
    assert (more > best).any()


def test_the_best_iterate_of_a_batch_is_that_of_all_its_samples():
    encoder, inputs = tiny_encoder(), tiny_inputs()
    seen = []

    def loss(encoder, batch, moved, random):
        value = Supervised(mean=True)(encoder, batch, moved, random)
        seen.append((value.item(), moved.detach().clone()))
        return value

    found = perturb(BatchLPGD(loss=loss, epsilon=0.3, step=0.25, steps=6, keep="best"), encoder, inputs)
    assert torch.equal(found.inputs, max(seen, key=lambda one: one[0])[1])


def test_momentum_views_and_the_bank_leave_the_network_and_its_modes_alone():
    network = tiny_encoder().module.train()
    encoder, keys = Encoder(network, name="training"), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 16)).train()
    before = [{name: value.clone() for name, value in part.state_dict().items()} for part in (network, keys)]
    perturb(BatchLPGD(loss=InfoNCE(momentum=keys), **SMALL[LPGD]), encoder, tiny_inputs())

    for part, known in zip((network, keys), before, strict=True):
        assert all(module.training for module in part.modules())
        assert all(weight.requires_grad and weight.grad is None for weight in part.parameters())
        assert all(torch.equal(value, known[name]) for name, value in part.state_dict().items())


@pytest.mark.parametrize("loss", ["rocl", "nt_xent"])
def test_with_a_bank_a_sample_s_result_is_its_own(loss):
    encoder, inputs, bank = tiny_encoder(), tiny_inputs(), tiny_inputs(20, purpose="bank")
    attack = LPGD(loss=loss, **SMALL[LPGD])
    whole = perturb(attack, encoder, inputs, bank=bank).inputs
    for size in (1, 3):
        assert torch.equal(perturb(attack, encoder, inputs, bank=bank, batch=size).inputs, whole)


def test_a_run_gives_the_same_rows_in_any_batch():
    attacks = {"one": LPGD(loss="rocl", **SMALL[LPGD]), "all": BatchLPGD(loss="info_nce", **SMALL[LPGD])}
    plan = Evaluation(encoders=[tiny_encoder()], dataset=tiny_inputs(16), attacks=attacks, metrics=["divergence"], attacked=12, bank=16)
    frames = [run(plan, batch=batch, progress=False, diagnose=False).frame for batch in (2, 12)]

    assert len(frames[0]) == 2 * 12
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize(
    ("attack", "forwards", "backwards"),
    [
        (LPGD(loss="kl_vat", epsilon=0.1, steps=5), 5, 5),
        (LPGD(loss="rocl", epsilon=0.1, steps=5), 1 + 5, 5),
        (LPGD(loss="rocl", epsilon=0.1, steps=5, restarts=2), 1 + 2 * 6, 10),
        (LFGSM(loss="rocl", epsilon=0.1), 1 + 1, 1),
        (BatchLPGD(loss="advcl", epsilon=0.1, steps=5), 3 + 5, 5),
        (BatchLPGD(loss=NTXent(form="a2a"), epsilon=0.1, steps=5), 10, 10),
        (LPGD(loss="kl_vat", epsilon=0, steps=5), 0, 0),
    ],
    ids=repr,
)
def test_a_run_costs_its_steps_and_what_the_loss_computes_once(attack, forwards, backwards):
    trace = perturb(attack, tiny_encoder(), tiny_inputs(4))
    assert (trace.forwards, trace.backwards) == (4 * (forwards + 1), 4 * backwards)  # and the pass that measures


# Aims, starts, refusals


def test_only_away_unless_the_loss_supports_targets():
    inputs = tiny_inputs(2)
    assert aims_of(LPGD(loss="rocl")) == aims_of(LPGD(loss="rocl", start="clean")) == ("away",)
    with pytest.raises(ValueError, match="'LPGD' does not support aim 'target'"):
        perturb(LPGD(loss="rocl"), tiny_encoder(), inputs, targets=inputs.flip(-1))
    assert aims_of(LPGD(loss=Drift())) == ("away", "target")


def test_a_batch_loss_needs_a_batch_attack():
    with pytest.raises(ValueError, match=r"loss is ho_vasconcelos, .*a loss of a whole batch; take BatchLPGD .batch_l_…"):
        LPGD(loss="ho_vasconcelos")
    with pytest.raises(ValueError, match=r"loss is NTXent, .*take BatchLFGSM"):
        LFGSM(loss=NTXent(form="a2a"))
    with pytest.raises(
        ShapeError, match=r"the loss has shape \[\]; expected one number a sample, \[4\] .for one number of the whole batch take"
    ):
        perturb(LPGD(loss=Supervised(mean=True)), tiny_encoder(), tiny_inputs(4))
    for attack in (LPGD(loss=wrong), BatchLPGD(loss=wrong)):
        with pytest.raises(ShapeError, match=r"the loss has shape \[4, 16\]; expected one number a sample, \[4\]"):
            perturb(attack, tiny_encoder(), tiny_inputs(4))
    assert BatchLPGD.joint
    assert not LPGD.joint


def wrong(encoder, batch, moved, random):
    return encoder(moved)


@pytest.mark.parametrize("cls", [LFGSM, LBIM, LPGD])
def test_a_loss_without_a_gradient_at_the_input_cannot_start_there(cls):
    with pytest.raises(
        ValueError, match="loss is kl_vat, and its gradient at the clean input is zero: start='eta' or 'random' can leave it"
    ):
        cls(loss="kl_vat", start="clean")
    assert perturb(cls(loss="rocl", start="clean", **SMALL[cls]), tiny_encoder(), tiny_inputs()).divergence.min() > 0


@pytest.mark.parametrize("cls", [BatchLFGSM, BatchLBIM, BatchLPGD])
@pytest.mark.parametrize("loss", [*JOINT[:-1], "rocl"], ids=str)
def test_one_sample_alone_is_refused(loss, cls):
    with pytest.raises(ValueError, match="the loss would be 0 without a gradient; attack at least 2 together"):
        perturb(cls(loss=loss), tiny_encoder(), tiny_inputs(1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LPGD(loss="rocll"), "did you mean 'rocl'"),
        (lambda: LFGSM(loss="rocl", start="random"), "start is 'random'; expected 'eta' or 'clean'"),
        (lambda: LPGD(loss="rocl", epsilon=-1), "epsilon is -1; a radius cannot be negative"),
        (lambda: LPGD(loss=None), "loss is None; expected a name"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_attacks_are_values():
    queue = torch.arange(32.0).reshape(2, 16)
    for attack in (
        LPGD(loss="rocl"),
        LPGD(loss={"use": "rocl", "temperature": 0.2}),
        LFGSM(loss=InfoNCE(queue=queue), mask=torch.ones(8, 8) > 0),
    ):
        assert pickle.loads(pickle.dumps(attack)) == attack == replace(attack)
        assert hash(attack) == hash(replace(attack))
        assert fingerprint(attack) == fingerprint(replace(attack)) != fingerprint(replace(attack, epsilon=0.5))
    assert LPGD(loss={"use": "rocl", "temperature": 0.2}).loss == RoCL(temperature=0.2)
    shown = describe(LPGD(loss=RoCL(temperature=0.2)))
    assert shown["loss"] == {"class": "rt_unsupervised_attacks.losses.RoCL", "temperature": 0.2, "negatives": 1}
    assert fingerprint(LPGD(loss=InfoNCE(queue=queue))) != fingerprint(LPGD(loss=InfoNCE(queue=queue + 1)))


# The contract

COUPLED = "gives_a_sample_the_same_result_in_any_batch_and_order"
ALONE = "takes_a_batch_of_one"
CHECKED = {
    "l_fgsm": (LFGSM(loss="kl_vat", epsilon=0.1), {}),
    "l_bim": (LBIM(loss="kl_vat", epsilon=1.0, steps=3, norm="l2"), {}),
    "l_pgd": (LPGD(loss="kl_vat", epsilon=0.1, steps=3, marks=(1, 3)), {}),
    "l_pgd[drift]": (LPGD(loss=Drift(), epsilon=1.0, steps=3, norm="l2", keep="best", restarts=2), {}),
    "l_pgd[rocl]": (LPGD(loss="rocl", epsilon=0.1, steps=3), {}),  # whose other samples come from the bank
    "batch_l_fgsm": (
        BatchLFGSM(loss="ho_vasconcelos", epsilon=0.1),
        {COUPLED: "the loss is of the whole batch", ALONE: "a contrast needs another sample"},
    ),
    "batch_l_pgd[ds]": (
        BatchLPGD(loss=NTXent(form="ds"), epsilon=0.1, steps=3, keep="best"),
        {COUPLED: "the loss is of the whole batch", ALONE: "a contrast needs another sample"},
    ),
    "batch_l_bim[advcl]": (
        BatchLBIM(loss="advcl", epsilon=1.0, steps=3, norm="l2"),
        {
            COUPLED: "the loss is of the whole batch",
            ALONE: "a contrast needs another sample",
            "takes_inputs_that_are_no_images": "its high pass is of pictures",
        },
    ),
}


@parametrize_attack_checks(
    {label: attack for label, (attack, _) in CHECKED.items()},
    expected_failures=lambda attack: next(failures for known, failures in CHECKED.values() if known is attack),
)
def test_the_contract(attack, check):
    check(attack)


def test_a_loss_that_is_nan_is_an_error():
    def broken(encoder, batch, moved, random):
        return encoder(moved).sum(1) * float("nan")

    with pytest.raises(ValueError, match="the loss is NaN at 100% of its steps: there is nothing to follow"):
        perturb(LPGD(loss=broken, epsilon=0.1, steps=2), tiny_encoder(), tiny_inputs())
