from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fakes
import pytest
from test_cuda import debian, found
from test_torch import real_torch

from safe_ext_build.toolchain.compose import complete, lacking, layout
from safe_ext_build.toolchain.cuda import Candidate, Toolkit, discover
from safe_ext_build.toolchain.torch import TorchFacts, read_torch


def toolkit_of(home: Path) -> Toolkit:
    return found(Candidate(str(home), "test"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


@pytest.fixture
def torch(site: Path) -> TorchFacts:
    fakes.wheels(site)
    return read_torch(fakes.torch(site))


@pytest.fixture
def compiler_only(tmp_path: Path) -> Toolkit:
    return toolkit_of(fakes.toolkit(tmp_path / "cuda", math=False))


def test_a_whole_toolkit_is_left_alone(tmp_path: Path, torch: TorchFacts) -> None:
    home = fakes.toolkit(tmp_path / "cuda")
    assert complete(toolkit_of(home), torch, tmp_path / "cache") == home
    assert not (tmp_path / "cache").exists()


def test_a_compiler_is_completed_from_wheels(tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit) -> None:
    home = complete(compiler_only, torch, tmp_path / "cache")
    assert home.parent == tmp_path / "cache" / "toolkits"
    again = toolkit_of(home)
    assert (again.home, again.version, again.missing) == (home, (13, 0), ())
    own = compiler_only.home
    assert (home / "bin/nvcc").resolve() == own / "bin/nvcc"
    assert (home / "include/cuda_runtime.h").resolve() == own / "include/cuda_runtime.h", "its own come first"
    assert (home / "lib64/libcudart.so.13").resolve() == own / "lib64/libcudart.so.13"
    assert (home / "include/cusparse.h").resolve() == torch.include_dirs[0] / "cusparse.h"
    assert (home / "include/cudnn.h").exists()
    assert (home / "lib64/libcublas.so").resolve() == torch.library_dirs[0] / "libcublas.so.13"
    assert (home / "lib/libcudnn.so").samefile(home / "lib64/libcudnn.so.9")
    assert (home / "nvvm/bin/cicc").exists()
    (target,) = (home / "targets").iterdir()
    assert (target / "include/cusparse.h").exists() and (target / "lib/libcudart.so").exists()
    assert lacking(compiler_only, torch) == ()
    assert complete(again, torch, tmp_path / "cache") == home, "and needs nothing more"


def test_wheels_with_nvcc_get_what_links(tmp_path: Path) -> None:
    site = tmp_path / "site"
    fakes.wheels(site)
    cu13 = fakes.toolkit(site / "nvidia" / "cu13", lib="lib")
    (cu13 / "lib" / "libcudart.so").unlink()
    home = complete(toolkit_of(cu13), read_torch(fakes.torch(site)), tmp_path / "cache")
    assert toolkit_of(home).missing == ()
    assert (home / "lib64" / "libcudart.so").resolve() == cu13 / "lib" / "libcudart.so.13"


def test_conda_brings_only_cuda(tmp_path: Path, torch: TorchFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    conda = fakes.toolkit(tmp_path / "conda", lib="targets/x86_64-linux/lib")
    (conda / "include").rename(conda / "targets" / "x86_64-linux" / "include")
    fakes.files(conda, ["include/openssl/ssl.h", "bin/python", "bin/curl", "bin/x86_64-conda-linux-gnu-c++"])
    home = complete(toolkit_of(conda), torch, tmp_path / "cache")
    assert toolkit_of(home).missing == ()
    assert {path.name for path in (home / "bin").iterdir()} == {"nvcc", "nvcc.profile", "ptxas", "cudafe++"}
    assert not (home / "include" / "openssl").exists()


def test_debian_brings_only_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    usr = debian(tmp_path)
    (usr / "include" / "cusparse.h").unlink()
    fakes.files(tmp_path / "nvidia" / "cusparse", ["include/cusparse.h", "lib/libcusparse.so.12"])
    torch = read_torch(fakes.torch(tmp_path, "2.6.0+cu124", "12.4"))
    toolkit = found(Candidate(str(usr / "lib" / "nvidia-cuda-toolkit"), "test"))
    assert toolkit.missing == ("cusparse.h",)
    home = complete(toolkit, torch, tmp_path / "cache")
    assert (home / "bin" / "cicc").resolve() == usr / "lib" / "nvidia-cuda-toolkit" / "bin" / "cicc"
    assert (home / "include" / "cusparse.h").exists()
    # In front of the system's own headers, stdlib.h would break the #include_next of the C++ library.
    assert not (home / "include" / "stdlib.h").exists() and not (home / "lib64" / "libc.so.6").exists()


def test_the_hpc_sdk_is_completed_from_itself(tmp_path: Path) -> None:
    sdk = fakes.toolkit(tmp_path / "25.9" / "cuda" / "13.0", math=False)
    math = tmp_path / "25.9" / "math_libs" / "13.0"
    fakes.files(math, [*(f"include/{name}" for name in fakes.MATH_HEADERS), "lib64/libcublas.so.13"])
    torch = read_torch(fakes.torch(tmp_path))
    home = complete(toolkit_of(sdk), torch, tmp_path / "cache")
    assert toolkit_of(home).missing == ()
    assert (home / "lib64" / "libcublas.so").resolve() == math / "lib64" / "libcublas.so.13"


def test_cccl_is_mixed_by_library(tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit) -> None:
    shutil.rmtree(compiler_only.include / "cccl" / "thrust")
    fakes.files(compiler_only.include / "cccl", ["cub/cub.cuh"])
    fakes.files(torch.include_dirs[0] / "cccl", ["thrust/complex.h", "cub/other.cuh"])
    home = complete(toolkit_of(compiler_only.home), torch, tmp_path / "cache")
    assert toolkit_of(home).missing == ()
    assert not (home / "include" / "cccl" / "cub" / "other.cuh").exists()


def test_wheels_of_another_major_version_are_not_mixed_in(tmp_path: Path, torch: TorchFacts) -> None:
    twelve = toolkit_of(fakes.toolkit(tmp_path / "cuda", "12.8", math=False))
    assert complete(twelve, torch, tmp_path / "cache") == twelve.home
    assert lacking(twelve, torch) == ("cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h")


def test_a_library_of_another_version_does_not_stand_beside_the_toolkits(
    tmp_path: Path, torch: TorchFacts
) -> None:
    home = fakes.toolkit(tmp_path / "cuda", math=False)
    fakes.files(home / "lib64", ["libcusparse.so.11", "libcusparse.so"])
    names = set(layout(toolkit_of(home), torch))
    assert "lib64/libcusparse.so.11" in names and "lib64/libcusparse.so.12" not in names


def test_what_dangles_is_made_again(tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit) -> None:
    cache = tmp_path / "cache"
    home = complete(compiler_only, torch, cache)
    (home / "lib64" / "libcudart.so").unlink()
    (home / "include" / "cusparse.h").unlink()
    (home / "include" / "cusparse.h").symlink_to("/nowhere")
    assert complete(compiler_only, torch, cache) == home
    assert toolkit_of(home).missing == ()
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_another_torch_is_another_directory(tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit) -> None:
    other = tmp_path / "other"
    fakes.wheels(other)
    cache = tmp_path / "cache"
    homes = {complete(compiler_only, facts, cache) for facts in (torch, read_torch(fakes.torch(other)))}
    assert len(homes) == 2


@pytest.mark.parametrize("one_file_system", [True, False])
def test_files_that_will_be_deleted(
    tmp_path: Path,
    torch: TorchFacts,
    compiler_only: Toolkit,
    monkeypatch: pytest.MonkeyPatch,
    one_file_system: bool,
) -> None:
    if not one_file_system:
        monkeypatch.setattr("os.link", refuse)
    site, cache = torch.package.parent, tmp_path / "cache"
    fakes.files(torch.include_dirs[0], ["nvtx3/nvtx3.hpp"])
    home = complete(compiler_only, torch, cache, volatile=[site])
    linked = (home / "include" / "cusparse.h").stat().st_nlink
    assert linked == (2 if one_file_system else 1)
    shutil.rmtree(site)
    assert toolkit_of(home).missing == ()
    assert (home / "lib64" / "libcublas.so").exists() and (home / "include" / "nvtx3" / "nvtx3.hpp").exists()
    assert (home / "bin" / "nvcc").is_symlink(), "what stays is linked by name"
    # The next isolated environment has another path, and the same content.
    elsewhere = tmp_path / "elsewhere"
    fakes.wheels(elsewhere)
    fakes.files(elsewhere / "nvidia" / "cu13" / "include", ["nvtx3/nvtx3.hpp"])
    facts = read_torch(fakes.torch(elsewhere))
    assert complete(compiler_only, facts, cache, volatile=[elsewhere]) == home


def refuse(*_: object, **__: object) -> None:
    raise OSError("another file system")


def test_a_whole_toolkit_that_will_be_deleted_is_kept(tmp_path: Path, torch: TorchFacts) -> None:
    environment = tmp_path / "environment"
    toolkit = toolkit_of(fakes.toolkit(environment / "cuda"))
    home = complete(toolkit, torch, tmp_path / "cache", volatile=[environment])
    shutil.rmtree(environment)
    assert toolkit_of(home).missing == ()


def test_fetched_wheels_are_kept_once_for_all_environments(tmp_path: Path, torch: TorchFacts) -> None:
    cache, homes = tmp_path / "cache", []
    for number, facts in enumerate((torch, read_torch(fakes.torch(tmp_path / "other")))):
        isolated = tmp_path / f"isolated-{number}"
        fetched = fakes.toolkit(isolated / "site" / "nvidia" / "cu13", lib="lib")
        homes.append(complete(toolkit_of(fetched), facts, cache, volatile=[isolated]))
        shutil.rmtree(isolated)
    first, second = homes
    assert (first / "bin" / "nvcc").samefile(second / "bin" / "nvcc")
    assert (first / "lib64" / "libcudart.so").samefile(second / "lib64" / "libcudart.so.13")
    assert os.access(first / "bin" / "nvcc", os.X_OK)
    assert (first / "include" / "cudnn.h").exists() and not (second / "include" / "cudnn.h").exists()
    assert toolkit_of(first).missing == ()


def test_many_builds_at_once(tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: complete(compiler_only, torch, cache), range(32)))
    (home,) = homes
    assert [path.name for path in home.parent.iterdir()] == [home.name]


DIES = """
import os, signal, sys
from pathlib import Path
from safe_ext_build.toolchain import compose, cuda, torch
home, package, cache, when = sys.argv[1:]
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if when == "filling":
    link, left = Path.symlink_to, [20]
    def symlink_to(self, target):
        left[0] -= 1
        die() if not left[0] else link(self, target)
    Path.symlink_to = symlink_to
else:
    Path.rename = die
compose.complete(cuda.probe(cuda.Candidate(home, "")), torch.read_torch(Path(package)), Path(cache))
"""


@pytest.mark.parametrize("when", ["filling", "renaming"])
def test_what_a_killed_build_left_is_not_trusted(
    tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit, when: str
) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", DIES, str(compiler_only.home), str(torch.package), str(cache), when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert [path.name[:8] for path in (cache / "toolkits").iterdir()] == [".making-"]
    home = complete(compiler_only, torch, cache)
    assert [path.name for path in (cache / "toolkits").iterdir()] == [home.name]
    assert toolkit_of(home).missing == ()


def test_without_locks_the_first_to_finish_wins(
    tmp_path: Path, torch: TorchFacts, compiler_only: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", refuse)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: complete(compiler_only, torch, tmp_path / "cache"), range(16)))
    assert len(homes) == 1 and toolkit_of(homes.pop()).missing == ()


# The real ones


SOURCE = """
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <cusparse.h>
#include <curand.h>
#include <thrust/complex.h>
__global__ void twice(thrust::complex<float> *p) { p[threadIdx.x] *= 2.0f; }
int main() {
  int version = 0;
  cusparseHandle_t handle;
  return cudaRuntimeGetVersion(&version) + !cusparseCreate(&handle);
}
"""


@pytest.fixture
def real_home(tmp_path: Path) -> Path:
    """The toolkit of this machine, without its math headers whatever it has, completed from torch's wheels."""
    facts = real_torch()
    named = ("CUDA_HOME", "CUDA_PATH")
    environ = {name: value for name, value in os.environ.items() if name not in named}
    toolkit = discover(None, "", environ).found[0]
    bare = tmp_path / "bare"
    (bare / "include").mkdir(parents=True)
    for path in toolkit.home.iterdir():
        if path.name not in ("include", "targets", "lib", "lib64"):
            (bare / path.name).symlink_to(path)
    for path in toolkit.include.iterdir():
        if not path.name.startswith(("cublas", "cusparse", "cusolver", "curand", "cufft", "nvrtc")):
            (bare / "include" / path.name).symlink_to(path)
    (bare / "lib").symlink_to(toolkit.lib or "nowhere")
    return complete(toolkit_of(bare), facts, tmp_path / "cache")


@pytest.mark.cuda
@pytest.mark.torch
def test_the_real_nvcc_takes_a_composed_directory_for_its_prefix(real_home: Path) -> None:
    nvcc = real_home / "bin" / "nvcc"
    dry = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False)
    assert f"#$ TOP={real_home}/bin/..\n" in dry.stderr


@pytest.mark.cuda
@pytest.mark.torch
def test_the_real_nvcc_compiles_and_links_with_a_composed_directory(tmp_path: Path, real_home: Path) -> None:
    (tmp_path / "x.cu").write_text(SOURCE)
    options = [
        "-arch=sm_80",
        "-cudart",
        "shared",
        "x.cu",
        "-o",
        "x",
        "-lcudart",
        "-lcublas",
        "-lcusparse",
        "-lcusolver",
    ]
    built = subprocess.run(
        [real_home / "bin" / "nvcc", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "x").exists()


@pytest.mark.cuda
@pytest.mark.torch
def test_composing_the_real_one_costs_milliseconds(tmp_path: Path) -> None:
    facts = real_torch()
    toolkit = discover(None, "", os.environ).found[0]
    complete(toolkit, facts, tmp_path)
    started = time.monotonic()
    complete(toolkit, facts, tmp_path)
    assert time.monotonic() - started < 0.5
