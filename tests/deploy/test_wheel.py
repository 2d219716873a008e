"""The wheel holds everything, and runs where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.e2e.stack import ROOT

ROOMS = ("rewarm", "rewarm_vllm", "fleet", "controller", "gateway", "worker", "snapshots")
QUIET = ("--quiet", "--no-deps")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"  # setuptools leaves build/ behind where it runs
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", *QUIET, "--no-build-isolation", "--wheel-dir", str(folder), str(tree))
    (built,) = folder.glob("rewarm-*.whl")
    return built


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_it_holds_all_rooms_and_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in {".py", ".lua", ".typed"}:
                assert path.relative_to(ROOT).as_posix() in names
    assert "rewarm = rewarm.cli.main:main" in scripts


def test_it_runs_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own; the libraries are this one's."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip("--python", str(python), "install", *QUIET, str(wheel))
    (packages,) = home.glob("lib/python3*/site-packages")
    # A plain line: what this environment itself links to, the repository, is not followed.
    (packages / "libraries.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")

    def run(*command: str) -> str:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "serve" in run(str(home / "bin" / "rewarm"), "--help")
    assert "SIGTERM" in run(str(python), "-P", "-m", "rewarm", "serve", "--help")
    code = "import fleet.scripts, pathlib; print(pathlib.Path(fleet.__file__).parent)"
    installed = Path(run(str(python), "-c", code).strip())
    assert installed.is_relative_to(home)
    assert len(list(installed.glob("lua/*.lua"))) > 5
