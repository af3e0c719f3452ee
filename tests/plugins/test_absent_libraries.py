"""A bridge whose library is not installed: everything else works, and asking for it says what to install."""

import pytest
from support import run_python


@pytest.mark.parametrize(
    ("library", "package", "attack"),
    [("torchattacks", "torchattacks", "PGD"), ("art", "adversarial-robustness-toolbox", "FastGradientMethod")],
)
def test_without_its_library_everything_else_works(tmp_path, library, package, attack):
    run_python(
        f"""
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == {library!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Blocked())
        import rt_core
        assert any(item.entry.name == {library!r} for item in rt_core.installed().items)
        assert "torch" not in sys.modules, "the entry module is not cold"

        import torch
        from rt_unsupervised_attacks import UPGD
        encoder = rt_core.Encoder(torch.nn.Flatten(), name="flat")
        plan = rt_core.Evaluation(
            encoders=[encoder], dataset=torch.rand(8, 3, 4, 4), attacks={{"u-pgd": UPGD(steps=2)}},
            metrics=["universal_quantile", "breakaway_risk"],
        )
        assert len(rt_core.run(plan, progress=False).frame)
        try:
            rt_core.attack({library!r}, attack={attack!r})
        except rt_core.PluginError as error:
            assert "pip install {package}" in str(error), error
            assert "No module named '{library}'" in str(error), error
        else:
            raise AssertionError("no PluginError")
        """,
        HOME=str(tmp_path),
    )
    assert not list(tmp_path.iterdir())
