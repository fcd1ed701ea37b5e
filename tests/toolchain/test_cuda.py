from __future__ import annotations

import os
import time
from pathlib import Path

import fakes
import pytest

from safe_ext_build.errors import ToolkitError
from safe_ext_build.toolchain import cuda
from safe_ext_build.toolchain.cuda import Candidate, Rejected, Toolkit, clean_cuda_home, discover, probe

SYSTEM_PATH = "/usr/bin:/bin"


def found(candidate: Candidate, **environ: str) -> Toolkit:
    result = probe(candidate, {"PATH": SYSTEM_PATH, **environ})
    assert isinstance(result, Toolkit), result
    return result


def refused(path: Path) -> str:
    result = probe(Candidate(str(path), "test"), {"PATH": SYSTEM_PATH})
    assert isinstance(result, Rejected), result
    return result.reason


# Repairs


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("{home}", ""),
        ("{home}/", ""),
        ("{home}/bin", "taken as"),
        ("{home}/bin/", "taken as"),
        ("{home}/bin/nvcc", "taken as"),
        (" {home}\n", "taken as"),
        ('"{home}"', "taken as"),
        ("'{home}/bin' ", "taken as"),
        ("~/cuda", "taken as"),
        ("/nowhere:{home}", "a list"),
        ("{home}/bin:/nowhere", "a list"),
        (":{home}:", "a list"),
    ],
)
def test_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, line: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = fakes.toolkit(tmp_path / "cuda")
    path, said = clean_cuda_home(value.format(home=home), "CUDA_HOME")
    assert path == home
    assert line in said and bool(line) == bool(said)
    assert not said or ("CUDA_HOME is " in said and str(home) in said)


@pytest.mark.parametrize("value", ["", " ", "\n", '""', "' '"])
def test_empty_counts_as_unset(value: str) -> None:
    assert clean_cuda_home(value, "CUDA_HOME") == (None, "CUDA_HOME is empty, and counts as unset")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("/nowhere", "does not exist"),
        ("/nowhere/bin/nvcc", "does not exist"),
        ("cuda", "is not an absolute path"),
        ("$HOME/cuda", "is not an absolute path"),
        ("/dev/null", "is not a directory"),
        ("/nowhere:/usr", "no entry of it has bin/nvcc"),
        ("usr:lib", "no entry of it has bin/nvcc"),
    ],
)
def test_not_repairable(value: str, what: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        clean_cuda_home(value, "CUDA_HOME in the environment")
    assert str(caught.value).startswith(f"CUDA_HOME in the environment is {value!r}, which ")
    assert what in str(caught.value)
    assert caught.value.hint.startswith("unset CUDA_HOME to have the toolkit found")
    with pytest.raises(ToolkitError) as caught:
        clean_cuda_home(value, "cuda.home in pyproject.toml")
    assert caught.value.hint == "write the directory that has bin/nvcc, such as /usr/local/cuda-13.0"


def test_a_directory_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "a:b")
    assert clean_cuda_home(str(home), "CUDA_HOME") == (home, "")


# Candidates


def test_order_of_trust(tmp_path: Path) -> None:
    root, site = tmp_path / "root", tmp_path / "site"
    hpc_sdk = "opt/nvidia/hpc_sdk/Linux_x86_64/25.9/cuda/13.0"
    for place in ("usr/local/cuda-12.4", "usr/local/cuda-13.0", "opt/cuda", hpc_sdk):
        fakes.toolkit(root / place)
    (root / "usr/local/cuda").symlink_to("cuda-13.0")
    named, module, conda = (fakes.toolkit(tmp_path / name) for name in ("named", "module", "conda"))
    fakes.nvcc(tmp_path / "first" / "nvcc")
    fakes.wheels(site)
    environ = {
        "CUDA_HOME": str(named),
        "CUDA_PATH": str(tmp_path),
        "PATH": f"{tmp_path / 'first'}:/nowhere::{conda / 'bin'}",
        "CONDA_PREFIX": str(conda),
        "EBROOTCUDA": str(module),
        "CUDA_ROOT": "/nowhere",
    }
    candidates, _ = cuda.find_candidates(None, "", environ, root, [site])
    places = [(Path(one.path).relative_to(tmp_path).as_posix(), one.origin) for one in candidates]
    assert places == [
        ("named", "CUDA_HOME"),
        ("first/nvcc", "nvcc on PATH"),
        ("conda/bin/nvcc", "nvcc on PATH"),
        ("root/usr/local/cuda-13.0", "/usr/local/cuda-*"),
        ("root/usr/local/cuda-12.4", "/usr/local/cuda-*"),
        ("root/opt/cuda", "/opt/cuda"),
        (f"root/{hpc_sdk}", "/opt/nvidia/hpc_sdk/Linux_*/*/cuda/[0-9]*"),
        ("module", "EBROOTCUDA"),
        ("site/nvidia/cu13", "wheels"),
    ]
    assert [one.explicit for one in candidates] == [True] + [False] * 8


@pytest.mark.parametrize(
    ("explicit", "source", "environ", "expected"),
    [
        ("{a}", "cuda.home in pyproject.toml", {"CUDA_HOME": "{b}"}, ("a", True)),
        ("{a}", "CUDA_HOME in the environment", {"CUDA_HOME": "{a}"}, ("a", False)),
        (None, "", {"CUDA_HOME": "{a}", "CUDA_PATH": "{b}"}, ("a", False)),
        (None, "", {"CUDA_HOME": "", "CUDA_PATH": "{b}"}, ("b", False)),
        ("", "CUDA_HOME in the environment", {"CUDA_HOME": "", "CUDA_PATH": "{b}"}, ("b", False)),
        (None, "", {"CUDA_HOME": ""}, None),
    ],
)
def test_what_the_user_named(
    tmp_path: Path,
    explicit: str | None,
    source: str,
    environ: dict[str, str],
    expected: tuple[str, bool] | None,
) -> None:
    places = {name: str(fakes.toolkit(tmp_path / name)) for name in "ab"}
    given = explicit and explicit.format(**places)
    environ = {name: value.format(**places) for name, value in environ.items()}
    candidates, _ = cuda.find_candidates(given, source, environ, tmp_path / "root")
    assert [(Path(one.path).name, one.required) for one in candidates] == ([expected] if expected else [])


def test_an_empty_variable_is_said_once() -> None:
    nothing = Path("/nowhere")
    discovery = discover("", "CUDA_HOME in the environment", {"CUDA_HOME": ""}, nothing)
    assert discovery.lines == ("CUDA_HOME in the environment is empty, and counts as unset",)


def test_our_own_shim_is_not_a_candidate(tmp_path: Path) -> None:
    fakes.nvcc(tmp_path / "shims" / "nvcc")
    real = fakes.nvcc(tmp_path / "real" / "nvcc")
    shims = str(tmp_path / "shims")
    environ = {"PATH": f"{shims}:{tmp_path / 'real'}", "SAFE_EXT_BUILD_SHIMS": shims}
    assert [one.path for one in cuda.find_candidates(None, "", environ, tmp_path)[0]] == [str(real)]


# Probing


def test_a_whole_toolkit(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "cuda", "12.4")
    toolkit = found(Candidate(str(home), "CUDA_HOME", explicit=True), NVCC_APPEND_FLAGS="--threads 2")
    assert toolkit == Toolkit(
        home=home,
        origin="CUDA_HOME",
        version=(12, 4),
        build="V12.4.88",
        nvcc=home / "bin" / "nvcc",
        include=home / "include",
        lib=home / "lib64",
        archs=fakes.ARCHS,
        explicit=True,
    )


def test_a_wrapper_leads_to_the_true_prefix(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "cuda")
    wrapper = fakes.wrapper(tmp_path / "prefix" / "bin" / "nvcc", home / "bin" / "nvcc")
    assert found(Candidate(str(wrapper), "nvcc on PATH")).home == home
    # torch takes the wrapper's prefix for CUDA_HOME; so may a user.
    assert found(Candidate(str(tmp_path / "prefix"), "CUDA_HOME")).home == home


def test_a_link_leads_to_the_true_prefix(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "cuda")
    link = tmp_path / "bin" / "nvcc"
    link.parent.mkdir()
    link.symlink_to(home / "bin" / "nvcc")
    assert found(Candidate(str(link), "nvcc on PATH")).home == home


def test_compiler_only(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "cuda", math=False)
    assert found(Candidate(str(home), "test")).missing == fakes.MATH_HEADERS


def test_wheels_with_nvcc_lack_what_links(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "nvidia" / "cu13", lib="lib")
    (home / "lib" / "libcudart.so").unlink()
    assert found(Candidate(str(home), "wheels")).missing == ("lib64", "libcudart.so")


def test_conda_keeps_headers_in_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    home = fakes.toolkit(tmp_path / "conda", lib="targets/x86_64-linux/lib")
    (home / "include").rename(home / "targets" / "x86_64-linux" / "include")
    fakes.files(home, ["include/openssl/ssl.h", "lib/libz.so"])
    toolkit = found(Candidate(str(home), "CONDA_PREFIX"))
    assert toolkit.include == home / "targets" / "x86_64-linux" / "include"
    assert toolkit.lib == home / "targets" / "x86_64-linux" / "lib"
    assert {"cuda_runtime.h", "cusparse.h", "lib64", "libcudart.so"} <= set(toolkit.missing)


def debian(root: Path) -> Path:
    top = fakes.toolkit(root / "usr" / "lib" / "nvidia-cuda-toolkit", "12.4", profile=False)
    (top / "nvvm" / "bin" / "cicc").rename(top / "bin" / "cicc")
    (top / "include").rename(root / "usr" / "include")
    (top / "lib64").rename(root / "usr" / "lib" / "x86_64-linux-gnu")
    fakes.files(root / "usr", ["include/stdlib.h", "lib/x86_64-linux-gnu/libc.so.6"])
    fakes.files(top, ["bin/nvcc.profile"])
    fakes.wrapper(root / "usr" / "bin" / "nvcc", top / "bin" / "nvcc")
    return root / "usr"


def test_debian_spreads_it_over_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    home = debian(tmp_path)
    environ = {"PATH": f"{home / 'bin'}:{SYSTEM_PATH}"}
    toolkits = [one for one in discover(None, "", environ, tmp_path).found if tmp_path in one.home.parents]
    assert [(one.home, one.version, one.missing) for one in toolkits] == [(home, (12, 4), ())]
    assert toolkits[0].is_system
    assert toolkits[0].lib == home / "lib" / "x86_64-linux-gnu"


def test_the_hpc_sdk_keeps_math_libraries_apart(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "25.9" / "cuda" / "13.0", math=False)
    fakes.files(tmp_path / "25.9" / "math_libs" / "13.0" / "include", fakes.MATH_HEADERS)
    assert found(Candidate(str(home), "test")).extras == (tmp_path / "25.9" / "math_libs" / "13.0",)


def test_refused(tmp_path: Path) -> None:
    fakes.files(tmp_path / "runtime", ["lib64/libcudart.so.12"])
    fakes.script(tmp_path / "broken" / "bin" / "nvcc", "echo 'no licence'; exit 3")
    fakes.script(tmp_path / "silent" / "bin" / "nvcc", "exit 3")
    fakes.nvcc(tmp_path / "lone" / "bin" / "nvcc")
    alien = fakes.script(tmp_path / "alien" / "bin" / "nvcc", "")
    alien.write_bytes(b"\x7fELF not for this machine")
    fakes.toolkit(tmp_path / "part")
    (tmp_path / "part" / "nvvm" / "bin" / "cicc").unlink()
    assert refused(tmp_path / "runtime") == "has no bin/nvcc: a runtime-only CUDA"
    assert refused(tmp_path / "nowhere") == "does not exist"
    assert refused(tmp_path) == "has no bin/nvcc: not a CUDA toolkit"
    assert refused(tmp_path / "broken") == "nvcc does not run: no licence"
    assert refused(tmp_path / "silent") == "nvcc does not run: it ends with status 3"
    assert refused(tmp_path / "lone") == "has nvcc, but no cicc, ptxas, cudafe++: an incomplete compiler"
    assert refused(tmp_path / "alien") == "nvcc does not run: Exec format error"
    assert refused(tmp_path / "part") == "has nvcc, but no cicc: an incomplete compiler"


def test_a_wrapper_that_hangs_is_given_up_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safe_ext_build.probe.TIMEOUT", 0.3)
    pid_file = tmp_path / "pid"
    hanging = fakes.script(tmp_path / "nvcc", f"sleep 60 & echo $! > {pid_file}; wait")
    started = time.monotonic()
    assert refused(hanging) == "nvcc does not answer within 0 s"
    assert time.monotonic() - started < 3
    child = Path(f"/proc/{pid_file.read_text().strip()}")
    deadline = time.monotonic() + 2
    while child.exists() and "Z" not in (child / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_old_nvcc_that_lists_nothing(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "cuda", archs=())
    assert found(Candidate(str(home), "test")).archs == ()


@pytest.mark.parametrize(
    ("body", "visible", "expected"),
    [
        ("echo 12.0; echo 8.6; echo 8.6", {}, ["8.6", "12.0"]),
        ("echo 8.6", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("echo 8.6", {"CUDA_VISIBLE_DEVICES": "0"}, ["8.6"]),
        ("echo '[N/A]'", {}, []),
        ("echo 8.6; exit 9", {}, []),
        ("echo Failed to initialize NVML", {}, []),
    ],
)
def test_gpus(tmp_path: Path, body: str, visible: dict[str, str], expected: list[str]) -> None:
    fakes.script(tmp_path / "nvidia-smi", body)
    assert cuda.gpus({"PATH": f"{tmp_path}:{SYSTEM_PATH}", **visible}) == expected


@pytest.mark.parametrize(
    ("banner", "expected"),
    [
        ("| NVIDIA-SMI 570.86.10   Driver Version: 570.86.10   CUDA Version: 12.8     |", (12, 8)),
        ("| NVIDIA-SMI 610.57.04   KMD Version: 610.57.04   CUDA UMD Version: 13.3    |", (13, 3)),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
    ],
)
def test_the_cuda_of_the_driver(tmp_path: Path, banner: str, expected: tuple[int, int] | None) -> None:
    fakes.script(tmp_path / "nvidia-smi", f'echo "{banner}"')
    assert cuda.driver_cuda({"PATH": f"{tmp_path}:{SYSTEM_PATH}"}) == expected


def test_wheels_of_several_versions_are_no_toolkit(tmp_path: Path) -> None:
    home = fakes.toolkit(tmp_path / "nvidia" / "cu13", "13.5", lib="lib")
    candidate = Candidate(str(home), "wheels")
    fakes.metadata(tmp_path, "nvidia-cuda-nvcc", "13.5.17")
    fakes.metadata(tmp_path, "nvidia-nvvm", "13.5.17")
    assert found(candidate).is_wheels
    fakes.metadata(tmp_path, "nvidia-cuda-runtime", "13.0.96")
    result = probe(candidate)
    assert isinstance(result, Rejected)
    assert result.reason == (
        "has wheels of several versions, which do not fit each other: "
        "nvidia-cuda-nvcc 13.5, nvidia-cuda-runtime 13.0, nvidia-nvvm 13.5"
    )


def test_no_driver_no_gpus(tmp_path: Path) -> None:
    assert cuda.gpus({"PATH": str(tmp_path)}) == []


@pytest.mark.cuda
def test_the_real_toolkit_is_found_quickly() -> None:
    started = time.monotonic()
    named = ("CUDA_HOME", "CUDA_PATH")
    discovery = discover(None, "", {name: os.environ[name] for name in os.environ if name not in named})
    assert time.monotonic() - started < 1
    toolkit = discovery.found[0]
    assert (toolkit.home / "bin" / "nvcc").exists() and (toolkit.home / "bin" / "nvcc.profile").exists()
    assert toolkit.build.startswith(f"V{toolkit.version[0]}.{toolkit.version[1]}.")
    assert "80" in toolkit.archs


def test_a_stale_variable_is_passed_over() -> None:
    """A line that was left in a shell's start-up file must not stop what needs no CUDA, or finds another."""
    found = cuda.discover(None, "default", {"CUDA_HOME": "/nowhere", "PATH": "/nowhere"}, root=Path("/nowhere"))
    assert found.lines == ("CUDA_HOME is '/nowhere', which does not exist: not used",)
    with pytest.raises(ToolkitError, match="does not exist"):
        cuda.discover("/nowhere", "[tool.safe-ext-build] cuda.home in pyproject.toml", {}, root=Path("/nowhere"))
