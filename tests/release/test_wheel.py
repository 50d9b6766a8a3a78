"""The wheel as a stranger gets it: built without a network, installed where no checkout is near."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Return the output of a program that must succeed, with no variable that leads Python to the checkout."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel with the locked hatchling."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install the wheel alone into a new environment; its dependencies are lent by this one, the checkout is not.

    A path line in a .pth file appends a folder without reading that folder's own .pth files, so that the editable
    install of the checkout stays out of sight.
    """
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", environment, cwd=environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=environment)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment).strip()
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site) / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")
    return environment


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """No test, script or folder of the checkout is shipped, above all no `operator`, which would shadow Python's."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"basert_fleet"}
    assert "basert_fleet/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    shipped = {name for name in names if name.startswith("basert_fleet/") and name.endswith(".py")}
    package = ROOT / "operator"
    assert shipped == {path.relative_to(package).as_posix() for path in (package / "basert_fleet").rglob("*.py")}


def test_the_wheel_asks_for_no_kubernetes(wheel):
    """A Mac needs no Kubernetes client: the base install does not ask for one."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(path).decode())
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert needed
    assert not [line for line in needed if line.startswith(("kopf", "kubernetes"))]


def test_the_installed_package_is_the_wheels(installed, tmp_path):
    """What is imported comes from the new environment, not from the checkout."""
    where = run(installed / "bin" / "python", "-c", "import basert_fleet; print(basert_fleet.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)


@pytest.mark.parametrize("program", [("basert-fleet", "version"), ("basert-sim", "--help")], ids=" ".join)
def test_the_installed_programs_start(installed, tmp_path, program):
    """Both console scripts run from the wheel."""
    name, argument = program
    assert run(installed / "bin" / name, argument, cwd=tmp_path)
