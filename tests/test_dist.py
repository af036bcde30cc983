# SPDX-License-Identifier: Apache-2.0
"""Wheel and sdist: what they hold, and the package as they install it."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT)
    return {path.suffix: path for path in out.iterdir()}


@pytest.mark.slow
def test_a_wheel_holds_the_package_alone_and_an_sdist_what_tests_need(built):
    with zipfile.ZipFile(built[".whl"]) as wheel:
        parts = {name.split("/")[0] for name in wheel.namelist()}
        assert "sparsetrain/serving/native/sparsetrain.h" in wheel.namelist()
    assert parts == {"sparsetrain", f"{built['.whl'].name.split('-py3')[0]}.dist-info"}
    with tarfile.open(built[".gz"]) as source:
        top = {name.split("/")[1] for name in source.getnames() if "/" in name}
    assert top >= {"sparsetrain", "tests", "docs", "Makefile", "constraints.txt", "LICENSE"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".whl", ".gz"])
def test_what_is_built_is_installed_in_a_fresh_environment(built, kind, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    where = Path(
        run(python, "-c", "import sysconfig as s; print(s.get_path('purelib'))", cwd="/").strip()
    )
    # Dependencies, the build backend among them, are those of this environment.
    (where / "others.pth").write_text(sysconfig.get_path("purelib"))
    quiet = ("--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall")
    run(python, "-m", "pip", "install", *quiet, built[kind], cwd=tmp_path)
    shown = run(python, "-c", "import sparsetrain; print(sparsetrain.__file__)", cwd=tmp_path)
    assert Path(shown.strip()).parent == where / "sparsetrain"
    version = run(tmp_path / "env" / "bin" / "sparsetrain", "--version", cwd=tmp_path)
    assert f"-{version.strip()}" in built[kind].name
