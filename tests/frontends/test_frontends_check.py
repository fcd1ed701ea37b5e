"""What a build has made is checked, and CUDA that is required is there: cases 53, 65, 66 and 94."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest
from frontend_runs import ARCHS, Ground, copy_project, is_pure, on_cuda, on_torch, only_wheel, write_project

from safe_ext_build.verify import elf

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

REQUIRED = {"SAFE_EXT_BUILD_REQUIRE_CUDA": "true"}


# --- modules that cannot load


def forgetful(project: Path) -> Path:
    """The C extension with a function that is defined in a file which the setup script does not name."""
    source = project / "csrc" / "module.c"
    source.write_text(source.read_text().replace("FromLong(42)", "FromLong(forty_two())") + "\n")
    source.write_text("long forty_two(void);\n" + source.read_text())
    (project / "csrc" / "numbers.c").write_text("long forty_two(void) { return 42; }\n")
    return project


def test_undefined_symbol_fails_the_build(ground: Ground, tmp_path: Path) -> None:
    run = ground.hook(forgetful(copy_project("host_only", tmp_path)), "build_wheel", str(tmp_path / "dist"))
    assert run.status == 1 and "Traceback" not in run.output
    assert run.says("error[SEB-7106]: host_only._C cannot be loaded with torch ", "undefined symbol forty_two"), (
        run.output
    )
    assert run.says(
        "hint: csrc/numbers.c seems to define it, and is not in the `sources` of the setup script: add it"
    )
    assert not (tmp_path / "dist").exists()


def test_undefined_symbol_fails_an_editable_build(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    run = ground.hook(project, "build_editable", str(tmp_path / "dist")).check()
    assert run.says("host_only._C: loads")
    before = only_wheel(tmp_path / "dist").read_bytes()
    run = ground.hook(forgetful(project), "build_editable", str(tmp_path / "dist"))
    assert run.status == 1
    assert run.says("error[SEB-7106]: host_only._C cannot be loaded with torch ", "undefined symbol forty_two"), (
        run.output
    )
    assert only_wheel(tmp_path / "dist").read_bytes() == before, "what was there is still there"


def test_opting_out(ground: Ground, tmp_path: Path) -> None:
    project = forgetful(copy_project("host_only", tmp_path))
    run = ground.hook(project, "build_wheel", str(tmp_path / "dist"), SAFE_EXT_BUILD_CHECK="false").check()
    assert not run.says("host_only._C")
    assert not is_pure(only_wheel(tmp_path / "dist"))


def test_declared_module_that_was_given_up(ground: Ground, tmp_path: Path) -> None:
    setup = (
        "from setuptools import Extension, setup\n"
        "from setuptools.command.build_ext import build_ext\n"
        "class Careless(build_ext):\n"
        "    def build_extension(self, ext):\n"
        "        print('no', ext.name, 'today')\n"
        "names = ['sample._a', 'sample._b']\n"
        "modules = [Extension(name, ['a.c'], optional=name == 'sample._b') for name in names]\n"
        "setup(packages=['sample'], ext_modules=modules, cmdclass={'build_ext': Careless})\n"
    )
    run = ground.hook(write_project(tmp_path, setup), "build_wheel", str(tmp_path)).check()
    assert run.says("warning: sample._a was not built: the setup script declares it, and went on without")
    assert run.says("sample._b was not built, which the setup script says is optional")


@on_cuda
def test_cuda_source_that_is_not_listed(ground: Ground, tmp_path: Path) -> None:
    project = copy_project("tiny_cuda", tmp_path)
    setup = project / "setup.py"
    setup.write_text(setup.read_text().replace(', "csrc/versions.cu"', ""))
    run = ground.hook(project, "build_wheel", str(tmp_path / "dist"), TORCH_CUDA_ARCH_LIST=ARCHS)
    assert run.status == 1
    assert run.says(
        "error[SEB-7106]: tiny_cuda._C cannot be loaded with torch", "undefined symbol compiled_with(int*, int*)"
    )
    assert run.says("hint: csrc/versions.cu seems to define it"), run.output
    assert not (tmp_path / "dist").exists()
    # It is the check that fails: what was compiled is kept, and the mended project compiles the rest only.
    shutil.copy(copy_project("tiny_cuda", tmp_path / "again") / "setup.py", setup)
    run = ground.hook(project, "build_wheel", str(tmp_path / "dist"), TORCH_CUDA_ARCH_LIST=ARCHS).check()
    assert run.says("tiny_cuda._C: device code: sm_80; loads with torch")
    assert run.says("compiled 1 object ")


# --- CUDA that is required


@on_cuda
def test_wheel_without_device_code(ground: Ground, tmp_path: Path) -> None:
    """A setup script that falls back to a C++ extension goes through, and what it makes is of no use."""
    run = ground.wheel(copy_project("host_only", tmp_path), "-C", "require-cuda=true")
    assert run.says("error[SEB-7003]: the result has no device code, and -C require-cuda says that it must"), (
        run.output
    )
    assert run.says("hint: The setup script may have skipped its CUDA sources", "FORCE_CUDA=1")
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").iterdir())


SKIPS = (
    "import torch\nfrom setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n"
    "modules = [CUDAExtension('sample._C', ['a.cu'])] if torch.cuda.device_count() > 99 else []\n"
    "setup(packages=['sample'], ext_modules=modules)\n"
)


@on_cuda
def test_setup_script_that_skips_its_cuda_sources(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, SKIPS)
    (project / "a.cu").write_text("__global__ void a() {}\n")
    run = ground.hook(project, "build_wheel", str(tmp_path)).check()
    assert run.says("warning: the result has no extension modules, although the project has CUDA sources (a.cu).")
    run = ground.hook(project, "build_wheel", str(tmp_path), **REQUIRED)
    assert run.says(
        "error[SEB-7003]: the result has no extension modules, and SAFE_EXT_BUILD_REQUIRE_CUDA in the environ"
    )


CPU_VERSION = '__version__ = "2.99.0+cpu"\ncuda = None\nhip = None\n'
# What torch's own helper does where there is neither CUDA nor a toolkit.
CPU_HELPER = (
    "def CUDAExtension(name, sources):\n"
    "    raise OSError('CUDA_HOME environment variable is not set. Please set it to your CUDA install root.')\n"
)


@pytest.fixture
def cpu(ground: Ground, wheelhouse: Path, tmp_path: Path) -> Ground:
    """An environment with a CPU build of torch, as far as its files say."""
    from frontend_fixtures import make_target  # not above: pytest loads it as a plugin, and first

    python = make_target(tmp_path / "cpu", wheelhouse)
    prefix = str(python.parent.parent)
    site = Path(sysconfig.get_path("purelib", vars={"base": prefix, "platbase": prefix}))
    for name, text in {
        "__init__": "",
        "version": CPU_VERSION,
        "utils/__init__": "",
        "utils/cpp_extension": CPU_HELPER,
    }.items():
        (site / "torch" / f"{name}.py").parent.mkdir(exist_ok=True)
        (site / "torch" / f"{name}.py").write_text(text)
    return Ground(ground.environ, python).having(SAFE_EXT_BUILD_TORCH_RUNTIME=prefix)


def test_cpu_torch_where_cuda_is_required(cpu: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, "raise SystemExit('too late')\n")
    run = cpu.hook(project, "build_wheel", str(tmp_path), **REQUIRED)
    assert run.status == 1
    assert run.says(
        "error[SEB-3007]: ", "asks for CUDA, and torch 2.99.0+cpu (CPU only) in ", "is no CUDA build"
    ), run.output
    assert run.says("hint: Install a CUDA build of torch", "--index-url")
    assert "too late" not in run.output


def test_metadata_does_not_ask_for_cuda(cpu: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, "from setuptools import setup\nsetup(packages=['sample'])\n")
    run = cpu.hook(project, "prepare_metadata_for_build_wheel", str(tmp_path), **REQUIRED)
    assert run.check().said == []


def test_undeclared_import(cpu: Ground, tmp_path: Path) -> None:
    run = cpu.hook(write_project(tmp_path, "import cpp_ext_helpers\n"), "build_wheel", str(tmp_path))
    assert run.says("hint: the build needs cpp_ext_helpers", 'add "cpp-ext-helpers" to build-system.requires')


def test_cuda_extension_reached_with_a_cpu_torch(cpu: Ground, tmp_path: Path) -> None:
    setup = "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('sample._C', ['a.cu'])\n"
    run = cpu.hook(write_project(tmp_path, setup), "build_wheel", str(tmp_path))
    assert run.status == 1
    assert run.says("error[SEB-6101]: OSError: CUDA_HOME environment variable is not set"), run.output
    assert run.says("hint: torch 2.99.0+cpu (CPU only) in ", "cannot build CUDA extensions")


# --- the target, named


@on_torch
def test_runtime_is_named(ground: Ground, tmp_path: Path) -> None:
    project = write_project(tmp_path, "# torch\nfrom setuptools import setup\nsetup(packages=['sample'])\n")
    options = ("-v", "--no-deps", "-w", "../dist", "-C", f"torch.runtime={ground.prefix}")
    run = ground.isolating_pip("wheel", *options, ".", cwd=project).check()
    assert run.says("building against torch ", f" of {ground.prefix}, which will import the result"), run.output


def test_runtime_that_does_not_exist(ground: Ground, tmp_path: Path) -> None:
    project = write_project(
        tmp_path, "from setuptools import setup\nsetup(setup_requires=[], packages=['sample'])\n"
    )
    run = ground.wheel(project, "-C", "torch.runtime=nowhere")
    assert run.status == 1 and "Traceback" not in run.output
    assert run.says(f"error[SEB-3002]: -C torch.runtime is {project / 'nowhere'}, which does not exist"), (
        run.output
    )


@on_torch
def test_another_torch_at_run_time_is_told_before_compiling(ground: Ground, cpu: Ground, tmp_path: Path) -> None:
    project = copy_project("host_only", tmp_path)
    declared = Ground(cpu.environ, ground.python).having(SAFE_EXT_BUILD_TORCH_MATCH="declared")
    run = declared.hook(project, "build_wheel", str(tmp_path)).check()
    version = ground.evaluate("torch", "torch.__version__")
    assert run.says(f"warning: the result is for torch {version}, and {cpu.prefix} ", "has torch 2.99.0+cpu")
    assert run.output.index("the result is for torch") < run.output.index("running bdist_wheel")


@on_torch
def test_wheel_that_requires_its_torch(ground: Ground, tmp_path: Path) -> None:
    """RECORD is right: pip installs it."""
    project = write_project(tmp_path, "from setuptools import setup\nsetup(packages=['sample'])\n")
    ground.wheel(project, "-C", "torch.pin=true").check()
    wheel = only_wheel(tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("sample-1.0.dist-info/METADATA").decode()
    release = ground.evaluate("torch", "'.'.join(torch.__version__.split('.')[:2])")
    assert f"Requires-Dist: torch=={release}.*\n" in metadata
    ground.pip("install", "--no-deps", "--target", tmp_path / "lib", wheel, cwd=tmp_path).check()
    assert not (project / "PKG-INFO").exists()


@on_torch
def test_wheel_that_names_its_torch_in_its_version(ground: Ground, tmp_path: Path) -> None:
    """pip sees one version in metadata and wheel, and installs it; the sdist keeps the project's own."""
    project = write_project(tmp_path, "from setuptools import setup\nsetup(packages=['sample'])\n")
    label = ground.having(SAFE_EXT_BUILD_TORCH_LABEL="1")
    label.pip(
        "install", "--no-build-isolation", "--no-deps", "--target", tmp_path / "lib", project, cwd=tmp_path
    ).check()
    version = ground.evaluate("torch", "'.'.join(torch.__version__.split('.')[:2])")
    cuda = ground.evaluate("torch", "torch.version.cuda.replace('.', '')")
    assert (tmp_path / "lib" / f"sample-1.0+cu{cuda}torch{version}.dist-info" / "RECORD").exists()
    label.hook(project, "build_sdist", str(tmp_path)).check()
    assert (tmp_path / "sample-1.0.tar.gz").exists()


# --- the reader, on what the real compiler writes


# CUDA compresses by default what is worth it; `none` and `size` are nothing and all of it.
@on_cuda
@pytest.mark.parametrize("mode", ["default", "none", "size"])
def test_device_code_is_read(mode: str, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *a) { a[threadIdx.x] *= 2.f; }\n")
    gencodes = ["compute_80,code=sm_80", "compute_90a,code=sm_90a", "compute_90,code=compute_90"]
    options = [f"-gencode=arch={gencode}" for gencode in gencodes]
    if mode != "default":
        options.append(f"--compress-mode={mode}")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    command = [nvcc, *options, "-shared", "-Xcompiler", "-fPIC", "k.cu", "-o", "k.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = elf.read(tmp_path / "k.so")
    assert [str(code) for code in library.codes] == ["sm_80", "compute_90", "sm_90a"]
    assert "libc.so.6" in library.needed
