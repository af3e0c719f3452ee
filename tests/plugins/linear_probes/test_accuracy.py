"""Accuracy of probes: counted by hand, in plans, under label-free, supervised and foreign attacks."""

import pickle
import warnings
from dataclasses import replace

import pytest
import torch
import torchattacks

import rt_core as rt
from rt_art.classifier import Classifier, art_classifier
from rt_core import Encoder, Evaluation, MissingLabels, PlanError, Results, RobustnessWarning, SampleRandom, represent, run, use
from rt_core.datasets import tensors
from rt_core.testing import parametrize_metric_checks, read_example, tiny_encoder, tiny_inputs
from rt_core.traces import Context, Trace
from rt_linear_probes import (
    AttackSuccess,
    LowpassGap,
    Probe,
    ProbeLoss,
    ProbeTop1,
    ProbeTop5,
    RobustAccuracy,
    fit_probe,
    lowpass,
    probe_accuracy,
)
from rt_linear_probes.probes import encoder_print
from rt_unsupervised_attacks import LPGD, UPGD

CPU = torch.device("cpu")
PLAIN = Probe(
    weight=torch.eye(3), bias=torch.zeros(3), classes=[5, 7, 9], encoder_name="tiny", encoder_fingerprint=encoder_print(tiny_encoder())
)


def train(classes, n=48):
    return tensors(tiny_inputs(n, purpose="train"), labels=[row % classes for row in range(n)])


FEW, MANY = fit_probe(tiny_encoder(), train(3)), fit_probe(tiny_encoder(), train(8))
FILTERED, NOISY = (fit_probe(tiny_encoder(), train(3), view=view) for view in ("lowpass", "noise"))


def reading(adversarial, clean=None, labels=(5, 7, 9)):
    """What a metric reads of representations [n, 3] of the probe above, in which the largest number is the class."""
    clean = adversarial if clean is None else clean
    trace = Trace(
        ids=tuple(map(str, range(len(clean)))), aim="away", step=0, clean=clean, adversarial=adversarial, divergence=torch.zeros(len(clean))
    )
    known = None if labels is None else list(labels)
    context = Context(encoder=tiny_encoder(), divergence=rt.divergences.l2, random=SampleRandom.of(0, trace.ids), known_labels=known)
    return trace, None, context


@parametrize_metric_checks(
    {
        "top1": ProbeTop1(probe=FEW),
        "top1[lowpass]": ProbeTop1(probe=FILTERED),
        "top1[noise]": ProbeTop1(probe=NOISY),
        "top5": ProbeTop5(probe=MANY),
        "gap": LowpassGap(probe=FEW, lowpass=FILTERED),
        "robust": RobustAccuracy(probe=FEW),
        "success": AttackSuccess(probe=FEW),
    }
)
def test_the_contract(metric, check):
    check(metric)


def test_accuracy_is_counted():
    rows = torch.tensor([[1.0, 0, 0], [0, 3, 1], [0, 3, 1], [2, 2, 0]])
    assert probe_accuracy(PLAIN, rows, torch.tensor([5, 7, 9, 7])).tolist() == [1, 1, 0, 0]  # of equal ones the first
    assert probe_accuracy(PLAIN, rows, torch.tensor([5, 7, 9, 7]), k=2).tolist() == [1, 1, 1, 1]
    assert probe_accuracy(PLAIN, rows, torch.tensor([7, 5, 5, 9]), k=2).tolist() == [1, 0, 0, 0]
    assert (PLAIN.predict(rows) == torch.tensor([5, 7, 7, 5])).all()


def test_top_k_of_no_more_classes_is_refused():
    with pytest.raises(ValueError, match="k is 3, and the probe has 3 classes, so that top-3 says nothing"):
        probe_accuracy(PLAIN, torch.eye(3), torch.tensor([5, 7, 9]), k=3)
    trace, bank, context = read_example("clean")
    with pytest.raises(ValueError, match="k is 5, and the probe has 3 classes"):
        ProbeTop5(probe=FEW)(trace, bank, context)
    six = fit_probe(tiny_encoder(), train(6))
    assert ProbeTop5(probe=six)(trace, bank, context).mean() > ProbeTop1(probe=six)(trace, bank, context).mean()


def test_samples_that_are_wrong_when_clean_are_in_one_rate_and_out_of_the_other():
    """Case 115: 10 samples, 2 wrong when clean, 4 broken."""
    clean = torch.eye(3)[[0, 1, 2, 0, 1, 2, 0, 1, 1, 0]]
    attacked = torch.eye(3)[[1, 2, 0, 1, 1, 2, 0, 1, 0, 0]]
    labels = [5, 7, 9, 5, 7, 9, 5, 7, 5, 7]  # the attack mends the last but one
    robust = RobustAccuracy(probe=PLAIN)(*reading(attacked, clean, labels))
    success = AttackSuccess(probe=PLAIN)(*reading(attacked, clean, labels))
    assert robust.mean() == 0.4
    assert success.nanmean() == 0.5
    assert success.tolist()[:8] == [1.0] * 4 + [0.0] * 4
    assert success.isnan().tolist() == [False] * 8 + [True] * 2
    assert (RobustAccuracy.better, AttackSuccess.better) == ("higher", "lower")


def test_labels_that_the_probe_does_not_know_are_wrong_and_warned_about():
    with pytest.warns(
        RobustnessWarning, match=r"labels that the probe was not fitted on \(2, 12\), and count as wrong; give a train with all"
    ):
        found = ProbeTop1(probe=PLAIN)(*reading(torch.eye(3), labels=[5, 12, 2]))
    assert found.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([5], r"labels has shape \[1\]; expected \[3\]"),
        ([5, 7, 9, 5], r"labels has shape \[4\]; expected \[3\]"),
        (torch.eye(3), "a label is .*; of one-hot labels take argmax"),
        ([0.9, 5, 7], "a label is 0.9; expected a class"),
        (["5", "7", "9"], "a label is '5'; expected a class"),
    ],
)
def test_labels_are_one_class_a_representation(labels, words):
    with pytest.raises(ValueError, match=words):
        probe_accuracy(PLAIN, torch.eye(3), labels)


def test_labels_of_any_form_are_read_alike():
    for labels in ([5, 7, 5], torch.tensor([5.0, 7.0, 5.0]), torch.tensor([[5], [7], [5]])):
        assert probe_accuracy(PLAIN, torch.eye(3), labels).tolist() == [1, 1, 0]


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_is_a_whole_number_of_classes(k):
    with pytest.raises(ValueError, match=f"k is {k}"):
        probe_accuracy(PLAIN, torch.eye(3), [5, 7, 9], k=k)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_of_no_class(value):
    broken = torch.eye(3)
    broken[1, 2] = value
    for ask in (PLAIN.predict, lambda rows: probe_accuracy(PLAIN, rows, [5, 5, 5])):
        with pytest.raises(ValueError, match=r"1 of 3 representations are not finite, .* and belong to no class; leave them out"):
            ask(broken)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool])
def test_whole_numbers_are_read_as_the_floats_that_they_are(dtype):
    weight = torch.tensor([[0.4, -0.6, 0.9], [-0.7, 0.8, 0.2], [0.3, 0.9, -0.9]])
    probe = replace(PLAIN, weight=weight, bias=torch.tensor([0.5, -0.4, 0.2]))
    rows = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0]]).to(dtype)
    expected = rows.double() @ weight.double().T + torch.tensor([0.5, -0.4, 0.2]).double()
    assert probe.logits(rows).dtype == torch.float32
    torch.testing.assert_close(probe.logits(rows).double(), expected, rtol=0, atol=1e-6)
    assert probe.predict(rows).tolist() == torch.tensor([5, 7, 9])[expected.argmax(1)].tolist()


def test_a_surrounding_autocast_changes_no_number():
    rows = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    known = [fit_probe(tiny_encoder(), train(3), recipe=recipe) for recipe in ("regression", "paper")]
    logits = [probe.logits(rows) for probe in known]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for probe, expected in zip(known, logits, strict=True):
            assert fit_probe(tiny_encoder(), train(3), recipe=probe.recipe) == probe
            assert torch.equal(probe.logits(rows), expected)


def test_views_are_represented_as_the_probe_sees_them_and_once():
    trace, bank, context = read_example("clean")
    inputs, random, encoder = context.inputs, context.random, context.encoder
    before = encoder.passes.forwards
    found = ProbeTop1(probe=FILTERED)(trace, bank, context), LowpassGap(probe=FEW, lowpass=FILTERED)(trace, bank, context)
    assert encoder.passes.forwards == before + 12
    expected = probe_accuracy(FILTERED, represent(encoder, lowpass(inputs)), context.labels)
    assert found[0].tolist() == expected.tolist()
    plain = probe_accuracy(FEW, trace.clean, context.labels)
    assert found[1][""].tolist() == (plain - expected).tolist()
    transferred = probe_accuracy(FEW, represent(encoder, lowpass(inputs)), context.labels)
    assert found[1]["transfer"].tolist() == (plain - transferred).tolist()
    noisy = inputs + 0.25 * random.normal("probe/noise", inputs.shape[1:])
    with torch.no_grad():
        expected = probe_accuracy(NOISY, encoder(noisy), context.labels)
    assert ProbeTop1(probe=NOISY)(trace, bank, context).tolist() == expected.tolist()


@pytest.mark.parametrize("metric", [ProbeTop1, ProbeTop5, LowpassGap, RobustAccuracy, AttackSuccess])
def test_what_is_missing_is_asked_for(metric):
    trace, bank, context = read_example(metric.aim)
    with pytest.raises(ValueError, match="not fitted; give the plan train=…"):
        metric()(trace, bank, context)
    with pytest.raises(MissingLabels, match="a probe's accuracy reads labels and the dataset has none; give a dataset with labels"):
        metric()(trace, bank, replace(context, known_labels=None))
    assert pickle.loads(pickle.dumps(metric())) == metric()


def test_probes_of_another_view_or_encoder_are_refused():
    for metric in (RobustAccuracy, AttackSuccess):
        with pytest.raises(ValueError, match="the probe's view is 'noise'; this reads what was attacked itself: take view='plain'"):
            metric(probe={"view": "noise"})
    with pytest.raises(ValueError, match="the view of lowpass is 'noise'; expected 'lowpass'"):
        LowpassGap(lowpass={"view": "noise"})
    trace, bank, context = read_example("clean")
    with pytest.raises(ValueError, match="fit one on this encoder"):
        ProbeTop1(probe=FEW)(trace, bank, replace(context, encoder=tiny_encoder(seed=1)))


# In plans


DIGITS = {"dataset": use("digits", split="test"), "train": use("digits", split="train"), "pairing": "given"}


def test_a_study_file_fits_each_probe_once_and_keeps_it(tmp_path):
    (tmp_path / "study.toml").write_text(
        """
        attacked = 64
        bank = 64
        pairing = "given"

        [dataset]
        use = "digits"
        split = "test"

        [train]
        use = "digits"
        split = "train"

        [encoders.digits_contrastive]

        [attacks.u-pgd]
        use = "u_pgd"
        epsilon = 0.1
        steps = 5

        [metrics]
        probe_top1 = {}
        probe_top5 = {}
        noisy = { use = "probe_top1", probe = { view = "noise", sigma = 0.1, draws = 2 } }
        lowpass_gap = {}
        robust_accuracy = {}
        attack_success = {}
        knn_accuracy = { k = 5 }
        """
    )
    plan = Evaluation.from_toml(tmp_path / "study.toml")
    results = run(plan, store=tmp_path / "run", progress=False, diagnose=False)
    estimate = results.summary().set_index("metric")["estimate"]
    probe = fit_probe(rt.encoder("digits_contrastive"), rt.dataset("digits", split="train"))
    samples = rt.dataset("digits", split="test").picked(range(64))
    expected = probe_accuracy(probe, represent(rt.encoder("digits_contrastive"), samples), torch.tensor(samples.labels(range(64))))
    assert estimate["probe_top1"] == pytest.approx(expected.mean().item())
    assert estimate["probe_top1"] > 0.9
    assert estimate["probe_top5"] >= estimate["probe_top1"] > estimate["robust_accuracy"]
    assert estimate["robust_accuracy"] == pytest.approx((1 - estimate["attack_success"]) * estimate["probe_top1"])
    assert abs(estimate["lowpass_gap"]) < 0.1
    assert -0.1 < estimate["lowpass_gap/transfer"] < 0.2
    assert 0.3 < estimate["noisy"] < 1
    fits = len(list((tmp_path / "run" / "blocks").glob("*.npz")))
    again = run(plan, store=tmp_path / "run", progress=False, diagnose=False)
    assert again.manifest["encoders"]["digits_contrastive"]["passes"]["backwards"] == 0
    assert len(list((tmp_path / "run" / "blocks").glob("*.npz"))) == fits
    assert again.frame.equals(results.frame)
    assert Results.load(tmp_path / "run").frame.equals(results.frame)
    plan.to_toml(tmp_path / "again.toml")
    assert Evaluation.from_toml(tmp_path / "again.toml").describe() == plan.describe()


def test_a_plan_without_train_is_refused_and_one_with_a_fitted_probe_needs_none():
    parts = {"encoders": tiny_encoder(), "dataset": train(3), "attacks": {}, "attacked": 12, "bank": 48}
    with pytest.raises(PlanError, match="the plan has no train, and 'probe_top1' must be fitted"):
        Evaluation(**parts, metrics=["probe_top1"])
    results = run(Evaluation(**parts, metrics=[ProbeTop1(probe=FEW)]), progress=False)
    assert set(results.frame["value"]) <= {0.0, 1.0}
    with pytest.raises(ValueError, match="fit one on this encoder"):
        run(Evaluation(**parts | {"encoders": tiny_encoder(seed=1)}, metrics=[ProbeTop1(probe=FEW)]), progress=False)


def test_a_supervised_attack_breaks_more_than_a_label_free_one_and_both_more_than_noise():
    """All with the same probe, which is fitted on what is not attacked."""
    encoder = rt.encoder("digits_supervised")
    plan = Evaluation(
        encoders=encoder,
        attacks={
            "supervised": LPGD(loss=ProbeLoss(margin=True), epsilon=0.08, steps=10),
            "label-free": UPGD(epsilon=0.08, steps=10),
            "noise": use("uniform_noise", epsilon=0.08),
        },
        metrics=["robust_accuracy", "attack_success", "probe_top1"],
        attacked=100,
        bank=100,
        **DIGITS,
    )
    state = {name: weight.clone() for name, weight in encoder.module.state_dict().items()}
    results = run(plan, progress=False, diagnose=False)
    assert all(torch.equal(weight, state[name]) for name, weight in encoder.module.state_dict().items())
    robust = results.summary().set_index(["metric", "attack"])["estimate"]["robust_accuracy"]
    assert robust["supervised"] < robust["label-free"] < robust["noise"]
    assert robust["noise"] > 0.9
    small = run(plan, progress=False, diagnose=False, batch=33).frame
    assert (small["value"].fillna(-1).to_numpy() == results.frame["value"].fillna(-1).to_numpy()).mean() > 0.99


def test_foreign_attacks_on_encoder_and_probe_are_measured_by_the_same_accuracy():
    encoder, samples = rt.encoder("digits_supervised"), rt.dataset("digits", split="test").picked(range(40))
    probe, inputs, labels = (
        fit_probe(encoder, rt.dataset("digits", split="train")),
        samples.inputs(range(40)),
        torch.tensor(samples.labels(range(40))),
    )
    classifier = Classifier(encoder, probe.head)
    with torch.no_grad():
        assert torch.equal(classifier(inputs).argmax(1), probe.predict(represent(encoder, samples)))
    with rt.SampleRandom.of(0, ["foreign"]).global_generators("start"):
        moved = torchattacks.PGD(classifier, eps=0.08, alpha=0.02, steps=10)(inputs, labels)
    clean, attacked = represent(encoder, inputs), represent(encoder, moved)
    trace = Trace(ids=samples.ids, aim="away", step=10, clean=clean, adversarial=attacked, divergence=torch.zeros(40))
    context = Context(encoder=encoder, divergence=rt.divergences.l2, random=SampleRandom.of(0, samples.ids), known_labels=labels.tolist())
    robust = RobustAccuracy(probe=probe)(trace, None, context)
    ours = rt.perturb(LPGD(loss=ProbeLoss(probe=probe), epsilon=0.08, step=0.02, steps=10), encoder, inputs)
    mine = RobustAccuracy(probe=probe)(ours, None, context)
    assert probe_accuracy(probe, clean, labels).mean() > 0.95
    assert robust.mean() < 0.5
    assert abs(robust.mean() - mine.mean()) < 0.1
    art = art_classifier(encoder, probe.head, classes=10, input_shape=(1, 16, 16))
    assert art.predict(moved.numpy()).argmax(1).tolist() == probe.predict(attacked).tolist()


def test_the_probe_of_a_float64_encoder_reads_float64():
    encoder = Encoder(lambda inputs: inputs.flatten(1).double(), name="double")
    samples = tensors(torch.rand(40, 4, generator=torch.Generator().manual_seed(0)).double(), labels=[row % 2 for row in range(40)])
    fitted = tensors(samples.inputs(range(40)).flip(1), labels=samples.labels(range(40)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = run(Evaluation(encoder, samples, {}, ["probe_top1"], train=fitted, attacked=20, bank=40), progress=False)
    assert results.frame["value"].notna().all()


def test_labels_that_are_true_or_false_are_classes_0_and_1():
    encoder, labels = tiny_encoder(), [row % 3 == 0 for row in range(48)]
    samples, known = (tensors(tiny_inputs(48, purpose="train"), labels=given) for given in (labels, [int(one) for one in labels]))
    probe = fit_probe(encoder, samples)
    assert probe == fit_probe(encoder, known)
    assert probe.classes.on(CPU).tolist() == [0, 1]
    found = represent(encoder, samples)
    assert torch.equal(probe_accuracy(probe, found, labels), probe_accuracy(probe, found, [int(one) for one in labels]))
