from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from safe_ext_build.errors import TorchError
from safe_ext_build.toolchain import borrow, target
from safe_ext_build.toolchain.borrow import Borrowed, Module
from safe_ext_build.toolchain.target import Environment

CLEAN = {"PATH": os.environ.get("PATH", os.defpath)}


def make_venv(directory: Path) -> Path:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    return directory


def site_packages(prefix: Path) -> Path:
    return prefix / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"


def add(
    site: Path,
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    *,
    requires: Sequence[str] = (),
    record: bool = True,
) -> Path:
    """Install a distribution, as pip leaves it; its metadata directory."""
    files = {f"{name}.py": f"where = {site.parts[-4]!r}"} if files is None else files
    info = site / f"{name}-{version}.dist-info"
    for file, text in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nA description.\n")
    if record:
        recorded = [*files, f"{info.name}/METADATA", "../../../bin/tool", "__pycache__/x.pyc"]
        (info / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in recorded))
    return info


TORCH_REQUIRES = (
    "setuptools>=77",
    "Dotted.Name>=1",
    'cuda-toolkit[cublas]==13; sys_platform != "nowhere"',
    'elsewhere; sys_platform == "nowhere"',
    'optree; extra == "optree"',
    "not-installed",
    "shared",
    "not a requirement ][",
)


def fill_target(site: Path) -> None:
    version = "__version__ = '2.14.1+cu130'\ndebug = False\n"
    files = {"torch/__init__.py": "from .version import __version__", "torch/version.py": version}
    add(site, "torch", "2.14.1", {**files, "functorch/__init__.py": ""}, requires=TORCH_REQUIRES)
    add(site, "setuptools", "80", {"setuptools/__init__.py": "", "_distutils_hack/__init__.py": ""})
    add(site, "dotted_name", "1.5", {"dotted/__init__.py": ""}, requires=["deep"])
    add(site, "deep", "1", requires=["dotted-name"])  # a circle
    add(site, "cuda_toolkit", "13", {}, requires=['nv-blas; extra == "cublas"', 'nv-fft; extra == "fft"'])
    add(site, "nv_blas", "1", {"nv/blas/__init__.py": "", "nv/blas/lib/libblas.so.13": ""})
    add(site, "nv_fft", "1", {"nvfft.py": ""})
    add(site, "shared", "1")
    add(site, "elsewhere", "1")
    add(site, "optree", "1")
    plugin = add(site, "plugin", "1")
    (plugin / "entry_points.txt").write_text("[setuptools.finalize_distribution_options]\nx = plugin:x\n")


@dataclass(frozen=True)
class Build:
    """A target that lends, and a build environment that borrows."""

    target: Environment
    own: Environment
    environ: dict[str, str]
    borrowed: Borrowed

    def run(self, code: str, *flags: str, environ: Mapping[str, str] | None = None) -> str:
        command = [str(self.own.python), *flags, "-c", textwrap.dedent(code)]
        env = {**self.environ, **(environ or {})}
        # Somewhere else than here, where our own metadata may lie.
        done = subprocess.run(command, env=env, cwd=self.own.prefix, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return done.stdout.strip()


def described(prefix: Path) -> Environment:
    said = target.ask(prefix / "bin" / "python", CLEAN)
    assert said is not None
    return said


def lend(own: Environment, lender: Environment, directory: Path) -> Build:
    assert lender.torch is not None
    borrowed = borrow.borrow(lender, lender.torch)
    borrow.install_site(directory / "site")
    borrow.write_config(borrowed, directory / "config")
    environ = borrow.environment(directory / "site", directory / "config", CLEAN)
    return Build(lender, own, environ, borrowed)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    root = tmp_path_factory.mktemp("borrow")
    lender, own = make_venv(root / "lender"), make_venv(root / "own")
    fill_target(site_packages(lender))
    site = site_packages(own)
    add(site, "setuptools", "84", {"setuptools/__init__.py": "where = 'own'"})
    add(site, "shared", "2")
    add(site, "nv_nvcc", "1", {"nv/nvcc/__init__.py": ""})
    return lend(described(own), described(lender), root / "späce")


@pytest.fixture(scope="module")
def torch_site(build: Build) -> Path:
    assert build.target.torch is not None
    return build.target.torch.parent


# --- what is lent


def test_torch_and_what_it_requires_is_lent(build: Build, torch_site: Path) -> None:
    assert set(build.borrowed.modules) == {
        Module("torch", torch_site, "torch"),
        Module("functorch", torch_site, "torch"),
        Module("dotted", torch_site, "module"),
        Module("deep", torch_site, "module"),
        Module("nv", torch_site, "namespace"),
        Module("shared", torch_site, "module"),
    }
    names = [name for name, _ in build.borrowed.distributions]
    assert names[0] == "torch"
    assert set(names) == {"torch", "dotted-name", "deep", "cuda-toolkit", "nv-blas", "shared"}
    assert dict(build.borrowed.distributions)["torch"] == torch_site / "torch-2.14.1.dist-info"
    assert build.borrowed.version == "2.14.1+cu130"


def test_a_torch_in_development_lends_what_lies_beside_it(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "a" / "lib" / "x" / "site"
    for name in ("torch", "torchgen"):
        (source / name).mkdir(parents=True)
        (source / name / "__init__.py").touch()
    add(site, "torch", "2.15.0a0", {"__editable__.torch.pth": "import x"}, requires=["linked", "named"])
    add(site, "linked", "1", {"_linked.pth": "/elsewhere"}, record=False)
    info = add(site, "named", "1", {}, record=False)
    (info / "top_level.txt").write_text("by_name\n")
    (source / "linked.py").touch()
    (source / "by_name").mkdir()
    (source / "by_name" / "__init__.py").touch()
    lender = replace(OWN, path=(str(site),), torch=source / "torch")
    lent = borrow.borrow(lender, source / "torch")
    assert {(m.name, m.location, m.kind) for m in lent.modules} == {
        ("torch", source, "torch"),
        ("torchgen", source, "torch"),
        ("linked", source, "module"),
        ("by_name", source, "module"),
    }
    assert lent.version == "of unknown version"


def test_metadata_of_an_interrupted_uninstallation_is_passed_over(tmp_path: Path) -> None:
    site = tmp_path / "a" / "lib" / "x" / "site"
    (site / "dep-0.9.dist-info").mkdir(parents=True)
    (site / "torch-1.0.dist-info").mkdir()
    add(site, "torch", "2", {"torch/__init__.py": ""}, requires=["dep"])
    add(site, "dep", "1")
    lent = borrow.borrow(replace(OWN, path=(str(site), "/missing")), site / "torch")
    assert dict(lent.distributions) == {
        "torch": site / "torch-2.dist-info",
        "dep": site / "dep-1.dist-info",
    }


# --- what a build's Python sees


def test_torch_is_imported_from_the_target(build: Build, torch_site: Path) -> None:
    said = build.run("import torch, functorch, torch.version; print(torch.__file__, torch.__version__)")
    assert said == f"{torch_site / 'torch' / '__init__.py'} 2.14.1+cu130"


def test_child_pythons_see_it(build: Build) -> None:
    child = "import torch; print(torch.__version__)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert build.run(code) == "2.14.1+cu130"


def test_what_is_required_comes_along(build: Build) -> None:
    assert build.run("import dotted, deep, nv.blas; print(deep.where)") == "lender"


def test_what_is_isolated_wins(build: Build) -> None:
    assert build.run("import shared, setuptools; print(shared.where, setuptools.where)") == "own own"
    assert build.run("from importlib.metadata import version as v; print(v('shared'), v('setuptools'))") == "2 84"


@pytest.mark.parametrize("name", ["plugin", "_distutils_hack", "pip", "optree", "elsewhere", "nvfft"])
def test_nothing_else_leaks_in(build: Build, name: str) -> None:
    code = f"import importlib.util as u; print(u.find_spec({name!r}))"
    assert build.run(code) == "None"


def test_the_path_is_the_builds_own(build: Build) -> None:
    leaked = [
        entry for entry in build.run("import sys; print(*sys.path, sep='\\n')").splitlines() if "lender" in entry
    ]
    assert not leaked


def test_metadata_is_served_by_name_only(build: Build) -> None:
    code = """
        from importlib.metadata import distribution, distributions, entry_points, version
        print(version("torch"), version("Dotted.Name"), distribution("nv_blas").metadata["Name"])
        print(sorted(d.metadata["Name"] for d in distributions()))
        print(list(entry_points(group="setuptools.finalize_distribution_options")))
        try:
            version("plugin")
        except ImportError as error:
            print(type(error).__name__)
    """
    assert build.run(code).splitlines() == [
        "2.14.1 1.5 nv_blas",
        "['nv_nvcc', 'setuptools', 'shared']",
        "[]",
        "PackageNotFoundError",
    ]


def test_namespaces_are_merged(build: Build, torch_site: Path) -> None:
    own = next(entry for entry in build.own.path if entry.endswith("site-packages"))
    code = """
        import nv.nvcc, nv.blas, importlib.util, sys
        print(*nv.__path__, sep="\\n")
        sys.path.append("/changed")
        importlib.invalidate_caches()
        import importlib
        importlib.reload(nv.blas)
    """
    assert build.run(code).splitlines() == [f"{own}/nv", f"{torch_site}/nv"]


def test_a_regular_package_is_not_merged(build: Build, tmp_path: Path) -> None:
    (tmp_path / "nv").mkdir()
    (tmp_path / "nv" / "__init__.py").write_text("where = 'regular'")
    path = os.pathsep.join([build.environ["PYTHONPATH"], str(tmp_path)])
    assert build.run("import nv; print(nv.where)", environ={"PYTHONPATH": path}) == "regular"


def test_a_declared_torch_is_shadowed(build: Build, tmp_path: Path) -> None:
    site = tmp_path / "declared" / "lib" / "x" / "site"
    add(site, "torch", "2.13.0", {"torch/__init__.py": "__version__ = '2.13.0'"})
    path = os.pathsep.join([build.environ["PYTHONPATH"], str(site)])
    code = "import torch, importlib.metadata as m; print(torch.__version__, m.version('torch'))"
    assert build.run(code, environ={"PYTHONPATH": path}) == "2.14.1+cu130 2.14.1"


# --- sitecustomize


@pytest.mark.parametrize("flag", ["-S", "-I", "-E", "-s", "-B"])
def test_any_flags_will_do(build: Build, flag: str) -> None:
    assert build.run("print('fine')", flag) == "fine"


PIPS = """
import os, site, sys

# First, drop system-sites related paths.
original_sys_path = sys.path[:]
known_paths = set()
for path in {system_sites!r}:
    site.addsitedir(path, known_paths=known_paths)
system_paths = set(
    os.path.normcase(path)
    for path in sys.path[len(original_sys_path):]
)
original_sys_path = [
    path for path in original_sys_path
    if os.path.normcase(path) not in system_paths
]
sys.path = original_sys_path

# Second, add lib directories.
# ensuring .pth file are processed.
for path in {lib_dirs!r}:
    assert not path in sys.path
    site.addsitedir(path)
"""


def test_pips_own_isolation_is_chained(build: Build, tmp_path: Path) -> None:
    """As pip does it: the same interpreter, whose site-packages a sitecustomize takes away again."""
    overlay = tmp_path / "overlay" / "lib" / "x" / "site"
    add(overlay, "shared", "3")
    (overlay / "finder.pth").write_text("import finder_of_isolated\n")
    (overlay / "finder_of_isolated.py").write_text("import sys; sys.meta_path.append(lambda: None)\n")
    (tmp_path / "site").mkdir()
    own_site = str(site_packages(build.own.prefix))
    text = PIPS.format(system_sites={own_site}, lib_dirs=[str(overlay)])
    (tmp_path / "site" / "sitecustomize.py").write_text(text)
    path = os.pathsep.join([build.environ["PYTHONPATH"], str(tmp_path / "site")])
    code = f"""
        import sys
        first, *_, finder, last = sys.meta_path
        print({own_site!r} in sys.path, {str(overlay)!r} in sys.path)
        print(type(first) is type(last), type(finder).__name__)
        print(sys.modules["sitecustomize"].__file__, sys.modules["sitecustomize"].__spec__.name)
        sys.meta_path.remove(finder)
        import torch, shared
        print(torch.__version__, shared.where)
    """
    environ = {"PYTHONPATH": path, "PYTHONNOUSERSITE": "1"}
    assert build.run(code, environ=environ).splitlines() == [
        "False True",
        "True function",
        f"{tmp_path / 'site' / 'sitecustomize.py'} sitecustomize",
        "2.14.1+cu130 overlay",
    ]


def test_nested_builds_install_once(build: Build, tmp_path: Path) -> None:
    borrow.install_site(tmp_path)
    environ = borrow.environment(tmp_path, Path(build.environ[borrow.CONFIG_VARIABLE]), build.environ)
    assert environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), build.environ["PYTHONPATH"]]
    code = "import sys; print([type(f).__name__ for f in sys.meta_path].count('_Lender'))"
    assert build.run(code, environ=environ) == "2"


def test_another_abi_is_left_alone(build: Build, tmp_path: Path) -> None:
    borrow.write_config(replace(build.borrowed, abi=".cpython-399-x86_64-linux-gnu.so"), tmp_path / "config")
    environ = {borrow.CONFIG_VARIABLE: str(tmp_path / "config")}
    assert build.run("import importlib.util as u; print(u.find_spec('torch'))", environ=environ) == "None"


def stderr_of(build: Build, environ: Mapping[str, str]) -> str:
    command = [str(build.own.python), "-c", "print('fine')"]
    done = subprocess.run(command, env={**build.environ, **environ}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "fine\n")
    return done.stderr


def test_a_lost_config_is_said_in_one_line(build: Build, tmp_path: Path) -> None:
    said = stderr_of(build, {borrow.CONFIG_VARIABLE: str(tmp_path / "gone")})
    assert said.startswith("safe-ext-build: error[SEB-3008]: cannot borrow torch: ") and said.count("\n") == 1
    (tmp_path / "empty").touch()
    for harmless in ("", str(tmp_path / "empty")):
        assert not stderr_of(build, {borrow.CONFIG_VARIABLE: harmless})


def test_an_error_in_the_chained_module_is_shown_as_its_own(build: Build, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine')")
    path = os.pathsep.join([build.environ["PYTHONPATH"], str(tmp_path)])
    said = stderr_of(build, {"PYTHONPATH": path})
    assert said.splitlines()[-1] == "RuntimeError: mine"
    code = "import contextlib, io; import torch; print(torch.__version__)"
    command = [str(build.own.python), "-c", code]
    out = subprocess.run(command, env={**build.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert out.stdout == "2.14.1+cu130\n"


def test_starting_a_python_costs_little(build: Build) -> None:
    """2 ms were measured; the best of ten pairs leaves out what else the machine does."""

    def start(environ: Mapping[str, str]) -> float:
        before = time.perf_counter()
        subprocess.run([str(build.own.python), "-c", ""], env=dict(environ), check=True)
        return time.perf_counter() - before

    pairs = [(start(CLEAN), start(build.environ)) for _ in range(10)]
    assert min(ours for _, ours in pairs) - min(plain for plain, _ in pairs) < 0.01


# --- decisions

OWN = Environment(
    python=Path("/own/bin/python"),
    prefix=Path("/own"),
    version=(3, 11),
    abi=".cpython-311-x86_64-linux-gnu.so",
    path=(),
    torch=None,
)


def torch_in(directory: Path, version: str) -> Path:
    """A site directory with a torch in it; the package."""
    text = f"__version__: str = {version!r}\n"
    add(directory, "torch", version.partition("+")[0], {"torch/__init__.py": "", "torch/version.py": text})
    return directory / "torch"


@pytest.fixture
def declared(tmp_path: Path) -> Environment:
    site = tmp_path / "declared" / "lib" / "x" / "site"
    return replace(OWN, torch=torch_in(site, "2.13.0"), path=(str(site),))


def test_the_target_lends(build: Build) -> None:
    source = borrow.decide(build.own, build.target, "runtime")
    assert (source.kind, source.package, source.borrowed) == ("borrowed", build.target.torch, build.borrowed)
    assert source.line == (
        f"building against torch 2.14.1+cu130 of {build.target.prefix}, which will import the result"
    )


def test_a_declared_torch_of_another_version_is_named(build: Build, declared: Environment) -> None:
    own = replace(build.own, torch=declared.torch)
    source = borrow.decide(own, build.target, "runtime")
    assert source.kind == "borrowed"
    assert source.line == (
        f"building against torch 2.14.1+cu130 of {build.target.prefix}, which will import the result; "
        "the build environment's own torch 2.13.0 is not used"
    )


def test_the_target_itself_needs_nothing(build: Build) -> None:
    assert borrow.decide(build.target, build.target, "runtime") == borrow.TorchSource(
        "own", build.target.torch, ""
    )
    nested = replace(build.own, torch=build.target.torch)  # through system-site-packages
    assert borrow.decide(nested, build.target, "runtime").kind == "own"


def test_declared_means_the_projects_own(build: Build, declared: Environment) -> None:
    found = borrow.decide(declared, build.target, "declared")
    assert (found.kind, found.package, found.line) == ("declared", declared.torch, "")
    source = borrow.decide(build.own, build.target, "declared")
    assert (source.kind, source.package) == ("none", None)
    assert source.line == (
        "no torch to build against: torch.match is `declared`, and build-system.requires has no torch"
    )


def test_without_a_target_what_is_declared_is_used(build: Build, declared: Environment) -> None:
    source = borrow.decide(declared, None, "runtime", "uv names no environment")
    assert source.kind == "declared"
    assert source.line == ("building against the build environment's own torch 2.13.0: uv names no environment")
    assert borrow.decide(build.own, None, "runtime").kind == "none"


def test_a_target_without_torch_lends_nothing(build: Build, declared: Environment) -> None:
    empty = replace(OWN, prefix=Path("/empty"))
    source = borrow.decide(declared, empty, "runtime", "VIRTUAL_ENV of uv")
    assert (source.kind, source.package) == ("declared", declared.torch)
    assert source.line == (
        "building against the build environment's own torch 2.13.0: /empty (VIRTUAL_ENV of uv) has no torch"
    )
    assert borrow.decide(OWN, empty, "runtime").line == "no torch to build against: /empty has no torch"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": (3, 10)}, "is for Python 3.10, and the build runs Python {}.{}"),
        (
            {"abi": ".cpython-399t-x86_64-linux-gnu.so"},
            "is for cpython-399t-x86_64-linux-gnu, and the build runs",
        ),
    ],
)
def test_another_python_is_refused(
    build: Build, declared: Environment, change: dict[str, object], reason: str
) -> None:
    other = replace(build.target, **change)  # type: ignore[arg-type]
    refused = borrow.decide(build.own, other, "runtime")
    assert (refused.kind, refused.borrowed) == ("none", None)
    assert f"the torch of {other.prefix} {reason.format(*sys.version_info)}" in refused.line
    own = replace(build.own, torch=declared.torch)
    assert borrow.decide(own, other, "runtime").kind == "declared"


@pytest.mark.parametrize(
    ("name", "version", "refused"),
    [
        ("setuptools", "76.1", "setuptools>=77, and the build environment has setuptools 76.1"),
        ("setuptools", "77", ""),
        ("setuptools", "78rc1", ""),
        ("Dotted_Name", "0.9", "Dotted.Name>=1, and the build environment has Dotted.Name 0.9"),
        ("cuda_toolkit", "12.9", "cuda-toolkit==13, and the build environment has cuda-toolkit 12.9"),
        ("elsewhere", "0", ""),
        ("optree", "0", ""),
        ("setuptools", "no-version", ""),
    ],
)
def test_an_isolated_package_that_torch_forbids_is_refused(
    build: Build, tmp_path: Path, name: str, version: str, refused: str
) -> None:
    site = tmp_path / "own" / "lib" / "x" / "site"
    add(site, name, version)
    own = replace(build.own, path=(str(site),))
    expected = f"the torch of {build.target.prefix} requires {refused}" if refused else ""
    assert borrow.refuse(own, build.target) == expected
    assert borrow.decide(own, build.target, "runtime").kind == ("none" if refused else "borrowed")


# --- another torch than the target's, and a target that is named


def test_another_torch_than_the_targets_is_told(build: Build, declared: Environment) -> None:
    where = f"{build.target.prefix} (the environment of pip)"
    text = (
        f"the result is for torch 2.13.0, and {where} has torch 2.14.1+cu130: it may not load there. "
        "Let the project depend on torch==2.13.0, or build against the other"
    )
    assert borrow.decide(declared, build.target, "declared", "the environment of pip").warning == text
    other = replace(build.target, version=(3, 10))
    assert "(the environment of pip) has torch 2.14.1+cu130" in (
        borrow.decide(declared, other, "runtime", "the environment of pip").warning
    )


def test_the_same_torch_is_no_news(build: Build, declared: Environment) -> None:
    empty = replace(OWN, prefix=Path("/empty"))
    for own, lender, match in [
        (replace(build.own, torch=build.target.torch), build.target, "declared"),
        (declared, empty, "declared"),
        (declared, None, "declared"),
        (declared, empty, "runtime"),
        (declared, build.target, "runtime"),
    ]:
        assert borrow.decide(own, lender, match, "somewhere").warning == ""  # type: ignore[arg-type]


def test_a_named_target_must_do(build: Build, declared: Environment) -> None:
    source = borrow.decide(declared, build.target, "runtime", "-C torch.runtime", named=True)
    assert (source.kind, source.package) == ("borrowed", build.target.torch)
    empty = replace(OWN, prefix=Path("/empty"))
    other = replace(build.target, version=(3, 10))
    for lender, reason in [
        (empty, "/empty (-C torch.runtime) has no torch, but -C torch.runtime says to build against it"),
        (other, f"the torch of {other.prefix} is for Python 3.10, and the build runs Python "),
    ]:
        with pytest.raises(TorchError, match=re.escape(reason)) as caught:
            borrow.decide(declared, lender, "runtime", "-C torch.runtime", named=True)
        assert "unset torch.runtime" in caught.value.hint
        # With torch.match = declared, it is only what the result is compared with.
        assert borrow.decide(declared, lender, "declared", "-C torch.runtime", named=True).kind == "declared"


# --- the real one


@pytest.mark.torch
def test_the_real_torch_is_borrowed(tmp_path: Path) -> None:
    lender = target.ask(Path(sys.executable), CLEAN)
    assert lender is not None and lender.torch is not None, "the test environment has no torch"
    own = described(make_venv(tmp_path / "own"))
    build = lend(own, lender, tmp_path)
    code = """
        import importlib.util, warnings
        warnings.simplefilter("ignore")  # torch has something to say where numpy is not
        import sympy, torch, typing_extensions
        from importlib.metadata import version
        print(torch.__file__, torch.__version__, version("torch"), float(torch.ones(3).sum()))
        print([n for n in ("pytest", "_pytest", "mypy", "pluggy") if importlib.util.find_spec(n)])
    """
    first, second = build.run(code).splitlines()
    version = borrow.torch_version(lender.torch)
    release = version.partition("+")[0]
    assert first == f"{lender.torch / '__init__.py'} {version} {release} 3.0"
    assert second == "[]"
