"""The plan: which encoders, which samples, which attacks, which metrics; a value that makes nothing happen."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from rt_core.divergences import Divergence, describe_divergence, find_divergence
from rt_core.encoders import Encoder, as_encoder
from rt_core.errors import PlanError
from rt_core.fingerprints import fingerprint
from rt_core.randomness import whole_of
from rt_core.registry import Use, installed, use
from rt_core.traces import AIMS, Attack, FrozenTensor, Metric, Suite, aims_of, check_metric, needs_fit

__all__ = ["Evaluation", "describe"]

_SIZES = ("attacked", "bank", "quantile_bank")
_PAIRINGS = ("random", "given")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate. Checked when it is made: names, options, sizes; nothing is loaded and no network runs.

    Args:
        encoders: ``Encoder`` objects, networks or ``use(…)`` descriptions; a sequence, or a mapping from label.
        dataset: a tensor, array, folder's path, torch dataset, ``Samples`` or a ``use(…)`` description.
        attacks: mapping from label to an attack, a ``Suite`` of attacks or a ``use(…)`` description.
        metrics: registered names or descriptions, or a mapping from label; a metric runs in the aim that it needs.
        divergence: what attacks move and metrics measure unless they name their own.
        attacked: how many samples are attacked: the first of the order below (fewer where the dataset is smaller).
        bank: how many samples clean representations are known of: the first of the same order, so it holds the attacked.
        quantile_bank: how many of the bank's first samples the distribution of pair divergences is taken over.
        pairing: ``"random"``: samples come in a seeded permutation; ``"given"``: in the dataset's own order. Either way neighbours in the
            order (0 with 1, 2 with 3) are each other's targets.
        train: other samples, in any of the dataset's forms, for attacks and metrics that are fitted before they are used (a universal
            perturbation, a probe): once for each encoder.
        seed: of the permutation and of every sample's randomness.

    Raises:
        PlanError: something that cannot be run, with the remedy.
        UnknownName: a name that nothing installed provides.
    """

    encoders: Any  # these four are given in any of the forms above, and kept as mappings from label
    dataset: Any
    attacks: Any
    metrics: Any
    _: KW_ONLY
    divergence: str | Divergence = "l2"
    attacked: int = 1000
    bank: int = 10_000
    quantile_bank: int = 10_000
    pairing: str = "random"
    train: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoders", _labelled_encoders(self.encoders))
        object.__setattr__(self, "attacks", _labelled_attacks(self.attacks))
        object.__setattr__(self, "metrics", _labelled_metrics(self.metrics))
        for number in (*_SIZES, "seed"):
            if (whole := whole_of(value := getattr(self, number))) is None:
                raise PlanError(f"{number} is {value!r}; expected a whole number{' of samples' * (number != 'seed')}")
            if whole < 2 and number != "seed":
                raise PlanError(f"{number} is {value}; at least 2 samples are needed, since measures compare a sample with others")
            object.__setattr__(self, number, whole)
        if self.attacked % 2:
            raise PlanError(f"attacked is {self.attacked}; samples are attacked in pairs, so it must be even")
        if self.bank < self.attacked:
            raise PlanError(f"bank is {self.bank}, below attacked ({self.attacked}); the bank holds the attacked samples and others")
        if self.pairing not in _PAIRINGS:
            raise PlanError(f"pairing is {self.pairing!r}; expected {' or '.join(map(repr, _PAIRINGS))}")
        find_divergence(self.divergence)
        for dataset in (self.dataset, self.train):
            if isinstance(dataset, Use):
                installed().find("dataset", dataset.name)
        families, metrics = self._families(), self.made_metrics()  # made once for both checks
        self._check_aims(families, metrics)
        if self.train is None:
            made = {**{label: one for members in families.values() for label, one in members.items()}, **metrics}
            unfitted = [label for label, thing in made.items() if needs_fit(thing)]
            if unfitted:
                raise PlanError(
                    f"the plan has no train, and {', '.join(map(repr, unfitted))} must be fitted; give train= samples that are not attacked "
                    "(a table [train] in a study)"
                )

    def _check_aims(self, families: Mapping[str, Mapping[str, Attack]], metrics: Mapping[str, Metric]) -> None:
        for label, metric in metrics.items():
            check_metric(metric, label)
        wanted = {metric.aim for metric in metrics.values()}
        if not wanted & set(AIMS):
            return
        for label, members in families.items():  # of a suite, one with something to do is enough
            aims = list(dict.fromkeys(aim for attack in members.values() for aim in aims_of(attack)))
            if not wanted & set(aims):
                raise PlanError(
                    f"attack {label!r} supports aim {', '.join(aims)}, and the metrics need {', '.join(sorted(wanted & set(AIMS)))}: "
                    "it would have nothing to do"
                )
        if not self.attacks:
            raise PlanError(
                "no attack is given, and the metrics read attacked representations; give one, such as {'noise': use('uniform_noise')}"
            )

    def made_attacks(self) -> dict[str, Attack]:
        """Return the attacks by label, made from their descriptions; a suite's members are labelled ``suite/member``."""
        return {label: attack for members in self._families().values() for label, attack in members.items()}

    def suites(self) -> dict[str, tuple[str, ...]]:
        """Return the labels of each suite's members."""
        return {label: tuple(members) for label, members in self._families().items() if label not in members}

    def _families(self) -> dict[str, dict[str, Attack]]:
        families: dict[str, dict[str, Attack]] = {}
        for label, attack in self.attacks.items():
            found = attack.make("attack") if isinstance(attack, Use) else attack
            suite = isinstance(found, Suite)
            members = {f"{label}/{name}": member for name, member in found.members.items()} if suite else {label: found}
            if twice := {*members} & {known for family in families.values() for known in family}:
                raise PlanError(
                    f"two attacks are called {sorted(twice)[0]!r}, one of them in a suite; give the suite or the attack another label"
                )
            families[label] = members
        return families

    def made_metrics(self) -> dict[str, Metric]:
        """Return the metrics by label, made from their descriptions."""
        return {label: metric.make("metric") if isinstance(metric, Use) else metric for label, metric in self.metrics.items()}

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON can hold it."""
        return {
            "encoders": {label: describe(encoder) for label, encoder in self.encoders.items()},
            "dataset": describe(self.dataset),
            "train": describe(self.train),
            "attacks": {label: describe(attack) for label, attack in self.made_attacks().items()},
            "metrics": {label: describe(metric) for label, metric in self.made_metrics().items()},
            "divergence": describe_divergence(self.divergence),
            **{name: getattr(self, name) for name in (*_SIZES, "pairing", "seed")},
        }

    def to_toml(self, path: str | Path) -> None:
        """Write the plan as a study file.

        Raises:
            PlanError: the plan holds live objects, which stay in this process; describe them by ``use(…)``.
        """
        tables: dict[str, dict[str, Any]] = {
            "dataset": {"": self.dataset},
            "train": {} if self.train is None else {"": self.train},
            "encoders": self.encoders,
            "attacks": self.attacks,
            "metrics": self.metrics,
        }
        live = [f"{kind} {label}".strip() for kind, table in tables.items() for label, value in table.items() if not isinstance(value, Use)]
        if live or not isinstance(self.divergence, str):
            raise PlanError(
                f"this plan holds live objects ({', '.join(live) or 'the divergence'}), which cannot travel; describe them by use('name', …)"
            )
        lines = [f"{name} = {_toml(getattr(self, name))}" for name in ("seed", "divergence", *_SIZES, "pairing")]
        for name, table in (("dataset", self.dataset), ("train", self.train)):
            lines += ["", f"[{name}]", *_toml_use(table)] if table is not None else []
        for kind in ("encoders", "attacks", "metrics"):
            for label, value in tables[kind].items():
                lines += ["", f"[{kind}.{_toml_key(label)}]", *_toml_use(value)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def from_toml(cls, path: str | Path) -> "Evaluation":
        """Read a study file: the plan's sizes, ``[dataset]``, ``[train]``, ``[encoders.…]``, ``[attacks.…]`` and ``[metrics.…]``.

        An attack with a table ``grid`` becomes one attack for each combination of its lists' values. ``store`` is for the command line
        and is passed over here.

        Raises:
            PlanError: not TOML, or a key that a study does not have.
        """
        try:
            study = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except ValueError as error:  # of TOML, or of another encoding
            raise PlanError(f"{path} is not TOML: {error}") from error
        study.pop("store", None)
        known = {field.name for field in fields(cls)}
        unknown, missing = sorted(set(study) - known), sorted({"encoders", "dataset", "metrics"} - set(study))
        if unknown or missing:
            wrong = f"has unknown keys {', '.join(unknown)}" if unknown else ""
            wrong += f"{' and ' * bool(wrong)}lacks {', '.join(missing)}" if missing else ""
            raise PlanError(f"{path} {wrong}; a study has {', '.join(sorted(known - {'_'}))}")
        attacks: dict[str, Use] = {}
        for label, table in study.pop("attacks", {}).items():
            grid = table.pop("grid", {})
            for key, values in grid.items():
                if not isinstance(values, list):
                    raise PlanError(f"attacks.{label}.grid.{key} is {values!r}; expected a list of values, one attack for each")
            for values in product(*grid.values()):
                chosen = dict(zip(grid, values, strict=True))
                suffix = (
                    f"[{','.join(f'{key}={value:g}' if isinstance(value, float) else f'{key}={value}' for key, value in chosen.items())}]"
                    if chosen
                    else ""
                )
                if f"{label}{suffix}" in attacks:
                    raise PlanError(f"attacks.{label}.grid makes {label}{suffix} twice; write values that differ in their first six digits")
                attacks[f"{label}{suffix}"] = _read_use(label, {**table, **chosen})
        return cls(
            encoders={label: _read_use(label, table) for label, table in study.pop("encoders").items()},
            dataset=_read_use("dataset", study.pop("dataset")),
            train=_read_use("train", study.pop("train")) if "train" in study else None,
            attacks=attacks,
            metrics={label: _read_use(label, table) for label, table in study.pop("metrics").items()},
            **study,
        )


def describe(value: Any) -> Any:
    """Return a value as JSON can hold it: descriptions, dataclasses, encoders and functions by what makes them what they are."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, Use):
        return {"use": value.name, **{key: describe(option) for key, option in sorted(value.options.items())}}
    if isinstance(value, Encoder):
        network = type(value.module)
        return {"encoder": value.name, "network": f"{network.__module__}.{network.__qualname__}", "fingerprint": value.fingerprint}
    if isinstance(value, Tensor):
        return {"tensor": list(value.shape)}
    if isinstance(value, FrozenTensor):
        return {"tensor": list(value.shape), "fingerprint": fingerprint(value)}
    if is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: describe(getattr(value, field.name)) for field in fields(value) if field.repr}
        return {"class": f"{type(value).__module__}.{type(value).__qualname__}", **shown}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, range)):
        return [describe(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return describe_divergence(value) if callable(value) else f"{type(value).__module__}.{type(value).__qualname__}"


def _labelled_encoders(encoders: Any) -> dict[str, Encoder | Use]:
    if isinstance(encoders, (Encoder, nn.Module, Use)):
        encoders = [encoders]
    pairs = encoders.items() if isinstance(encoders, Mapping) else [(None, encoder) for encoder in encoders]
    labelled: dict[str, Encoder | Use] = {}
    for label, given in pairs:
        encoder = use(given) if isinstance(given, str) else given
        if isinstance(encoder, Use):
            installed().find("encoder", encoder.name)
        else:
            encoder = as_encoder(encoder)
        key = label if label is not None else (encoder.label if isinstance(encoder, Use) else encoder.name)
        _check_label("encoder", key)
        if key in labelled:
            raise PlanError(f"two encoders are called {key!r}; name them by a mapping, such as {{'first': …, 'second': …}}")
        labelled[key] = encoder
    if not labelled:
        raise PlanError("no encoder is given; an evaluation needs at least one")
    return labelled


def _labelled_attacks(attacks: Any) -> dict[str, Any]:
    if not isinstance(attacks, Mapping):
        raise PlanError(f"attacks is a {type(attacks).__name__}; expected a mapping from label, such as {{'u-pgd': UPGD(epsilon=0.05)}}")
    for label, attack in attacks.items():
        _check_label("attack", label)
        if isinstance(attack, Use):
            installed().find("attack", attack.name)
        elif not callable(attack) and not isinstance(attack, Suite):
            raise PlanError(f"attack {label!r} is {attack!r}; expected an attack, a Suite or use('name', …)")
    return dict(attacks)


def _labelled_metrics(metrics: Any) -> dict[str, Metric | Use]:
    pairs = (
        metrics.items()
        if isinstance(metrics, Mapping)
        else [(None, metric) for metric in ([metrics] if isinstance(metrics, str) else metrics)]
    )
    labelled: dict[str, Metric | Use] = {}
    for label, given in pairs:
        metric = use(given) if isinstance(given, str) else given
        if isinstance(metric, Use):
            installed().find("metric", metric.name)
        name = metric.name if isinstance(metric, Use) else _metric_name(metric)
        own = metric.options.get("divergence") if isinstance(metric, Use) else getattr(metric, "divergence", None)
        key = label if label is not None else (f"{name}[{describe_divergence(own)}]" if own is not None else name)
        _check_label("metric", key)
        if key in labelled:
            raise PlanError(f"two metrics are called {key!r}; name them by a mapping")
        labelled[key] = metric
    if not labelled:
        raise PlanError("no metric is given; an evaluation needs at least one, such as 'universal_quantile'")
    return labelled


def _check_label(kind: str, label: Any) -> None:
    if not isinstance(label, str) or label in ("", "-"):
        raise PlanError(f"the label of {kind} is {label!r}; expected a string, not empty and not '-', which stands for no attack")


def _metric_name(metric: Any) -> str:
    name = getattr(metric, "__name__", type(metric).__name__)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _read_use(label: str, table: Any) -> Use:
    if not isinstance(table, Mapping):
        raise PlanError(f"{label} is {table!r}; expected a table of options, empty if there are none")
    options = dict(table)
    return use(options.pop("use", label), **options)


def _toml_use(value: Use) -> list[str]:
    return [f"use = {_toml(value.name)}", *(f"{_toml_key(key)} = {_toml(option)}" for key, option in value.options.items())]


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, (str, Path)):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple, range)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml_key(str(key))} = {_toml(item)}' for key, item in value.items())} }}"
    raise PlanError(f"{value!r} cannot be written to a study file; describe it by numbers, strings and lists (TOML has no None)")
