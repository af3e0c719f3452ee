"""Representations under noise: whose draws they are, who shares them, and what a run keeps of them."""

import math
import threading
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from rt_core import Encoder, Evaluation, PlanError, Results, RobustnessWarning, run, use
from rt_core import smoothing as smoothing_module
from rt_core.randomness import SampleRandom
from rt_core.smoothing import Draws, check_sigma
from rt_core.store import Store
from rt_core.testing import read_example, tiny_encoder, tiny_inputs
from rt_core.traces import Rows

X = tiny_inputs(2)[0]
ONE = SampleRandom.of(0, ["one"])


def drawn(purpose="certify", count=100, encoder=None, x=X, random=ONE, **options):
    return torch.cat([*Draws(encoder or tiny_encoder(), x, random, **{"sigma": 0.25} | options).chunks(purpose, count)])


class Kept(dict):
    """Progress in memory, which forgets nothing."""

    def load(self, name):
        return self.get(name)

    def save(self, name, arrays):
        self[name] = dict(arrays)


def test_draws_are_the_encoder_s_output_on_the_input_and_standard_normal_noise():
    found = drawn(encoder=flat_encoder(), count=3000, sigma=0.5).double()
    noise = (found - X.flatten().double()) / 0.5
    n = noise.numel()
    assert abs(noise.mean()) < 4 / math.sqrt(n)
    assert abs(noise.square().mean() - 1) < 4 * math.sqrt(2 / n)
    assert abs(noise.pow(4).mean() - 3) < 4 * math.sqrt(96 / n)
    neighbours = (noise[1:] * noise[:-1]).mean(), (noise[:, 1:] * noise[:, :-1]).mean(), (noise[64:] * noise[:-64]).mean()
    assert all(abs(value) < 4 / math.sqrt(n) for value in neighbours)
    assert found.min() < 0  # noise leaves the bounds, and nothing takes it back


def flat_encoder(bounds=(0, 1)):
    return Encoder(lambda inputs: inputs.flatten(1), name="flat", bounds=bounds)


def test_a_draw_depends_on_its_place_alone():
    whole = drawn(count=2500, encoder=flat_encoder())
    assert torch.equal(drawn(count=70, encoder=flat_encoder()), whole[:70])
    assert torch.equal(drawn(count=1100, encoder=flat_encoder()), whole[:1100])
    for batch in (1, 7, 64, 1000):
        assert torch.equal(drawn(count=300, encoder=flat_encoder(), batch=batch), whole[:300])
    assert len(torch.unique(whole, dim=0)) == 2500


def test_draws_for_another_purpose_sample_seed_or_input_are_others():
    known = drawn(count=10, encoder=flat_encoder()) - X.flatten()
    changed = X.clone()
    changed[0, 0, 0] += 2**-10
    others = [
        drawn(purpose="center", count=10, encoder=flat_encoder()) - X.flatten(),
        drawn(random=SampleRandom.of(0, ["two"]), count=10, encoder=flat_encoder()) - X.flatten(),
        drawn(random=SampleRandom.of(1, ["one"]), count=10, encoder=flat_encoder()) - X.flatten(),
        drawn(x=changed, count=10, encoder=flat_encoder()) - changed.flatten(),
    ]
    for other in others:
        assert not (known - other).abs().lt(1e-3).all(1).any()


def test_sigma_scales_the_same_noise():
    first, second = (drawn(count=10, encoder=flat_encoder(), sigma=sigma).double() - X.flatten() for sigma in (0.1, 0.2))
    assert torch.allclose(2 * first, second, atol=1e-6)


def test_clipping_is_a_part_of_what_is_smoothed_only_when_asked_for():
    plain, clipped = (drawn(count=50, encoder=flat_encoder(), clip=clip) for clip in (False, True))
    assert torch.equal(plain.clamp(0, 1), clipped)
    assert not torch.equal(plain, clipped)


@pytest.mark.parametrize(("batch", "size", "together"), [(64, 192, 1024), (64, 2**18, 64), (7, 192, 7), (65, 192, 65), (1000, 192, 1000)])
def test_a_batch_that_was_chosen_is_obeyed_and_64_becomes_more_of_small_inputs(batch, size, together):
    seen = []
    encoder = Encoder(lambda inputs: seen.append(len(inputs)) or inputs[:, :2], name="counting")
    draws = Draws(encoder, torch.rand(size), ONE, sigma=0.1, batch=batch)
    [*draws.chunks("certify", 2048 if size == 192 else 128)]
    assert (draws.size, max(seen)) == (together, together)


def test_noise_wider_than_the_bounds_is_refused():
    encoder = tiny_encoder()
    check_sigma(1.0, encoder)
    for sigma, words in (
        (25.0, r"sigma is 25; inputs of encoder 'tiny' span a range of 1, so it must be in \(0, 1\]: write 25/255, not 25$"),
        (300.0, r"in \(0, 1\]$"),
    ):
        with pytest.raises(ValueError, match=words):
            check_sigma(sigma, encoder)
    each = flat_encoder(bounds=(torch.zeros(3, 1, 1), torch.tensor([1.0, 255.0, 1.0]).reshape(3, 1, 1)))
    check_sigma(255.0, each)  # as wide as the widest


@pytest.mark.parametrize(("value", "clip"), [(math.nan, False), (math.inf, False), (math.nan, True)])
def test_draws_that_break_the_encoder_are_warned_of_once_with_their_share(value, clip):
    encoder = Encoder(lambda inputs: inputs.flatten(1).where(inputs.flatten(1)[:, :1] > 0.3, value), name="breaking")
    with pytest.warns(RobustnessWarning, match="gave NaN or infinity") as said:
        found = [drawn(encoder=encoder, count=500, clip=clip, random=SampleRandom.of(0, [name])) for name in ("one", "two", "three")]
    share = (~found[0].isfinite()).all(1).double().mean()
    remedy = "mend the encoder" if clip else "say clip=True if it breaks outside its bounds, or mend it"
    told = f"encoder 'breaking' gave NaN or infinity for {share:.2%} of 500 noisy copies of sample 'one' (sigma 0.25): such draws count"
    assert [str(one.message) for one in said] == [f"{told} against certificates, of other samples too; {remedy}"]
    with pytest.warns(RobustnessWarning, match=r"\(sigma 0.5\)"):  # another noise
        drawn(encoder=encoder, count=500, clip=clip, sigma=0.5)


def test_nothing_is_said_of_a_rehearsal_s_few_draws_nor_of_logits_that_are_masked():
    breaking, masked = (
        Encoder(lambda inputs, value=value: torch.full_like(inputs.flatten(1), value), name="b") for value in (math.nan, -math.inf)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(encoder=breaking, count=64)
        drawn(encoder=breaking, count=100, purpose="rehearsal")
        drawn(encoder=masked, count=100)


def test_who_comes_second_pays_only_for_what_is_new():
    encoder = tiny_encoder()
    draws = Draws(encoder, X, ONE, sigma=0.25)
    first = torch.cat([*draws.chunks("certify", 1500)])
    assert encoder.passes.forwards == 1500
    again = torch.cat([*draws.chunks("certify", 1600)])
    assert encoder.passes.forwards == 1600
    assert torch.equal(first, again[:1500])
    [*draws.chunks("certify", 800)]
    assert encoder.passes.forwards == 1600


def test_what_does_not_fit_into_memory_is_made_again(monkeypatch):
    whole = drawn(count=3000)
    monkeypatch.setattr(smoothing_module, "_REMEMBERED", whole[:1024].nbytes)
    encoder = tiny_encoder()
    draws = Draws(encoder, X, ONE, sigma=0.25)
    for _ in range(2):
        assert torch.equal(torch.cat([*draws.chunks("certify", 3000)]), whole)
    assert encoder.passes.forwards == 3000 + 3000 - 1024


def test_what_took_long_is_kept_and_found_again(monkeypatch):
    monkeypatch.setattr(smoothing_module, "_WORTH_KEEPING", -1.0)
    kept, calls = Kept(), [0]

    def stop(inputs):
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return inputs.flatten(1)

    with pytest.raises(KeyboardInterrupt):
        drawn(encoder=Encoder(stop, name="stopped"), count=5000, progress=kept)
    assert len(kept) == 3  # chunks of 1,024 draws, each sent at once
    encoder = flat_encoder()
    found = torch.cat([*Draws(encoder, X, ONE, sigma=0.25, progress=kept).chunks("certify", 5000)])
    assert encoder.passes.forwards == 5000 - 3 * 1024
    assert torch.equal(found, drawn(encoder=flat_encoder(), count=5000))
    other = Draws(flat_encoder(), X, ONE, sigma=0.5, progress=kept)
    assert not torch.equal(torch.cat([*other.chunks("certify", 10)]), found[:10])


def test_what_took_no_time_is_not_written():
    kept = Kept()
    drawn(count=3000, progress=kept)
    assert not kept


def test_quick_chunks_are_kept_together_once_they_took_long(monkeypatch):
    monkeypatch.setattr(smoothing_module, "_WORTH_KEEPING", 2.5)
    clock = iter(range(100))
    monkeypatch.setattr(smoothing_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    kept, sizes = Kept(), []
    draws = Draws(flat_encoder(), X, ONE, sigma=0.25, progress=kept)
    for _ in draws.chunks("certify", 7 * 1024):
        sizes.append(len(kept))
    assert sizes == [0, 0, 3, 3, 3, 6, 6]  # a second each


def test_an_encoder_is_left_as_it_was():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(X.numel()), torch.nn.Dropout(0.5))
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn(encoder=Encoder(network, name="training"), count=10)
    assert network.training
    assert all(part.training for part in network)
    assert all(weight.requires_grad for weight in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_draws_that_break_the_encoder_are_given_as_they_are():
    def breaking(inputs):
        rows = inputs.flatten(1)
        return torch.where(rows[:, :1] > 0.3, rows, torch.nan)

    with pytest.warns(RobustnessWarning, match="gave NaN or infinity"):
        found = drawn(encoder=Encoder(breaking, name="breaking"), count=500)
    assert 0 < found.isnan().all(1).sum() < 500
    assert found.isnan().any(1).equal(found.isnan().all(1))


def test_draws_belong_to_one_sample():
    _, _, context = read_example("clean")
    with pytest.raises(ValueError, match="the context is of 12 samples; draws are of one: say alone = True"):
        Draws.of(context, sigma=0.25)
    one = replace(context, random=context.random.select(slice(3, 4)), read=lambda: context.inputs[3:4], shared={})
    assert Draws.of(one, sigma=0.25) is Draws.of(one, sigma=0.25)
    assert Draws.of(one, sigma=0.25) is not Draws.of(one, sigma=0.5)
    assert Draws.of(one, sigma=0.25) is not Draws.of(one, sigma=0.25, clip=True)


SEEN = []


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far noise moves a representation, on average; refused where it is below a limit."""

    sigma: float = 0.25
    draws: int = 2000
    refuse: float = 0.0
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, math.inf)
    alone: ClassVar[bool] = True

    @property
    def passes(self):
        return self.draws, 0

    def rehearsal(self):
        return replace(self, draws=8)

    def __call__(self, trace, bank, context):
        SEEN.append((self.draws, trace.ids))
        found = torch.cat([*Draws.of(context, sigma=self.sigma).chunks("certify", self.draws)])
        spread = (found - trace.clean).double().norm(dim=1).mean()[None]
        low = bool(spread < self.refuse)
        return Rows(values=torch.where(spread < self.refuse, math.nan, spread), notes=["abstained" if low else ""])


def plan(**changed):
    parts = {
        "encoders": {"one": tiny_encoder(seed=1), "two": tiny_encoder(seed=2)},
        "dataset": tiny_inputs(20),
        "attacks": {"noise": use("uniform_noise", epsilon=0.1)},
        "metrics": {"spread": Spread(), "quantile": use("universal_quantile")},
        "attacked": 6,
        "bank": 20,
    }
    return Evaluation(**parts | changed)


def test_a_run_gives_such_a_metric_one_sample_at_a_time():
    SEEN.clear()
    results = run(plan(), progress=False)
    assert [len(ids) for _, ids in SEEN] == [1] * len(SEEN)
    assert sum(draws == 2000 for draws, _ in SEEN) == 12
    rows = results.frame[results.frame["metric"] == "spread"]
    assert rows["sample"].tolist() == 2 * list(results.manifest["samples"]["sample"])
    assert set(rows["attack"]) == {"-"}
    sample, encoder = rows["sample"].iloc[2], tiny_encoder(seed=1)
    x = tiny_inputs(20)[int(sample)]
    expected = drawn(encoder=encoder, x=x, random=SampleRandom.of(0, [sample]), count=2000) - encoder(x[None])
    assert rows["value"].iloc[2] == pytest.approx(expected.double().norm(dim=1).mean().item(), rel=1e-6)


def test_the_result_does_not_depend_on_the_batch_nor_on_what_else_is_measured():
    expected = run(plan(), progress=False).frame
    for changed, batch in (({}, 5), ({"metrics": {"other": Spread(sigma=0.5), "spread": Spread(), "longer": Spread(draws=2500)}}, None)):
        found = run(plan(**changed), batch=batch, progress=False).frame
        mine, theirs = (frame[frame["metric"] == "spread"]["value"].to_numpy() for frame in (found, expected))
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_metrics_on_the_same_noise_share_its_passes():
    alone = run(plan(metrics={"spread": Spread()}), progress=False)
    together = run(plan(metrics={"spread": Spread(), "longer": Spread(draws=2500), "again": Spread(refuse=1.0)}), progress=False)
    spent = [results.manifest["encoders"]["one"]["passes"]["forwards"] for results in (alone, together)]
    assert spent[1] - spent[0] == 6 * 500


def test_what_is_not_given_is_the_worst_and_counted_apart():
    limit = run(plan(), progress=False).frame.query("metric == 'spread' and encoder == 'one'")["value"].sort_values().iloc[2]
    results = run(plan(metrics={"spread": Spread(refuse=limit)}), progress=False)
    row = results.summary().query("encoder == 'one'").iloc[0]
    assert (row["n"], row["abstained"], row["undefined"]) == (6, 2, 0)
    curve = results.certified_curve("spread", [0.0, 1e9]).query("encoder == 'one'")
    assert curve["estimate"].tolist() == [1.0, pytest.approx(2 / 6)]  # lower is better, so what is not given is above everything
    assert curve["abstained"].tolist() == [2, 2]


CALLS = {"number": 0, "last": math.inf}


class Counted(torch.nn.Module):
    """The tiny network, which counts full chunks and stops after the last."""

    def __init__(self):
        super().__init__()
        self.network = tiny_encoder(seed=1).module

    def forward(self, inputs):
        if len(inputs) == 1024:
            if CALLS["number"] == CALLS["last"]:
                raise KeyboardInterrupt
            CALLS["number"] += 1
        return self.network(inputs)


def test_a_run_that_died_goes_on_with_the_sample_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(smoothing_module, "_WORTH_KEEPING", -1.0)
    monkeypatch.setitem(CALLS, "last", math.inf)
    expected = run(plan(metrics={"spread": Spread(draws=4000)}), progress=False)
    parts = {"encoders": {"one": Encoder(Counted(), name="one")}, "metrics": {"spread": Spread(draws=4000)}}
    # One full chunk is timed; then three a sample, and a smaller one: three samples, and two chunks of the fourth.
    CALLS.update(number=0, last=1 + 3 * 3 + 2)
    with pytest.raises(KeyboardInterrupt):
        run(plan(**parts), store=tmp_path, progress=False)
    assert len([*tmp_path.glob("blocks/*/*.npz")]) == 2
    CALLS.update(number=0, last=math.inf)
    found = run(plan(**parts), store=tmp_path, progress=False)
    assert CALLS["number"] == 1 + 3 * 3 - 2
    assert [*tmp_path.glob("blocks/*/*.npz")] == []
    wanted = expected.frame.query("encoder == 'one'")["value"].to_numpy()
    np.testing.assert_allclose(found.frame["value"].to_numpy(), wanted, rtol=1e-6)


def test_a_sample_that_fails_costs_its_own_row_and_is_tried_again(tmp_path):
    order = run(plan(), progress=False).manifest["samples"]["sample"]
    sick = [tiny_inputs(20)[int(order[3])]]

    class Failing(Spread):
        def __call__(self, trace, bank, context):
            if self.draws > 8 and any(torch.equal(context.inputs[0], one) for one in sick):
                raise ArithmeticError("on purpose")
            return super().__call__(trace, bank, context)

    with pytest.warns(RobustnessWarning, match="2 blocks or fits failed and their rows are missing"):
        results = run(plan(metrics={"spread": Failing()}), store=tmp_path, progress=False)
    assert results.frame["sample"].tolist() == 2 * [*order[:3], *order[4:]]
    sick.clear()
    SEEN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended = run(plan(metrics={"spread": Failing()}), store=tmp_path, progress=False)
    assert mended.frame["sample"].tolist() == 2 * [*order]
    assert [ids for draws, ids in SEEN if draws > 8] == 2 * [(order[3],)]


def test_draws_stay_until_every_metric_of_the_sample_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(smoothing_module, "_WORTH_KEEPING", -1.0)
    broken = [True]

    class Fragile(Spread):
        def __call__(self, trace, bank, context):
            values = super().__call__(trace, bank, context)
            if broken and self.draws > 8:
                raise ArithmeticError("on purpose")
            return values

    encoder = tiny_encoder(seed=1)
    parts = {"encoders": {"one": encoder}, "metrics": {"spread": Spread(), "fragile": Fragile(draws=3000)}}
    with pytest.warns(RobustnessWarning, match="6 blocks or fits failed"):
        run(plan(**parts), store=tmp_path, progress=False)
    assert len({path.parent for path in tmp_path.glob("blocks/*/*.npz")}) == 6
    broken.clear()
    before = encoder.passes.forwards
    run(plan(**parts), store=tmp_path, progress=False)
    assert encoder.passes.forwards - before < 3000  # a rehearsal; no draw again
    assert [*tmp_path.glob("blocks/*/*.npz")] == []


def test_two_runs_may_work_on_a_sample_at_once(tmp_path):
    store = Store(tmp_path, {"dataset": "d", "seed": 0, "pairing": "given", "batch": 64})
    store.save("begun", {"x": np.zeros(1)})
    first, second = store.shelf("one"), store.shelf("one")
    stop = threading.Event()

    def clear():
        while not stop.is_set():
            second.clear()

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(150):
                first.save(f"part {number}", {"x": np.zeros(100)})
                first.load(f"part {number}")
    finally:
        stop.set()
        thread.join()


def test_the_rehearsal_takes_the_reduced_metric_and_tells_what_all_will_cost(monkeypatch):
    SEEN.clear()
    slow = tiny_encoder(seed=1)
    told = []
    monkeypatch.setattr("rt_core.execution.progress_bar", lambda wanted, total, postfix: told.append((total, postfix)) or _bar())
    results = run(plan(encoders={"one": slow}, metrics={"spread": Spread(draws=3000)}), progress=False)
    assert [draws for draws, _ in SEEN] == [8] * 2 + [3000] * 6
    assert told[0][0] == 20 + 6
    assert results.manifest["estimated_seconds"] > 0


def _bar():
    from rt_core.perturbing import progress_bar

    return progress_bar(False, 1)


def test_only_a_metric_of_clean_samples_can_see_them_alone():
    class Attacked(Spread):
        aim: ClassVar[str] = "away"

    with pytest.raises(PlanError, match="metric 'spread' sees samples alone, and its aim is 'away'"):
        plan(metrics={"spread": Attacked()})


def test_a_certified_curve_counts_what_is_strictly_above_with_a_band_for_all_of_it():
    results = run(plan(metrics={"spread": Spread()}), progress=False)
    values = np.sort(results.frame.query("encoder == 'two'")["value"].to_numpy())
    curve = results.certified_curve("spread", values.tolist()).query("encoder == 'two'")
    assert curve["estimate"].tolist() == [pytest.approx(share) for share in (5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0)]
    alone = results.certified_curve("spread", values[:1].tolist()).query("encoder == 'two'").iloc[0]
    assert curve["low"].iloc[0] < alone["low"] < alone["estimate"]  # a band for six radii is wider than an interval for one
    with pytest.raises(ValueError, match="no rows of metric 'radius'; there are 'spread'"):
        results.certified_curve("radius", [0.1])
    assert results.certified_curve("spread", values[0])["estimate"].tolist()[1] == curve["estimate"].iloc[0]
    for thresholds in ([], [0.1, math.nan]):
        with pytest.raises(ValueError, match=r"thresholds is \[.*; give the radii"):
            results.certified_curve("spread", thresholds)


def test_certified_rows_survive_saving(tmp_path):
    results = run(plan(metrics={"spread": Spread(refuse=1e9)}), store=tmp_path, progress=False)
    loaded = Results.load(tmp_path)
    assert loaded.summary()["abstained"].tolist() == results.summary()["abstained"].tolist() == [6, 6]
