"""Settings: what each source may say, which one wins, and what a user reads when a value is wrong."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from safe_ext_build import _settings_docs
from safe_ext_build.errors import SettingsError
from safe_ext_build.settings import FOREIGN, INTERNAL_VARIABLES, Settings, load, places, schema

ROOT = Path(__file__).resolve().parent.parent
COUNT = 'a whole number from 1 up, or "auto"'


def read(
    project: Path,
    toml: str = "",
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, dict[str, object]]:
    (project / "pyproject.toml").write_text(toml, encoding="utf-8")
    return load(project, options, environ or {})


def table(toml: str) -> str:
    return f"[tool.safe-ext-build]\n{toml}\n"


def value(settings: Settings, name: str) -> object:
    result: Any = settings
    for part in name.split("."):
        result = getattr(result, part.replace("-", "_"))
    return result


def test_nothing_given_is_the_defaults(tmp_path: Path) -> None:
    settings, rest = load(tmp_path, None, {})  # there is no pyproject.toml either
    assert settings == Settings()
    assert rest == {}
    assert (settings.cuda.mismatch, settings.torch.match) == ("minor", "runtime")
    assert {settings.source(name) for name in schema()} == {"default"}


def test_the_schema_is_what_the_dataclasses_say() -> None:
    assert list(schema()) == [
        "cuda.home",
        "cuda.archs",
        "cuda.mismatch",
        "cuda.provision",
        "torch.match",
        "torch.runtime",
        "torch.pin",
        "torch.label",
        "jobs.max",
        "jobs.nvcc-threads",
        "jobs.memory-guard",
        "jobs.remote",
        "farm.required",
        "workspace.dir",
        "report.path",
        "backend",
        "backend-path",
        "build-dir",
        "require-cuda",
        "launcher",
        "check",
        "on-running",
        "progress",
    ]
    assert schema()["jobs.nvcc-threads"].variables == ("SAFE_EXT_BUILD_JOBS_NVCC_THREADS", "NVCC_THREADS")
    assert schema()["build-dir"].variables == ("SAFE_EXT_BUILD_BUILD_DIR",)


def test_a_source_is_only_told_of_a_setting_that_exists() -> None:
    with pytest.raises(KeyError):
        Settings().source("jobs.maxx")


@pytest.mark.parametrize(
    ("name", "toml", "expected"),
    [
        ("cuda.home", "'/opt/cuda-13.0/bin/'", "/opt/cuda-13.0/bin/"),
        ("cuda.archs", "'8.0;9.0+PTX'", "8.0;9.0+PTX"),
        ("cuda.archs", "['8.0', '', '9.0+PTX']", "8.0;9.0+PTX"),
        ("cuda.archs", "[]", None),
        ("cuda.mismatch", "'exact'", "exact"),
        ("cuda.mismatch", "'any'", "any"),
        ("torch.match", "'declared'", "declared"),
        ("jobs.max", "4", 4),
        ("jobs.max", "' 4 '", 4),
        ("jobs.max", "'auto'", None),
        ("jobs.nvcc-threads", "2", 2),
        ("jobs.memory-guard", "false", False),
        ("jobs.memory-guard", "true", True),
        ("jobs.memory-guard", "' False '", False),
        ("jobs.remote", "0", 0),
        ("jobs.remote", "'auto'", None),
        ("farm.required", "true", True),
        ("workspace.dir", "'/scratch'", Path("/scratch")),
        ("workspace.dir", "'~/scratch'", Path("~/scratch").expanduser()),
    ],
)
def test_every_setting_can_stand_in_the_file(tmp_path: Path, name: str, toml: str, expected: object) -> None:
    settings, _ = read(tmp_path, table(f"{name} = {toml}"))
    assert value(settings, name) == expected
    assert settings.source(name) == f"[tool.safe-ext-build] {name} in pyproject.toml"


def test_subtables_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, "[tool.safe-ext-build.jobs]\nmax = 4\n[tool.safe-ext-build.cuda]\n")
    assert settings.jobs.max == 4


def test_a_relative_path_is_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, _ = read(tmp_path, table("build-dir = 'objects'"), environ={"SAFE_EXT_BUILD_WORKSPACE_DIR": "ws"})
    assert settings.build_dir == tmp_path / "objects"
    assert settings.workspace.dir == tmp_path / "ws"
    monkeypatch.chdir(tmp_path)
    assert load(Path(), None, {})[0].build_dir == tmp_path / "objects"


SAMPLES: dict[str, str] = {
    "cuda.home": "/opt/cuda",
    "cuda.archs": "9.0",
    "cuda.mismatch": "any",
    "cuda.provision": "never",
    "torch.match": "declared",
    "jobs.max": "7",
    "jobs.nvcc-threads": "3",
    "jobs.memory-guard": "false",
    "jobs.remote": "6",
    "farm.required": "true",
    "workspace.dir": "/scratch",
    "report.path": "/r/report.html",
    "backend": "mesonpy",
    "backend-path": "tools;.",
    "build-dir": "/objects",
    "torch.runtime": "/env",
    "torch.pin": "true",
    "torch.label": "true",
    "require-cuda": "true",
    "launcher": "ccache",
    "check": "false",
    "on-running": "replace",
    "progress": "tty",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_option_and_variables_say_the_same_as_the_file(tmp_path: Path, name: str) -> None:
    by_option, _ = read(tmp_path, "", {name: SAMPLES[name]})
    assert by_option.source(name) == f"-C {name}"
    assert value(by_option, name) != schema()[name].default
    for variable in schema()[name].variables:
        by_variable, _ = read(tmp_path, environ={variable: SAMPLES[name]})
        assert by_variable == by_option
        assert by_variable.source(name) == f"{variable} in the environment"


def test_the_samples_are_complete() -> None:
    assert SAMPLES.keys() == schema().keys()


@pytest.mark.parametrize(
    ("toml", "options", "environ", "expected", "source"),
    [
        ("jobs.max = 2", {}, {}, 2, "[tool.safe-ext-build] jobs.max in pyproject.toml"),
        ("jobs.max = 2", {"jobs.max": "3"}, {}, 3, "-C jobs.max"),
        ("jobs.max = 2", {"jobs.max": ["9", "3"]}, {}, 3, "-C jobs.max"),
        ("", {"jobs.max": 3}, {}, 3, "-C jobs.max"),
        ("", {"jobs.max": "3"}, {"MAX_JOBS": " 4\t"}, 4, "MAX_JOBS in the environment"),
        (
            "",
            {},
            {"MAX_JOBS": "4", "SAFE_EXT_BUILD_JOBS_MAX": "5"},
            5,
            "SAFE_EXT_BUILD_JOBS_MAX in the environment",
        ),
        ("", {}, {"MAX_JOBS": "4", "SAFE_EXT_BUILD_JOBS_MAX": ""}, 4, "MAX_JOBS in the environment"),
        ("jobs.max = 2", {}, {"MAX_JOBS": "auto"}, None, "MAX_JOBS in the environment"),
        ("", {}, {"MAX_JOBS": ""}, None, "default"),
        ("", {"jobs.max": ""}, {"MAX_JOBS": " "}, None, "default"),
        ("", {"jobs.max": None}, {}, None, "default"),
        (
            "jobs.max = 2",
            {"jobs.max": ""},
            {"MAX_JOBS": ""},
            2,
            "[tool.safe-ext-build] jobs.max in pyproject.toml",
        ),
    ],
)
def test_the_environment_wins_then_options_then_the_file(
    tmp_path: Path,
    toml: str,
    options: dict[str, object],
    environ: dict[str, str],
    expected: int | None,
    source: str,
) -> None:
    settings, _ = read(tmp_path, table(toml), options, environ)
    assert (settings.jobs.max, settings.source("jobs.max")) == (expected, source)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CUDA_HOME": "/a", "CUDA_PATH": "/b"}, "/a"),
        ({"CUDA_HOME": "", "CUDA_PATH": "/b"}, "/b"),
        ({"CUDA_HOME": "", "CUDA_PATH": ""}, None),
        ({"CUDA_HOME": "/a:/b/bin\n"}, "/a:/b/bin\n"),  # toolchain repairs or refuses it
        ({"CUDA_HOME": "/a", "SAFE_EXT_BUILD_CUDA_HOME": "/c"}, "/c"),
    ],
)
def test_cuda_home_as_it_is_in_the_wild(tmp_path: Path, environ: dict[str, str], expected: str | None) -> None:
    assert read(tmp_path, environ=environ)[0].cuda.home == expected


JUNK_COUNTS = ["0", "-1", "4.0", "four", "+4", "4_0", "٤", "4 4", "0x4", "true", "9" * 5000]


@pytest.mark.parametrize("variable", ["MAX_JOBS", "NVCC_THREADS", "SAFE_EXT_BUILD_JOBS_MAX"])
@pytest.mark.parametrize("junk", JUNK_COUNTS, ids=lambda junk: junk[:8])
def test_a_count_that_is_none_is_refused(tmp_path: Path, variable: str, junk: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, environ={variable: junk})
    shown = f'"{junk}"' if len(junk) < 80 else f'"{junk[:76]}...'
    assert str(caught.value) == f"{variable} in the environment is {shown}, but it must be {COUNT}"
    assert ("torch itself reads 0 as no limit" in caught.value.hint) == (variable != "NVCC_THREADS")


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("Yes", True), ("0", False), ("off", False)])
def test_a_flag_in_the_environment_is_written_as_people_write_it(
    tmp_path: Path, text: str, expected: bool
) -> None:
    settings, _ = read(tmp_path, "", {}, {"SAFE_EXT_BUILD_JOBS_MEMORY_GUARD": text})
    assert settings.jobs.memory_guard is expected


BUILD_DIR = (
    "the path of a directory; in braces only {cuda}, {fingerprint}, {project}, {python}, {torch} may stand there"
)
ARCHS = 'a string or a list of strings, such as "8.0;9.0+PTX"'


@pytest.mark.parametrize(
    ("toml", "name", "shown", "allowed"),
    [
        ("jobs.max = 0", "jobs.max", "0", COUNT),
        ("jobs.max = true", "jobs.max", "true", COUNT),
        ("jobs.max = 4.0", "jobs.max", "4.0", COUNT),
        ("jobs.max = [4]", "jobs.max", "[4]", COUNT),
        ("jobs.max = {}", "jobs.max", "{}", COUNT),
        ("jobs.max = 1979-05-27", "jobs.max", '"1979-05-27"', COUNT),
        ("jobs.nvcc-threads = -2", "jobs.nvcc-threads", "-2", COUNT),
        ("jobs.memory-guard = 0", "jobs.memory-guard", "0", "true or false"),
        ("jobs.remote = -1", "jobs.remote", "-1", 'a whole number from 0 up, or "auto"'),
        ("jobs.memory-guard = 'maybe'", "jobs.memory-guard", '"maybe"', "true or false"),
        ("jobs.memory-guard = []", "jobs.memory-guard", "[]", "true or false"),
        ("cuda.archs = 8.6", "cuda.archs", "8.6", ARCHS),
        ("cuda.archs = ['8.0', 9.0]", "cuda.archs", '["8.0", 9.0]', ARCHS),
        ("cuda.mismatch = 'major'", "cuda.mismatch", '"major"', '"exact", "minor" or "any"'),
        ("cuda.mismatch = true", "cuda.mismatch", "true", '"exact", "minor" or "any"'),
        ("torch.match = 'Runtime'", "torch.match", '"Runtime"', '"runtime" or "declared"'),
        ("cuda.home = 13", "cuda.home", "13", "a string"),
        ("cuda.home = ['/a', '/b']", "cuda.home", '["/a", "/b"]', "a string"),
        ("workspace.dir = 3", "workspace.dir", "3", "the path of a directory"),
        (r'build-dir = "a\u0000b"', "build-dir", r'"a\u0000b"', BUILD_DIR),
        (r'build-dir = "a\nb"', "build-dir", r'"a\nb"', BUILD_DIR),
        ("build-dir = 'o/{torsh}'", "build-dir", '"o/{torsh}"', BUILD_DIR),
        ("build-dir = 'o/{}'", "build-dir", '"o/{}"', BUILD_DIR),
    ],
)
def test_the_error_names_value_source_and_what_is_allowed(
    tmp_path: Path, toml: str, name: str, shown: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, table(toml))
    expected = f"[tool.safe-ext-build] {name} in pyproject.toml is {shown}, but it must be {allowed}"
    assert str(caught.value) == expected


def test_a_value_that_is_overridden_is_still_checked(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"-C jobs\.max is \"many\""):
        read(tmp_path, "", {"jobs.max": "many"}, {"MAX_JOBS": "4"})


@pytest.mark.parametrize("given", [True, False, ["4", True], [], {"a": 1}])
def test_an_option_of_a_wrong_type_is_refused(tmp_path: Path, given: object) -> None:
    with pytest.raises(SettingsError, match=r"-C jobs\.max is .*, but it must be a whole number"):
        read(tmp_path, "", {"jobs.max": given})


def test_a_home_that_cannot_be_found_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be the path of a directory"):
        read(tmp_path, table("build-dir = '~no-such-user-here/x'"))


@pytest.mark.parametrize(
    ("toml", "name", "hint"),
    [
        ("jobs.maxx = 4", "jobs.maxx", "did you mean jobs.max = 4?"),
        ("job.max = 4", "job.max", "did you mean jobs.max = 4?"),
        ("max-jobs = 4", "max-jobs", "did you mean jobs.max = 4?"),
        ("build_dir = 'x'", "build_dir", 'did you mean build-dir = "x"?'),
        ("cuda.arch-list = ['9.0']", "cuda.arch-list", 'did you mean cuda.archs = ["9.0"]?'),
        ("'jobs.max' = 4", '"jobs.max"', "did you mean jobs.max = 4?"),
        ("jobs.max.hard = 4", "jobs.max.hard", "did you mean jobs.max = 4?"),
        ("job = {}", "job", "did you mean jobs.max? It must be "),
        ("xyzzy = 1", "xyzzy", "the settings are: cuda.home, cuda.archs,"),
    ],
)
def test_an_unknown_name_in_the_file(tmp_path: Path, toml: str, name: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, table(toml))
    assert str(caught.value) == f"[tool.safe-ext-build] {name} in pyproject.toml: there is no such setting"
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("key", "given", "hint"),
    [
        ("memory.budget", "12XB", "the settings are: cuda.home, cuda.archs,"),
        ("jobs.maxx", "12XB", "did you mean -C jobs.max? It must be "),
        ("jobs-max", "4", "did you mean -C jobs.max=4?"),
        ("MAX_JOBS", "4", "did you mean -C jobs.max=4?"),
        ("--jobs.max", ["3", "4"], "did you mean -C jobs.max=4?"),
        ("--jobs", "4", "did you mean -C jobs.max=4?"),
        ("TORCH_CUDA_ARCH_LIST", "9.0", "did you mean -C cuda.archs=9.0?"),
        ("editable_mod", "strict", "did you mean editable_mode?"),
        (
            "tag-build",
            ".dev1",
            "the settings are: cuda.home, cuda.archs,",
        ),  # setuptools does not read it either
    ],
)
def test_an_unknown_option(tmp_path: Path, key: str, given: object, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, "", {key: given})
    assert str(caught.value) == f"-C {key}: there is no such setting"
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("SAFE_EXT_BUILD_JOB_MAX", "did you mean SAFE_EXT_BUILD_JOBS_MAX?"),
        ("SAFE_EXT_BUILD_MAX_JOBS", "did you mean SAFE_EXT_BUILD_JOBS_MAX?"),
        ("SAFE_EXT_BUILD_CUDAHOME", "did you mean SAFE_EXT_BUILD_CUDA_HOME?"),
        ("SAFE_EXT_BUILD_XYZZY", "the settings are: "),
    ],
)
def test_an_unknown_variable_even_when_empty(tmp_path: Path, variable: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, environ={variable: ""})
    assert str(caught.value) == f"{variable} in the environment: there is no such setting"
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("toml", "options", "environ", "message", "hint"),
    [
        ("jobs = 4", {}, {}, "[tool.safe-ext-build] jobs in pyproject.toml is 4", "write jobs.max = 4"),
        ("", {"jobs": "4"}, {}, '-C jobs is "4"', "write -C jobs.max=4"),
        ("", {}, {"SAFE_EXT_BUILD_JOBS": "4"}, 'SAFE_EXT_BUILD_JOBS in the environment is "4"',
         "write SAFE_EXT_BUILD_JOBS_MAX=4"),
    ],
)  # fmt: skip
def test_a_table_with_a_value(
    tmp_path: Path, toml: str, options: dict[str, object], environ: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, table(toml), options, environ)
    assert str(caught.value) == f"{message}, but jobs is a table of settings"
    assert (
        caught.value.hint
        == f"{hint} (the settings are: jobs.max, jobs.nvcc-threads, jobs.memory-guard, jobs.remote)"
    )


def test_variables_of_our_own_are_no_settings(tmp_path: Path) -> None:
    ours = {pattern.replace("*", "SDIST"): "x" for pattern in INTERNAL_VARIABLES}
    assert read(tmp_path, environ={**ours, "CC": "clang", "CXX": "clang++", "NO_COLOR": "1"})[0] == Settings()


FORWARDED: dict[str, object] = {
    "--global-option": ["-q"],
    "--build-option": "--plat-name x",
    "--verbose": None,
    "verbose": "1",
    "quiet": "0",
    "editable_mode": "strict",
    "editable-mode": "strict",
}


def test_setuptools_options_are_handed_on_and_ours_are_not(tmp_path: Path) -> None:
    settings, rest = read(tmp_path, "", {**FORWARDED, "jobs.max": "4", "build-dir": ""})
    assert rest == FORWARDED
    assert settings.jobs.max == 4


def test_setuptools_reads_every_option_that_is_handed_on() -> None:
    backend = importlib.import_module("setuptools.build_meta")._BuildMetaBackend()
    assert list(backend._global_args({"verbose": "1", "quiet": "1"})) == ["-v", "-q"]
    for key in ("editable-mode", "editable_mode"):
        assert list(backend._editable_args({key: "strict"})) == ["--mode", "strict"]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[tool.safe-ext-build\n", r"^pyproject\.toml is not valid TOML: .*line 1"),
        (
            "[tool.safe-ext-build]\njobs.max = 1\njobs.max = 2\n",
            r"^pyproject\.toml is not valid TOML: .*line 3",
        ),
        (
            "[tool]\nsafe-ext-build = 3\n",
            r"^tool\.safe-ext-build in pyproject\.toml is 3, but it must be a table$",
        ),
        ("tool = 3\n", r"^tool in pyproject\.toml is 3, but it must be a table$"),
        (
            "[tool.safe_ext_build]\njobs.max = 1\n",
            r"^\[tool\.safe_ext_build\] in pyproject\.toml: there is no such",
        ),
    ],
)
def test_a_file_that_cannot_be_understood(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(tmp_path, toml)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"name = '\xff'\n")
    with pytest.raises(SettingsError, match=r"^pyproject\.toml cannot be read: .*utf-8"):
        load(tmp_path, None, {})
    (tmp_path / "directory" / "pyproject.toml").mkdir(parents=True)
    with pytest.raises(SettingsError, match=r"^pyproject\.toml cannot be read: "):
        load(tmp_path / "directory", None, {})


def test_the_settings_of_others_are_not_ours(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, "[tool.black]\njobs = 4\n[project]\nname = 'x'\n", environ={"MAX_JOBSS": "4"})
    assert settings == Settings()


def test_settings_travel_as_values(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, table("jobs.max = 4"))
    assert dataclasses.replace(settings) == settings
    assert hash(settings) != hash(Settings())
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.build_dir = None  # type: ignore[misc]


def test_every_setting_has_its_words() -> None:
    words = dict(_settings_docs.attribute_docs(Settings))
    for name, cls in _settings_docs._tables():
        words.update({f"{name}.{key}": doc for key, doc in _settings_docs.attribute_docs(cls).items()})
    assert {name.replace("_", "-") for name in words} == schema().keys()


def test_the_reference_page_has_not_drifted() -> None:
    page = ROOT / _settings_docs.PAGE
    assert page.read_text(encoding="utf-8") == _settings_docs.render(), (
        "run python -m safe_ext_build._settings_docs"
    )


def test_the_page_of_variables_knows_them_all() -> None:
    text = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z0-9_*]+)`", text))
    variables = {variable for setting in schema().values() for variable in setting.variables}
    assert variables | set(INTERNAL_VARIABLES) <= named
    ours = {name for name in named if re.match("SAFE_EXT_BUILD_.", name)}
    assert ours <= variables | set(INTERNAL_VARIABLES)


def test_the_check_of_the_page_is_an_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "settings.md"
    assert _settings_docs.main(["--check", str(page)]) == 1
    assert _settings_docs.main([str(page)]) == 0
    assert _settings_docs.main(["--check", str(page)]) == 0
    page.write_text("something else")
    assert _settings_docs.main(["--check", str(page)]) == 1
    assert "is not what the schema says" in capsys.readouterr().err


def test_the_page_is_made_by_a_command() -> None:
    command = [sys.executable, "-m", "safe_ext_build._settings_docs", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("where", ["file", "option", "environment"])
def test_what_is_no_setting_goes_to_another_backend(tmp_path: Path, where: str) -> None:
    others = {"cmake.define.X": ["1", "2"], "setup-args": "-Da=b", "jobs.max": "3"}
    text = table('backend = "mesonpy"') if where == "file" else ""
    options = {**others, "backend": "mesonpy"} if where == "option" else others
    environ = {"SAFE_EXT_BUILD_BACKEND": "mesonpy"} if where == "environment" else {}
    settings, rest = read(tmp_path, text, options, environ)
    assert settings.inner_backend == "mesonpy"
    assert not settings.uses_setuptools
    assert settings.jobs.max == 3
    assert rest == {"cmake.define.X": ["1", "2"], "setup-args": "-Da=b"}


def test_a_misspelt_setting_does_not_go_to_another_backend(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="max_jobs") as caught:
        read(tmp_path, table('backend = "mesonpy"'), {"max_jobs": "3"})
    assert "jobs.max" in caught.value.hint


def test_the_legacy_form_of_setuptools_is_setuptools(tmp_path: Path) -> None:
    options = {"backend": "setuptools.build_meta:__legacy__"}
    assert read(tmp_path, "", options)[0].uses_setuptools
    with pytest.raises(SettingsError, match="-C nonsense"):
        read(tmp_path, "", {**options, "nonsense": "1"})


@pytest.mark.parametrize("name", ["safe_ext_build.build_meta", "a b", "a:", "../x", "a..b"])
def test_what_is_no_backend(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="other than our own"):
        read(tmp_path, table(f"backend = '{name}'"))


def test_somebody_elses_package_does_not_say_where_we_write(tmp_path: Path) -> None:
    toml = table('workspace.dir = "/w"\nbuild-dir = "/b"\nreport.path = "/r.html"\njobs.max = 3')
    mine = {"SAFE_EXT_BUILD_REPORT_PATH": "/mine.html", FOREIGN: "1"}
    (tmp_path / "pyproject.toml").write_text(toml)
    settings, _ = load(tmp_path, {"build-dir": "/mine"}, mine)
    assert (settings.workspace.dir, settings.build_dir, settings.jobs.max) == (None, Path("/mine"), 3)
    assert settings.report.path == Path("/mine.html")
    assert load(tmp_path, {}, {})[0].workspace.dir == Path("/w")
    assert places(tmp_path) == [
        f"[tool.safe-ext-build] {name} in pyproject.toml" for name in ("workspace.dir", "build-dir", "report.path")
    ]


def test_what_the_user_wrote_is_named_in_place_of_the_variable(tmp_path: Path) -> None:
    named = {"SAFE_EXT_BUILD_TORCH_RUNTIME": "/python", "SAFE_EXT_BUILD_WRITTEN_TORCH_RUNTIME": "--python"}
    assert load(tmp_path, {}, named)[0].source("torch.runtime") == "--python"
