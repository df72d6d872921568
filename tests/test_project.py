"""The project itself: devices, imports, documentation, the packages a user gets."""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jax
import pytest

import bucketjax

ROOT = Path(__file__).resolve().parents[1]


def fresh_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_eight_cpu_devices_are_there():
    assert len(jax.devices("cpu")) == 8, "the tests on several devices would prove nothing"


def test_importing_the_core_imports_none_of_the_extras():
    loaded = json.loads(
        fresh_python("import sys, json, bucketjax; print(json.dumps(sorted(sys.modules)))")
    )
    top = {name.split(".")[0] for name in loaded}
    extras = {"flax", "optax", "orbax", "grain", "tensorflow_datasets", "matplotlib", "tyro"}
    assert "jax" in top
    assert not top & extras


def test_importing_the_core_is_quick_beyond_jax():
    program = (
        "import time, jax, numpy; start = time.perf_counter();"
        "import bucketjax; print(time.perf_counter() - start)"
    )
    # The best of three: a busy machine makes an import slower, never faster.
    assert min(float(fresh_python(program)) for _ in range(3)) < 0.2


MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(bucketjax.__path__, "bucketjax.")
    if not name.split(".")[-1].startswith("_")
)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_symbol_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    is_core = name.count(".") == 1 and not hasattr(module, "__path__")
    for symbol in getattr(module, "__all__", []):
        value = getattr(module, symbol)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, f"{name}.{symbol} has no docstring"
        if inspect.isfunction(value) and is_core:
            assert ">>>" in value.__doc__, f"the docstring of {name}.{symbol} has no example"


def test_the_list_of_public_names_is_true():
    for name in MODULES:
        module = importlib.import_module(name)
        for symbol in getattr(module, "__all__", []):
            assert hasattr(module, symbol), f"{name}.__all__ names {symbol}, which is not there"


def test_the_wheel_holds_the_typed_library_and_nothing_else(tmp_path):
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(hatch, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "bucketjax/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    library = [name for name in names if name.startswith("bucketjax/")]
    described = [name for name in names if name.split("/")[0].endswith(".dist-info")]
    assert sorted(library + described) == sorted(names)
    assert all(name.endswith((".py", "py.typed")) for name in library)


def test_the_core_needs_jax_jaxtyping_and_numpy_only():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split("[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert names == {"jax", "jaxtyping", "numpy"}


def test_the_tested_set_is_pinned_and_names_no_place():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line), line


def test_an_old_python_is_refused_with_what_to_do(tmp_path):
    old = tmp_path / "python"
    # Runs the Makefile's question with a version that is too old.
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10)\n$2"\n'
    )
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["make", "demo", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "bucketjax needs Python 3.11 or newer" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()
