"""`import hundredfold` loads no heavy library and offers the public names."""

import pytest

from helpers.training_runs import run_python

pytestmark = pytest.mark.process

HEAVY = ("torch", "ray", "tensorboard", "numba", "wandb", "stable_baselines3", "plotly", "rich")


def test_importing_the_package_loads_no_heavy_library():
    done = run_python(f"import sys, hundredfold; print([m for m in {HEAVY!r} if m in sys.modules])", expect=0)
    assert done.stdout.strip() == "[]"


def test_importing_the_settings_does_not_load_numba():
    done = run_python("import sys, hundredfold.config.run; print('numba' in sys.modules)", expect=0)
    assert done.stdout.strip() == "False"


def test_every_public_name_can_be_imported():
    done = run_python("import hundredfold as h; print([n for n in h.__all__ if not getattr(h, n)])", expect=0)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_raises_an_attribute_error():
    done = run_python("import hundredfold; hundredfold.nonsense", expect=1)
    assert "has no attribute 'nonsense'" in done.stderr
