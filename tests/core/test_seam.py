"""The seam: what loads, what is left out and with which words, how names are found, and that nothing heavy is imported on the way."""

import ast
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace

import pytest

import rt_core
from rt_core import builtin, cli
from rt_core.errors import AmbiguousName, PluginError, PluginWarning, UnknownName
from rt_core.loading import KINDS, PluginInfo
from rt_core.naming import did_you_mean
from rt_core.registry import Registry, Use, installed, make, use

ROOT = Path(__file__).parents[2]
CORE = {("attack", "identity"), ("attack", "uniform_noise"), ("encoder", "module"), ("dataset", "folder"), ("dataset", "tensor")}
CORE |= {("demo", "digits"), ("demo", "photos"), ("demo", "certificates")}
GOOD = """
    from rt_core import AttackEntry, hookimpl

    def make(*, epsilon=0.1, steps=3):
        return ("made", epsilon, steps)

    @hookimpl
    def rt_attacks():
        yield AttackEntry(name="flip", summary="mirror the input", factory=make)
"""
BROKEN = {
    "import_error": ("import absent_thing", "ModuleNotFoundError: No module named 'absent_thing'"),
    "syntax_error": ("def", "SyntaxError"),
    "misspelt_hook": ("import rt_core\n@rt_core.hookimpl\ndef rt_atacks():\n    return []", "unknown hook 'rt_atacks'"),
    "unknown_argument": ("import rt_core\n@rt_core.hookimpl\ndef rt_attacks(registry):\n    return []", "registry"),
    "raising_hook": ("import rt_core\n@rt_core.hookimpl\ndef rt_metrics():\n    return [1 / 0]", "ZeroDivisionError: division by zero"),
    "late_raising_hook": (
        "import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n"
        "    yield rt_core.AttackEntry(name='first', summary='first', factory=print)\n    raise OSError('no disk')",
        "OSError: no disk",
    ),
    "returns_none": ("import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n    pass", "rt_attacks returned None"),
    "wrong_record": ("import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n    return ['flip']", "'flip' among its entries"),
    "wrong_kind": (
        "import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n"
        "    return [rt_core.MetricEntry(name='shift', summary='shift', factory=print)]",
        "must be of type AttackEntry",
    ),
    "bad_name": (
        "import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n"
        "    return [rt_core.AttackEntry(name='U-PGD', summary='climb', factory=print)]",
        "name is 'U-PGD'",
    ),
    "twice_one_name": (
        "import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n"
        "    return 2 * [rt_core.AttackEntry(name='flip', summary='mirror', factory=print)]",
        "two entries named 'flip'",
    ),
    "no_hook": ("def rt_attacks():\n    return []", "decorate it with @rt_core.hookimpl"),
    "no_such_object": ("", "AttributeError"),
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Each test has a folder of distributions of its own, loads nothing but rt-core and them, and leaves no registry behind."""
    monkeypatch.delenv("RT_STRICT_PLUGINS", raising=False)
    monkeypatch.setenv("RT_PLUGINS", "rt-core")
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield
    installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("fake_")]:
        del sys.modules[name]


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Write a distribution as an installer would, and let RT_PLUGINS name it."""

    def write(name, source, *, version="1.2", entry_point="plugin", attribute="", requires=()):
        module = f"fake_{name.replace('-', '_')}_{entry_point}"
        (tmp_path / f"{module}.py").write_text(dedent(source))
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        points = folder / "entry_points.txt"
        start = points.read_text() if points.exists() else "[rt_core.plugins]\n"
        points.write_text(f"{start}{entry_point} = {module}{attribute}\n")
        monkeypatch.setenv("RT_PLUGINS", f"{os.environ['RT_PLUGINS']},{name}")
        return module

    return write


def adding(kind, name, factory=dict):
    """An object with one hook that provides one entry."""
    hooks = SimpleNamespace()
    entry = KINDS[kind](name=name, summary=f"the {kind} {name}", factory=factory)

    @rt_core.hookimpl
    def hook():
        return [entry]

    setattr(hooks, f"rt_{kind}s", hook)
    return hooks


def names(registry, kind="attack"):
    return [item.full_name for item in registry.items if item.kind == kind]


# Loading


def test_the_core_s_own_entries_come_through_the_same_hooks():
    (core,) = Registry().plugins

    assert (core.distribution, core.entry_point, core.error) == ("rt-core", "builtin", None)
    assert set(core.adds) == CORE


def test_a_good_plugin_loads_and_its_entries_know_where_they_come_from(distribution):
    distribution("rt-good", GOOD)
    registry = Registry()
    item = registry.find("attack", "flip")

    assert item.plugin == PluginInfo(distribution="rt-good", version="1.2", entry_point="plugin", adds=(("attack", "flip"),))
    assert item.plugin in registry.plugins
    assert rt_core.attack("flip", epsilon=0.2) == ("made", 0.2, 3)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_left_out_alone_and_stays_listed(distribution, case):
    source, reason = BROKEN[case]
    distribution("rt-good", GOOD)
    distribution("rt-broken", source, version="0.7", attribute=":absent" if case == "no_such_object" else "")
    with pytest.warns(PluginWarning) as warned:
        registry = Registry()

    (message,) = [str(warning.message) for warning in warned]
    assert message.startswith("plugin rt-broken 0.7 (plugin) was left out: ")
    assert reason in message
    (broken,) = [plugin for plugin in registry.plugins if plugin.error is not None]
    assert (broken.distribution, broken.version, broken.adds) == ("rt-broken", "0.7", ())
    assert names(registry) == ["rt-core/identity", "rt-core/uniform_noise", "rt-good/flip"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_an_error_where_plugins_are_strict(distribution, monkeypatch, case):
    source, _ = BROKEN[case]
    distribution("rt-broken", source, version="0.7", attribute=":absent" if case == "no_such_object" else "")
    monkeypatch.setenv("RT_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match=r"plugin rt-broken 0\.7 .* was left out") as raised:
        Registry()
    assert raised.value.__cause__ is not None


def test_two_entry_points_of_one_name_in_two_distributions_both_load(distribution):
    distribution("rt-first", GOOD)
    distribution("rt-second", GOOD.replace("flip", "flop"))

    assert names(Registry())[2:] == ["rt-first/flip", "rt-second/flop"]


def test_two_entry_points_of_one_distribution_both_load(distribution):
    distribution("rt-two", GOOD)
    distribution("rt-two", GOOD.replace("flip", "flop"), entry_point="other")

    assert sorted(names(Registry())[2:]) == ["rt-two/flip", "rt-two/flop"]


def test_a_distribution_gives_a_name_once(distribution):
    distribution("rt-two", GOOD)
    distribution("rt-two", GOOD, entry_point="another")
    with pytest.warns(PluginWarning, match="attack 'flip' comes already from the entry point 'another'"):
        registry = Registry()

    assert names(registry)[2:] == ["rt-two/flip"]


def test_an_object_may_be_a_plugin(distribution):
    source = f"{dedent(GOOD)}\nimport types\nhere = types.SimpleNamespace(rt_attacks=rt_attacks)"
    distribution("rt-object", source, attribute=":here")

    assert names(Registry())[2:] == ["rt-object/flip"]


def test_rt_plugins_loads_only_what_it_names(distribution, monkeypatch):
    distribution("rt-wanted", GOOD)
    distribution("rt-other", GOOD)
    distribution("rt-broken", "import absent_thing")

    monkeypatch.setenv("RT_PLUGINS", " RT_Wanted, rt-core,")
    assert names(Registry()) == ["rt-core/identity", "rt-core/uniform_noise", "rt-wanted/flip"]
    monkeypatch.setenv("RT_PLUGINS", "rt.wanted")
    assert names(Registry()) == ["rt-wanted/flip"]


def test_rt_plugins_that_names_nothing_installed_says_so(monkeypatch):
    monkeypatch.setenv("RT_PLUGINS", "rt-core,rt-nosie")
    with pytest.warns(PluginWarning, match="RT_PLUGINS names rt-nosie"):
        Registry()
    monkeypatch.setenv("RT_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="RT_PLUGINS names rt-nosie"):
        Registry()


# Finding


def test_a_name_with_two_owners_is_ambiguous_and_its_full_names_work(distribution):
    distribution("rt-noise", GOOD.replace("flip", "uniform_noise"), version="3.1")
    registry = Registry()
    with pytest.raises(AmbiguousName) as raised:
        registry.find("attack", "uniform_noise")

    assert "'rt-core/uniform_noise'" in str(raised.value)
    assert "'rt-noise/uniform_noise' (3.1)" in str(raised.value)
    assert registry.find("attack", "rt-core/uniform_noise").plugin.distribution == "rt-core"
    assert registry.find("attack", "RT_Noise/uniform_noise").plugin.distribution == "rt-noise"


def test_clashes_are_the_bare_names_of_several_owners(distribution):
    assert Registry().clashes() == {}
    distribution("rt-noise", GOOD.replace("flip", "uniform_noise"))
    distribution("rt-good", GOOD)
    distribution("rt-other", GOOD)
    assert Registry().clashes() == {
        ("attack", "uniform_noise"): ("rt-core/uniform_noise", "rt-noise/uniform_noise"),
        ("attack", "flip"): ("rt-good/flip", "rt-other/flip"),
    }


def test_a_miss_says_all_that_helps(distribution):
    distribution("rt-broken", "import absent_thing", version="0.7")
    with pytest.warns(PluginWarning):
        registry = Registry()
    with pytest.raises(UnknownName) as raised:
        registry.find("attack", "uniform-noise")

    assert str(raised.value).splitlines() == [
        "no attack is named 'uniform-noise'; did you mean 'uniform_noise'?",
        "  installed attacks: identity, uniform_noise",
        "  RT_PLUGINS is set, so only these distributions were asked: rt-core, rt-broken",
        "  plugin rt-broken 0.7 (plugin) was left out: ModuleNotFoundError: No module named 'absent_thing'",
    ]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("metric", "identity", "there is an attack of that name: rt_core.attack('identity')"),
        ("metric", "shift", "installed metrics: none"),
        ("attack", "uniform", "did you mean 'uniform_noise'?"),
        ("attack", "un", "did you mean 'uniform_noise'?"),
        ("attack", "IDENTITY", "did you mean 'identity'?"),
        ("attack", "rt-cor/identity", "did you mean 'rt-core/identity'?"),
        ("attack", "rt-core/absent", "installed attacks: rt-core/identity, rt-core/uniform_noise"),
    ],
)
def test_a_miss_of_another_kind_or_distribution(kind, name, words):
    with pytest.raises(UnknownName) as raised:
        Registry().find(kind, name)
    assert words in str(raised.value)


def test_finding_by_what_is_no_kind_or_name():
    with pytest.raises(ValueError, match="expected one of attack, metric, encoder, dataset"):
        Registry().find("attacks", "identity")
    with pytest.raises(ValueError, match="the name of the attack is 3"):
        Registry().find("attack", 3)


# Registering by hand


def test_a_plugin_registered_twice_is_one_registration(distribution):
    module = distribution("rt-good", GOOD)
    by_hand = adding("attack", "waver")
    for _ in range(2):
        rt_core.register(by_hand)
        rt_core.register(import_module(module))
        rt_core.register(builtin)

    assert names(installed()) == ["rt-core/identity", "rt-core/uniform_noise", "rt-good/flip", "registered here/waver"]
    assert rt_core.attack("waver", size=3) == {"size": 3}
    assert rt_core.attack("registered here/waver") == {}


def test_a_module_can_be_registered():
    module = ModuleType("fake_notebook")
    module.rt_metrics = adding("metric", "shift").rt_metrics
    rt_core.register(module)

    assert installed().find("metric", "shift").plugin.entry_point.startswith("fake_notebook")


def test_running_a_notebook_s_cell_again_replaces_what_it_registered():
    rt_core.register(adding("attack", "waver", factory=lambda: "old"))
    rt_core.register(adding("attack", "other", factory=lambda: "other"))
    rt_core.register(adding("attack", "waver", factory=lambda: "new"))

    assert rt_core.attack("waver") == "new"
    assert rt_core.attack("other") == "other"
    assert len(installed().plugins) == 3


def test_registering_what_is_broken_leaves_nothing_behind():
    misspelt, raising = SimpleNamespace(rt_atacks=adding("attack", "a").rt_attacks), adding("attack", "b")

    @rt_core.hookimpl
    def rt_metrics():
        raise OSError("no disk")

    raising.rt_metrics = rt_metrics
    for plugin, words in [
        (misspelt, "unknown hook 'rt_atacks'"),
        (raising, "OSError: no disk"),
        (None, "the plugin is None"),
        (3, "no hook"),
    ]:
        with pytest.raises(PluginError, match=words):
            rt_core.register(plugin)
    rt_core.register(adding("attack", "fine"))

    assert names(installed())[2:] == ["registered here/fine"]
    assert len(installed().plugins) == 2


# Making


def only(*, epsilon=0.1, steps):
    return epsilon, steps


def test_options_are_checked_against_the_factory():
    rt_core.register(adding("attack", "only", factory=only))
    rt_core.register(adding("attack", "plain", factory=lambda: "plain"))

    assert rt_core.attack("only", steps=2) == (0.1, 2)
    with pytest.raises(ValueError, match=r"no option 'epsilom'; did you mean 'epsilon'\? \(it takes epsilon, steps\)"):
        rt_core.attack("only", epsilom=0.2, steps=2)
    with pytest.raises(ValueError, match=r"needs the option 'steps' \(it takes epsilon, steps\)"):
        rt_core.attack("only")
    with pytest.raises(ValueError, match=r"no option 'size' \(it takes none\)"):
        rt_core.attack("plain", size=3)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("eps", "epsilon"), ("Eps", "epsilon"), ("epsilom", "epsilon"), ("step_", "step"), ("ste", "step"), ("ns", "norm_size")],
)
def test_the_name_that_a_wrong_one_is_short_for_is_meant(wrong, meant):
    rt_core.register(adding("attack", "many", factory=lambda *, steps=1, step=1, norm_size=1, eta=1, epsilon=1: None))
    with pytest.raises(ValueError, match=f"no option '{wrong}'; did you mean '{meant}'"):
        rt_core.attack("many", **{wrong: 1})


def test_an_option_may_be_called_name():
    rt_core.register(adding("encoder", "any", factory=lambda **options: options))

    assert rt_core.encoder("any", name="mine", kind="small") == {"name": "mine", "kind": "small"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_made_by_name(kind):
    rt_core.register(adding(kind, "thing"))

    assert getattr(rt_core, kind)("thing", size=3) == use("thing", size=3).make(kind) == make(kind, "thing", {"size": 3}) == {"size": 3}


@pytest.mark.parametrize(
    ("factory", "source", "words"),
    [
        ("fake_hot:Flip", "import absent_thing", r"rt-lazy 1\.2 .*needs the module 'absent_thing'.*: pip install absent_thing$"),
        ("fake_hot:Flip", "import json.absent", r"needs the module 'json\.absent', which cannot be found$"),
        ("fake_hot:Flip", "", "cannot be imported: AttributeError"),
        ("fake_hot:Flip", "raise RuntimeError('wrong driver')", "cannot be imported: RuntimeError: wrong driver"),
        ("fake_hto:Flip", "", r"needs the module 'fake_hto', which cannot be found$"),
        ("fake_hot:late", "def late():\n    import absent_thing", "pip install absent_thing$"),
        ("fake_hot:late", "def late():\n    raise ImportError('get it from example.org')", "get it from example.org$"),
    ],
)
def test_a_factory_that_cannot_be_imported_is_the_plugin_s_error(distribution, tmp_path, factory, source, words):
    distribution("rt-lazy", dedent(GOOD).replace("factory=make", f"factory={factory!r}"))
    (tmp_path / "fake_hot.py").write_text(source)
    with pytest.raises(PluginError, match=words) as raised:
        rt_core.attack("flip")
    assert "attack 'flip' of rt-lazy 1.2" in str(raised.value)


def test_a_plugin_whose_requirement_is_missing_is_to_be_installed_again(distribution, tmp_path):
    requires = ["rt-core>=0.1", "absent-package[fast]>=2; python_version > '3'"]
    distribution("rt-bridge", dedent(GOOD).replace("factory=make", "factory='fake_hot:Flip'"), requires=requires)
    (tmp_path / "fake_hot.py").write_text("import absent_thing")
    with pytest.raises(PluginError, match=r"needs the module 'absent_thing', .*: pip install rt-bridge$"):
        rt_core.attack("flip")


def test_use_is_a_value():
    described = use("folder", path="photos", size=[2, 3])

    assert repr(described) == "use('folder', path='photos', size=[2, 3])"
    assert pickle.loads(pickle.dumps(described)) == described == Use("folder", {"size": [2, 3], "path": "photos"})
    assert described != use("folder", path="photos")
    assert use("torchvision", model="resnet50").label == "resnet50"
    assert use("mine", model=3).label == use("mine").label == "mine"
    with pytest.raises(ValueError, match="name is ''"):
        use("")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("pgd", ["FGSM", "PGD"], "PGD"),
        ("eps", ["steps", "epsilon"], "epsilon"),
        ("uq", ["overlap_risk", "universal_quantile"], "universal_quantile"),
        ("epislon", ["steps", "epsilon"], "epsilon"),
        ("zzz", ["FGSM", "PGD"], None),
        ("e", ["epsilon"], None),
    ],
)
def test_what_was_probably_meant(name, known, meant):
    assert did_you_mean(name, known) == ("" if meant is None else f"; did you mean {meant!r}?")


# The command line


def test_rt_list_prints_aligned_columns(distribution, capsys):
    distribution("rt-good", GOOD)

    assert cli.main(["list", "attack"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split(maxsplit=4) == ["attack", "flip", "rt-good", "1.2", "mirror the input"]
    assert len({line.index("rt-") for line in lines}) == 1
    assert cli.main(["list"]) == 0
    assert {tuple(line.split()[:2]) for line in capsys.readouterr().out.splitlines()} == CORE | {("attack", "flip")}
    assert cli.main(["list", "metric"]) == 0
    assert capsys.readouterr().out == ""


def test_rt_list_says_of_a_name_its_options_and_what_it_does(distribution, capsys):
    distribution("rt-good", GOOD)

    assert cli.main(["list", "uniform_noise"]) == 0
    head, options, told = capsys.readouterr().out.strip().split("\n\n", 2)
    assert head.startswith("attack uniform_noise of rt-core")
    assert head.endswith(": move every value in a random direction, by at most epsilon")
    assert options.split() == [f"epsilon={8 / 255}", "mask=None"]
    assert "Raises:" in told
    assert cli.main(["list", "rt-good/flip"]) == 0
    assert capsys.readouterr().out.startswith("attack flip of rt-good 1.2: mirror the input")
    assert cli.main(["list", "unifrom_noise"]) == 2
    assert capsys.readouterr().err == "rt: nothing is named 'unifrom_noise'; did you mean 'uniform_noise'? (`rt list` shows all)\n"


def test_rt_plugins_exits_1_if_one_is_broken(distribution, capsys):
    distribution("rt-good", GOOD)
    assert cli.main(["plugins"]) == 0
    assert "attacks: flip" in capsys.readouterr().out

    distribution("rt-broken", "import absent_thing", version="0.7")
    installed.cache_clear()
    assert cli.main(["plugins"]) == 1
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if line.startswith("rt-broken")]
    assert line.split(maxsplit=2) == ["rt-broken", "0.7", "broken (plugin): ModuleNotFoundError: No module named 'absent_thing'"]
    assert printed.err == ""


def test_errors_become_messages_and_exit_codes(monkeypatch, capsys):
    for error, code in [
        (UnknownName("no attack is named 'a'"), 2),
        (ValueError("epsilon is 8"), 2),
        (PluginError("broken"), 2),
        (KeyboardInterrupt(), 130),
    ]:

        def command(arguments, error=error):
            raise error

        monkeypatch.setattr(cli, "_list", command)
        assert cli.main(["list"]) == code
        said = f"rt: {error}" if code == 2 else "rt: interrupted; the same command goes on where it was"
        assert capsys.readouterr().err == said + "\n"


def test_rt_alone_shows_its_commands_and_a_wrong_use_exits_2(capsys):
    assert cli.main([]) == 2
    assert "plugins" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["nonsense"])


def run_rt(tmp_path, *arguments, **environment):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", **environment}
    command = [sys.executable, "-m", "rt_core", *arguments]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_the_command_in_a_process_of_its_own(distribution, tmp_path):
    distribution("rt-good", GOOD)
    distribution("rt-broken", "import absent_thing", version="0.7")

    listed = run_rt(tmp_path, "list")
    assert listed.returncode == 0
    assert "flip" in listed.stdout
    assert listed.stderr.startswith("rt: PluginWarning: plugin rt-broken 0.7 (plugin) was left out: ModuleNotFoundError")
    assert run_rt(tmp_path, "plugins").returncode == 1
    strict = run_rt(tmp_path, "list", RT_STRICT_PLUGINS="1")
    assert strict.returncode == 2
    assert strict.stderr.startswith("rt: plugin rt-broken 0.7 (plugin) was left out")
    assert "Traceback" not in listed.stderr + strict.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["list"], ["list", "attack"], ["plugins"]])
def test_a_cold_start_imports_nothing_heavy(tmp_path, arguments):
    code = f"""
        import sys
        import rt_core, rt_core.cli
        rt_core.hookimpl, rt_core.AttackEntry, rt_core.use, rt_core.installed, rt_core.UnknownName, dir(rt_core)
        try:
            rt_core.cli.main({arguments})
        except SystemExit:
            pass
        print("heavy:", *sorted({{"torch", "pandas", "numpy", "scipy"}} & set(sys.modules)))
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RT_PLUGINS")  # all that is installed
    done = subprocess.run([sys.executable, "-c", dedent(code)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:"


# The public names


def test_the_lists_of_public_names_agree():
    tree = ast.parse((ROOT / "rt_core" / "__init__.pyi").read_text())
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert imported == set(rt_core.__all__) - {"__version__"}
    assert imported == set(rt_core._HOME) | rt_core._SUBMODULES | set(rt_core.errors.__all__)


def test_every_public_name_is_there_and_none_hides_a_submodule():
    for name in rt_core.__all__:
        assert getattr(rt_core, name) is not None
        assert name in dir(rt_core)
    submodules = {path.stem for path in (ROOT / "rt_core").iterdir()}
    assert submodules & set(rt_core.__all__) == rt_core._SUBMODULES
    with pytest.raises(AttributeError, match="no attribute 'attacks'"):
        _ = rt_core.attacks
