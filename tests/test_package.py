"""What pip installs: contents and metadata of wheel and sdist, and `esa` from the wheel alone.

The wheel is installed into an empty virtual environment, and run in a folder away from the
repository. Its dependencies are those of the environment that runs the tests, which a .pth file
shows it: an editable install of the repository is not among them. `make clean-install` installs
them anew.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from command import run_python
from packaging.utils import canonicalize_name
from requirement_tree import needed

import esa_cli
from esa_cli.version import __version__

ROOT = Path(__file__).parent.parent
INFO = f"esa_cli-{__version__}.dist-info/"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def build(source: Path, out: Path, *kinds: str) -> Path:
    """A wheel, of the sdist that is built first unless `kinds` says what to build."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *kinds]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, which lies beside it."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    return contents(wheel)


@pytest.fixture(scope="module")
def described(files: dict[str, bytes]) -> Message:
    return message_from_bytes(files[INFO + "METADATA"])


def of_repository() -> Iterator[tuple[str, Path]]:
    """The names in a wheel and the files of what belongs into it."""
    for folder, prefix in ((ROOT / "esa_cli", "esa_cli"), (ROOT / "presets", "esa_cli/presets")):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{prefix}/{path.relative_to(folder).as_posix()}", path


@pytest.mark.process
def test_a_wheel_has_the_package_and_nothing_else(files: dict[str, bytes]) -> None:
    own = dict(of_repository())
    assert {name for name in files if not name.startswith(INFO)} == set(own)
    assert all(files[name] == path.read_bytes() for name, path in own.items())
    assert files[INFO + "licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"esa = esa_cli.__main__:main" in files[INFO + "entry_points.txt"]


def imported() -> set[str]:
    """The top-level modules that the package imports, wherever in a file."""
    found = set()
    for path in (ROOT / "esa_cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"esa_cli"}


@pytest.mark.process
def test_what_the_package_imports_is_required(described: Message) -> None:
    stated = [text.partition(";")[0] for text in described.get_all("Requires-Dist", [])]
    distributions = metadata.packages_distributions()
    known = needed(stated)
    lacking = {
        module
        for module in imported()
        if not any(canonicalize_name(d) in known for d in distributions.get(module, [module]))
    }
    assert lacking == set()


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of the environment in an empty folder that is not the repository's."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "env", with_pip=False)
    python = home / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    packages = next((home / "env").glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    (home / "folder").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "ESA_LIBRARY": str(home / "library"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "2"),
    }

    def call(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(python.with_name(program)), *arguments],
            cwd=home / "folder", env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done

    return call


@pytest.mark.process
@pytest.mark.timeout(200)
def test_the_wheel_alone_runs(run: Run, tmp_path: Path) -> None:
    place = run("python", "-c", "import esa_cli; print(esa_cli.__file__)").stdout
    assert "/installed" in place
    assert str(ROOT) not in place
    assert run("esa", "--version").stdout == f"esa {__version__}\n"
    shown = run("esa", "--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("demo", "ask", "doctor"))
    doctor = run("esa", "doctor", "--json")
    assert f'"esa": "{__version__}"' in doctor.stdout
    assert run("esa", "presets", "list").stdout.count(" shipped ") >= 6


@pytest.mark.model
@pytest.mark.timeout(400)
def test_the_demo_runs_with_the_wheel_alone(run: Run) -> None:
    done = run("esa", "demo", "--questions", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^3 of 3 right, in ", done.stdout, re.M), done.stdout


def test_what_is_offered_is_there_and_nothing_else_is() -> None:
    for name in esa_cli.__all__:
        assert getattr(esa_cli, name)
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = esa_cli.Sesion


@pytest.mark.parametrize(
    "code",
    [
        "esa_cli.load_preset()\nesa_cli.Library, esa_cli.Turn, esa_cli.Passage\n"
        f"esa_cli.read_document({str(ROOT / 'README.md')!r})\n",
        "from esa_cli import Esa\nassert 'esa_cli.methods' not in sys.modules\n",
    ],
)
def test_importing_loads_nothing_heavy(code: str) -> None:
    code = (
        f"import sys, esa_cli\n{code}"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'rich', 'typer'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    run_python(code)
