"""The package as a user gets it: a wheel, and an editable install, each in a fresh environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("backends", "cli", "core", "kernels", "migration")
DATA = ("*.pyi", "*.py", "py.typed", "*.j2", "*.pbtxt", "*.html", "*.css", "*.json")


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command; its errors are shown where it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def source_files() -> set[str]:
    """Every file that belongs into the wheel, by its path there."""
    return {
        f"pageport/{path.relative_to(ROOT)}"
        for room in ROOMS
        for pattern in DATA
        for path in (ROOT / room).rglob(pattern)
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by pip from a copy of the tree, so that no build folder is left in the checkout."""
    source = copy_of_the_tree(tmp_path_factory.mktemp("source"))
    target = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", target, source, cwd=target)
    (built,) = target.glob("pageport-*.whl")
    return built


def copy_of_the_tree(folder: Path) -> Path:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = folder / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    return folder


def fresh_environment(folder: Path) -> Path:
    """A new environment's interpreter. It borrows the big packages of this one, but not `pageport`.

    A path file adds this environment's packages; path files of other folders do not run, so this
    environment's own editable install stays behind.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    Path(packages, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    absent = "import importlib.util; print(importlib.util.find_spec('pageport'))"
    assert run(python, "-c", absent, cwd=folder) == "None\n"
    return python


def install(python: Path, *what: str | Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    # --ignore-installed: pip takes the borrowed metadata for an installed copy.
    run(*pip, "--no-deps", "--no-build-isolation", "--ignore-installed", *what, cwd=python.parent)


def check_installed(python: Path, home: Path) -> None:
    """It imports from anywhere, from `home`, and has its command; nothing named `core` appears."""
    program = (
        "import importlib.util, sys, pageport.core\n"
        "assert 'torch' not in sys.modules, 'the public face loads torch too early'\n"
        "import pageport.kernels, pageport.backends.triton_python, pageport.migration, pageport.core.model\n"
        "assert importlib.util.find_spec('core') is None, 'bare core'\n"
        "print(pageport.core.__file__)\n"
    )
    where = run(python, "-c", program, cwd=Path("/")).strip()
    assert Path(where).is_relative_to(home)
    assert "Usage: pageport" in run(python.parent / "pageport", "--help", cwd=Path("/"))


def test_the_wheel_holds_every_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == source_files()


def test_the_wheel_installs(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "an environment")
    install(python, wheel)
    check_installed(python, tmp_path)


def test_an_editable_install_follows_the_sources(tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "env")
    source = tmp_path / "source"
    source.mkdir()
    copy_of_the_tree(source)
    install(python, "--editable", source)
    check_installed(python, source)
    (source / "core" / "added_later.py").write_text("FOUND = 'yes'\n")
    program = "from pageport.core.added_later import FOUND; print(FOUND)"
    assert run(python, "-c", program, cwd=Path("/")) == "yes\n"
