"""The places in which the commands of the documentation run: each scene adds something to a new one.

What the pages name (`flash-attn`, `my-extension`, ...) is made of the projects of tests/projects, and built as any
package is: by the real pip, uv, build, tox and safe-ext-build, with a compiler that is a stand-in.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import docs_farm
import fakes
from docs_pages import REPOSITORY
from docs_shell import Shell
from frontend_runs import foreign_variables

PROJECTS = REPOSITORY / "tests" / "projects"
# As in a file system that is not this machine's: the page's paths stand for these.
CUDA_HOME = "/usr/local/cuda-13.0"
REAL = "real-cuda"
"""The scene with the torch of the tests' own environment and the toolkit of this machine."""
SOURCES = ("attention_forward", "attention_backward", "norm", "rotary")
# Those that the pages fetch from an index.
PUBLISHED = ("torchsort-0.1.5", "flash-attn-2.8.3", "some-package-1.0")


@dataclass(frozen=True)
class House:
    """What is made once for all places."""

    wheels: Path
    """A directory with our wheel, those that builds need, and sdists of what pages name."""
    compiler: Path
    cache: Path
    """What one build has left: a record, a history, objects."""


@dataclass
class Place:
    """A new directory with an environment, caches and a home of its own."""

    root: Path
    house: House
    python: Path
    shell: Shell
    cleanup: ExitStack

    @property
    def work(self) -> Path:
        return self.shell.cwd

    def set(self, **variables: str) -> None:
        self.shell.environ.update(variables)

    def put_on_path(self, directory: Path) -> None:
        self.set(PATH=f"{directory}:{self.shell.environ['PATH']}")

    def safe_ext_build(self, *arguments: str) -> str:
        command = [str(self.python), "-m", "safe_ext_build", *arguments]
        return subprocess.run(
            command, env=self.shell.environ, cwd=self.root, capture_output=True, text=True, check=False
        ).stdout


Scene = Callable[[Place], None]


def project(target: Path, kind: str, seconds: float = 0.05, burn: int = 0) -> Path:
    """A project of tests/projects, named as its directory is. `burn`: compilers keep a CPU busy; what uses none
    has cost nothing, and is not remembered."""
    shutil.copytree(PROJECTS / kind, target, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    text = (target / "pyproject.toml").read_text()
    old = next(line for line in text.splitlines() if line.startswith("name ="))
    (target / "pyproject.toml").write_text(text.replace(old, f'name = "{target.name}"'))
    if kind == "standin":
        for source in (target / "csrc").iterdir():
            source.unlink()
        for name in SOURCES:
            (target / "csrc" / f"{name}.cu").write_text(f"//! seconds={seconds} burn={burn} mib=10\n")
    return target


def foreign(source: Path, version: str = "1.0") -> Path:
    """A project that never heard of us: its backend is plain setuptools."""
    text = (source / "pyproject.toml").read_text()
    text = text.replace('"safe-ext-build"', '"setuptools"').replace("safe_ext_build.", "setuptools.")
    (source / "pyproject.toml").write_text(text.replace('version = "1.0"', f'version = "{version}"'))
    return source


def publish(name: str, into: Path) -> None:
    """Write an sdist of a foreign project."""
    package, _, version = name.rpartition("-")
    source = foreign(project(into / package, "standin"), version)
    (source / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    with tarfile.open(into / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(source, name)
    shutil.rmtree(source)


def publish_wheel(site: Path, name: str, into: Path) -> None:
    """Write a wheel of what lies in `site`."""
    info = site / f"{name}.dist-info"
    fakes.metadata(site, *name.split("-"))
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "RECORD").touch()
    made = shutil.make_archive(str(into / name), "zip", site)
    Path(made).rename(into / f"{name}-py3-none-any.whl")
    shutil.rmtree(site)


def write_index(wheels: Path, root: Path) -> None:
    """The same files as an index, one directory for each project (PEP 503)."""
    for path in wheels.iterdir():
        name = re.split(r"-\d", path.name)[0].replace("_", "-").lower()
        (root / name).mkdir(parents=True, exist_ok=True)
        with (root / name / "index.html").open("a") as page:
            page.write(f'<a href="{path.as_uri()}">{path.name}</a>\n')


def fake_torch(site: Path) -> Path:
    """A torch of which only the files matter; returns the directory that holds it."""
    fakes.torch(site)
    (site / "torch" / "__init__.py").write_text("from . import version\nfrom .version import __version__\n")
    fakes.metadata(site, "torch", "2.14.1+cu130")
    return site


# --- the scenes ---


def _kernels(place: Place) -> None:
    """A project with four CUDA sources: it is where the commands run."""
    place.shell.cwd = project(place.work / "my-kernels", "standin")


def _two_projects(place: Place) -> None:
    """The directory above of some projects; `project` has a backend of its own."""
    for name in ("my-extension", "my-checkout", "flash-attention"):
        project(place.work / name, "standin")
    theirs = project(place.work / "project", "in_tree") / "pyproject.toml"
    text = theirs.read_text().replace("safe_ext_build.build_meta", "tiny_backend")
    theirs.write_text(text.replace('requires = ["safe-ext-build"]', 'requires = []\nbackend-path = ["backend"]'))


def _clone(place: Place) -> None:
    """A clone of this repository, as far as a wheel is made of it."""
    clone = place.work / "safe-ext-build"
    names = [*("safe_ext_build", "example_package"), *("pyproject.toml", "README.md", "LICENSE")]
    left_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in names:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, clone / name, ignore=left_out)
        else:
            shutil.copy(source, clone / name)
    place.shell.cwd = clone


def _index(place: Place) -> None:
    """pip and uv find what the pages name; an sdist of PyG's lies in downloads/."""
    (place.work / "downloads").mkdir()
    shutil.copy(
        place.house.wheels / "torchsort-0.1.5.tar.gz", place.work / "downloads" / "torch_scatter-2.1.2.tar.gz"
    )


def cuda(place: Place) -> None:
    """torch for CUDA 13.0, of which only the files matter, and such a toolkit on PATH."""
    fake_torch(place.root / "site")
    place.set(PYTHONPATH=str(place.root / "site"))
    place.shell.stands_for[CUDA_HOME] = str(fakes.toolkit(place.root / "usr" / "cuda-13.0"))
    place.put_on_path(place.root / "usr" / "cuda-13.0" / "bin")


def _two_toolkits(place: Place) -> None:
    """A second toolkit, of another version, which comes first on PATH."""
    old = fakes.toolkit(place.root / "usr" / "cuda-12.8", "12.8")
    place.shell.stands_for["/usr/local/cuda-12.8"] = str(old)
    place.put_on_path(old / "bin")


def _old_toolkit_only(place: Place) -> None:
    """No toolkit but one of another major version than torch's is named."""
    _two_toolkits(place)
    place.set(CUDA_HOME=place.shell.stands_for["/usr/local/cuda-12.8"])


def _built(place: Place) -> None:
    """A build was there before."""
    shutil.copytree(place.house.cache, place.root / "cache", symlinks=True, dirs_exist_ok=True)


def _running(place: Place) -> None:
    """A build runs, within pip that says nothing."""
    busy = project(place.root / "elsewhere" / "my-kernels", "standin", seconds=60)
    command = [str(place.python), "-m", "pip", "install", "-q", "--no-deps", "."]
    process = subprocess.Popen(
        command, cwd=busy, env=place.shell.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    place.cleanup.callback(process.wait, timeout=30)
    place.cleanup.callback(place.safe_ext_build, "kill", "--all")
    deadline = time.monotonic() + 60
    while ".cu" not in (listed := place.safe_ext_build("builds")):
        assert time.monotonic() < deadline and process.poll() is None, "the build did not begin to compile"
        time.sleep(0.2)
    place.shell.stands_for["4f2a9c81d07e"] = listed.split()[0]


def _system(place: Place) -> None:
    """What installs packages of a distribution, or fetches, does nothing here."""
    for name in ("apt-get", "nvidia-smi"):
        fakes.script(place.root / "system" / name, f'echo "(stand-in) {name} $*"')
    place.put_on_path(place.root / "system")


def _cmake(place: Place) -> None:
    """A CMakeLists.txt beside it, and a cmake: a stand-in where there is none."""
    (place.work / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(thing LANGUAGES NONE)\n"
    )
    if shutil.which("cmake") is None:
        fakes.script(place.root / "system" / "cmake", 'echo "(stand-in) cmake $*"')
        place.put_on_path(place.root / "system")


def _built_wheel(place: Place) -> None:
    """A wheel of flash-attn's name lies in dist/."""
    (place.work / "dist").mkdir()
    (place.root / "empty").mkdir()
    publish_wheel(place.root / "empty", "flash_attn-2.8.3", place.work / "dist")


def _context(place: Place) -> None:
    """A project in what is a container: its root is empty, its cache lasts."""
    _kernels(place)
    place.shell.stands_for |= {
        "/wheels": str(place.root / "image" / "wheels"),
        "/root/.cache": str(place.root / "cache"),
    }


def _app(place: Place) -> None:
    """Another environment, at /srv/app/.venv."""
    place.shell.stands_for["/srv/app/.venv"] = str(place.python.parent.parent)


def _isolated(place: Place) -> None:
    """pip and uv make an environment for each build, as they do unless they are told otherwise."""
    for name in ("PIP_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION"):
        place.shell.environ.pop(name)


SCENES: Mapping[str, Scene] = {
    "nothing": lambda place: None,
    "kernels": _kernels,
    "projects": _two_projects,
    "clone": _clone,
    "index": _index,
    "two-toolkits": _two_toolkits,
    "old-toolkit": _old_toolkit_only,
    "built": _built,
    "running": _running,
    "system": _system,
    "app": _app,
    "built-wheel": _built_wheel,
    "context": _context,
    "cmake": _cmake,
    "fish": lambda place: (place.root / "home" / ".config" / "fish" / "completions").mkdir(parents=True),
    REAL: lambda place: None,
    "isolated": _isolated,
    "farm": docs_farm.farm,
}
"""By name. Without `isolated`, pip and uv build as with `--no-build-isolation`: it takes a third of the time."""


# --- the house and its places ---


def make_house(root: Path, wheelhouse: Path) -> House:
    """Wheels, the stand-in compiler, and the traces of one build."""
    wheels = root / "wheels"
    shutil.copytree(wheelhouse, wheels, ignore=shutil.ignore_patterns("source"))
    needed = ["setuptools", "ninja", "packaging", "psutil", "wheel"]
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-d", str(wheels), *needed]
    subprocess.run(command, check=True)
    for name in PUBLISHED:
        publish(name, wheels)
    publish_wheel(fake_torch(root / "torch"), "torch-2.14.1+cu130", wheels)
    publish_wheel(root / "einops", "einops-0.8.1", wheels)
    write_index(wheels, root / "simple")
    compiler = root / "compiler" / "nvcc"
    compiler.parent.mkdir()
    subprocess.run(["gcc", "-O1", str(PROJECTS / "standin" / "standin.c"), "-o", str(compiler)], check=True)
    return House(wheels, compiler, root / "cache")


def _make_place(root: Path, house: House, python: Path, environ: Mapping[str, str], cleanup: ExitStack) -> Place:
    for name in ("work", "home", "run", "workspaces", "cache"):
        (root / name).mkdir(parents=True)
    (root / "run").chmod(0o700)
    scripts = Path(sysconfig.get_path("scripts"))
    for name in ("uv", "tox", "cibuildwheel", "pytest"):
        if (scripts / name).exists():
            (python.parent / name).symlink_to(scripts / name)
    _script(python, "pip", "from pip._internal.cli.main import main")
    _script(python, "safe-ext-build", "from safe_ext_build.cli.main import main")
    variables = {
        **environ,
        "PATH": f"{python.parent}:{environ['PATH']}",
        "HOME": str(root / "home"),
        "VIRTUAL_ENV": str(python.parent.parent),
        "XDG_CACHE_HOME": str(root / "cache"),
        # Where builds of one user meet: these are not to be seen by what else runs here.
        "XDG_RUNTIME_DIR": str(root / "run"),
        "SAFE_EXT_BUILD_WORKSPACE_DIR": str(root / "workspaces"),
        "CUDA_VISIBLE_DEVICES": "",  # as on the pages, there is no GPU
        "STANDIN_COMPILER": str(house.compiler),
        "PIP_FIND_LINKS": str(house.wheels),
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # as pip reads it, this turns isolation off
        "TOX_OVERRIDE": "testenv:.pkg.pass_env+=STANDIN_COMPILER",
        "UV_DEFAULT_INDEX": (house.wheels.parent / "simple").as_uri(),
        "UV_NO_BUILD_ISOLATION": "1",
        "UV_CACHE_DIR": str(house.wheels.parent / "uv"),
    }
    return Place(root, house, python, Shell(root, root / "work", variables), cleanup)


def new_place(root: Path, house: House, wheelhouse: Path, cleanup: ExitStack) -> Place:
    """A new place with nothing in it but an environment, which holds what the tests' own has."""
    from frontend_fixtures import make_target  # a plugin: pytest wants to be the first who imports it

    # Without compiled modules each of a build's processes would compile ours anew.
    foreign = {*foreign_variables(), "PYTHONDONTWRITEBYTECODE", "PIP_CONSTRAINT", "UV_INDEX"}
    environ = {name: value for name, value in os.environ.items() if name not in foreign}
    root.mkdir(parents=True)
    return _make_place(root, house, make_target(root / "env", wheelhouse), environ, cleanup)


def _script(python: Path, name: str, line: str) -> None:
    """A program of the environment, as pip would have written it."""
    path = python.parent / name
    path.write_text(f"#!{python}\nimport sys\n{line}\nsys.exit(main())\n")
    path.chmod(0o755)
