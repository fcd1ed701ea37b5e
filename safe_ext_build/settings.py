"""What the user may decide: the schema, and the reader of its three sources.

The dataclasses below are the only schema. The reader, the error messages and the reference page of the
documentation are generated from them: a field's type says what is allowed, the docstring under it what it
means. A value comes from the environment, from `-C`, or from `[tool.safe-ext-build]` in pyproject.toml, in
this order.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from .errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = "safe-ext-build"
PREFIX = "SAFE_EXT_BUILD_"

INTERNAL_VARIABLES = tuple(
    PREFIX + name
    for name in (
        *("ID", "WITHIN", "JOB", "PROBE", "SHIMS", "SOCKET", "BORROW", "FOREIGN", "TERMINAL", "WARD", "APART"),
        *("PREFIX_*", "WRITTEN_*"),
    )
)
"""Variables with our prefix (shell patterns) that we set ourselves inside a build: never settings."""

FOREIGN = PREFIX + "FOREIGN"
"""Set where what is built is somebody else's: its pyproject.toml then does not say where we write."""

APART = PREFIX + "APART"
"""Set where what is built lies in a directory of the user's that is to stay as it is: nothing is written there."""

PLACES = ("workspace.dir", "report.path", "build-dir")
"""The settings that say where we write."""

SETUPTOOLS_OPTIONS = ("verbose", "quiet", "editable-mode", "editable_mode")
"""The `-C` keys that setuptools.build_meta reads, apart from those that begin with `--`."""

SETUPTOOLS = "setuptools.build_meta"
"""The backend that runs inside ours when no other is named."""


# --- what a value may be ---


@dataclass(frozen=True)
class Kind:
    """What a value may be: `read` returns it, or raises ValueError; `allowed` completes "must be …"."""

    allowed: str
    read: Callable[[object], object]
    default: str = "not set"


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _read_path(value: object) -> Path:
    text = _read_text(value)
    if "\n" in text or "\0" in text:
        raise ValueError
    try:
        return Path(text).expanduser()
    except RuntimeError:  # `~` without a home directory
        raise ValueError from None


BUILD_DIR_FIELDS = ("cuda", "fingerprint", "project", "python", "torch")
"""What may stand in braces in `build-dir`."""


def _read_build_dir(value: object) -> Path:
    path = _read_path(value)
    if any(field not in BUILD_DIR_FIELDS for field in re.findall(r"\{([^{}]*)\}", str(path))):
        raise ValueError
    return path


def _read_report(value: object) -> Path:
    path = _read_path(value)
    if not path.name.endswith((".json", ".html")):
        raise ValueError
    return path


def _read_list(value: object) -> str | None:
    items = value if isinstance(value, list) else [value]
    return ";".join(text for text in map(_read_text, items) if text.strip()) or None


def _read_backend(value: object) -> str:
    text = _read_text(value).strip()
    module, _, attribute = text.partition(":")
    names = [*module.split("."), *(attribute.split(".") if ":" in text else [])]
    if names[0] == __package__ or not all(name.isidentifier() for name in names):
        raise ValueError
    return text


def _read_count(value: object, least: int = 1) -> int | None:
    """A count of at least `least`; None for "auto". Stricter than int(), which takes True, "+4", "4_0", "٤"."""
    if isinstance(value, str):
        text = value.strip()
        if text == "auto":
            return None
        if not (text.isascii() and text.isdecimal()):
            raise ValueError
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError
    return value


def _read_count_or_none(value: object) -> int | None:
    return _read_count(value, least=0)


_FLAG_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _read_flag(value: object) -> bool:
    """A truth value; as text also what people write into environment variables."""
    if isinstance(value, str):
        value = _FLAG_WORDS.get(value.strip().lower())
    if not isinstance(value, bool):
        raise ValueError
    return value


def _choice(options: tuple[str, ...]) -> Kind:
    def read(value: object) -> str:
        text = _read_text(value).strip()
        if text not in options:
            raise ValueError
        return text

    quoted = [f'"{option}"' for option in options]
    return Kind(f"{', '.join(quoted[:-1])} or {quoted[-1]}", read)


BackendName = Annotated[str | None, Kind('a module, or "module:object", other than our own', _read_backend)]
Text = Annotated[str | None, Kind("a string", _read_text)]
EnvironmentPath = Annotated[Path | None, Kind("the path of a Python, or of an environment", _read_path)]
FilePath = Annotated[Path | None, Kind("the path of a directory", _read_path)]
_FIELDS = ", ".join(f"{{{name}}}" for name in BUILD_DIR_FIELDS)
BuildDir = Annotated[
    Path | None, Kind(f"the path of a directory; in braces only {_FIELDS} may stand there", _read_build_dir)
]
ReportPath = Annotated[
    Path | None, Kind("the path of a file that ends in .html, .json or .trace.json", _read_report)
]
TextList = Annotated[str | None, Kind('a string or a list of strings, such as "8.0;9.0+PTX"', _read_list)]
Flag = Annotated[bool, Kind("true or false", _read_flag, "true")]
Count = Annotated[int | None, Kind('a whole number from 1 up, or "auto"', _read_count, '"auto"')]
CountOrNone = Annotated[int | None, Kind('a whole number from 0 up, or "auto"', _read_count_or_none, '"auto"')]


# --- the schema ---


@dataclass(frozen=True)
class Also:
    """The ecosystem's own variables for a setting, first come first served, and the hint for a bad value."""

    variables: tuple[str, ...] = ()
    hint: str = ""


_MAX_JOBS_HINT = (
    "leave it empty to have it derived from this machine "
    "(torch itself reads 0 as no limit, and ignores in silence what it cannot read)"
)


@dataclass(frozen=True)
class CudaSettings:
    """Which CUDA toolkit compiles, and for which GPUs."""

    home: Annotated[Text, Also(("CUDA_HOME", "CUDA_PATH"))] = None
    """The directory of the toolkit to use, as an absolute path. Another one is taken in its place only where
    `CUDA_HOME` or `CUDA_PATH` names a directory without a compiler, and a line says so. When it is not set,
    the toolkits of the machine are searched for the one that matches torch."""

    archs: Annotated[TextList, Also(("TORCH_CUDA_ARCH_LIST",), "write each one as a quoted string")] = None
    """The GPU architectures to compile for, in the syntax of `TORCH_CUDA_ARCH_LIST`; a list of strings means
    the same as the strings with `;` between them. When it is not set: those of the GPUs present, else torch's
    own list."""

    mismatch: Literal["exact", "minor", "any"] = "minor"
    """How far the toolkit's version may be from the CUDA version of torch. `exact`: same major and minor
    version. `minor`: another minor version is used, with a line that says so, when there is no exact match.
    `any`: another major version, too."""

    provision: Literal["auto", "never", "always"] = "auto"
    """Whether the frontend is asked to install the compiler into the build environment, as wheels of exactly
    torch's CUDA version (some 100 MB; torch for CUDA 13 or later). `auto`: for a project that asks for CUDA,
    when no toolkit of the machine is within `cuda.mismatch`. `never`: the toolkits of the machine only.
    `always`: also when one of the machine matches, so that every machine compiles with the same; then only
    `cuda.home` is stronger, and `CUDA_HOME` is not."""


@dataclass(frozen=True)
class TorchSettings:
    """Which torch the extension is built against."""

    match: Literal["runtime", "declared"] = "runtime"
    """`runtime`: the torch of the environment that the frontend (pip, uv, build) runs for, even under build
    isolation; where there is none, the one that `build-system.requires` brings. `declared`: always the one
    that `build-system.requires` brings."""

    runtime: EnvironmentPath = None
    """The environment that will import the result, as its directory or its Python. With `torch.match` =
    `runtime` the build uses its torch, and fails where it cannot; with `declared` a line says whether it has
    another one. When it is not set: the environment that the frontend runs for."""

    pin: Flag = False
    """Whether the wheel requires the minor version of the torch that it was built against (`torch==2.14.*`), so
    that it is not installed beside another. Only for projects that setuptools builds."""

    label: Flag = False
    """Whether the wheel's version says what it was built against, as a local version label: `1.2+cu130torch2.14`,
    so that wheels for two torches have two names, and pip's cache keeps them apart. For wheels that you hand out
    yourself: package indexes refuse local versions, and pip refuses an sdist of an index whose wheel has another
    version. Only for projects that setuptools builds."""


@dataclass(frozen=True)
class JobsSettings:
    """How many compilers run at once."""

    max: Annotated[Count, Also(("MAX_JOBS",), _MAX_JOBS_HINT)] = None
    """The most compile jobs that run at the same time. `auto`: derived from the CPUs, the memory and the
    process limit that the build may use."""

    nvcc_threads: Annotated[Count, Also(("NVCC_THREADS",))] = None
    """How many threads each nvcc uses (its `--threads`). Each thread compiles for another architecture and
    needs memory of its own, so fewer are used where memory is short. `auto`: as many as there are idle CPUs
    and memory for."""

    memory_guard: Flag = True
    """Whether compiles wait for memory, and are stopped and run again when it runs out. `false` leaves only
    the number of jobs, and a build that can take the machine down."""

    remote: CountOrNone = None
    """How many steps of compiles run at a time on a farm, in addition to what this machine compiles; `0`: none.
    `auto`: as many as its servers have CPUs that others do not use. Which farm there is, sccache's configuration
    says (`scheduler_url` in its `[dist]`)."""


@dataclass(frozen=True)
class FarmSettings:
    """The compile farm: other machines, which sccache-dist has compile."""

    required: Annotated[bool, Kind("true or false", _read_flag, "false")] = False
    """Whether a build ends, before it compiles anything, where there is no farm or it does not take work. Else it
    says why, and compiles here. A farm that is lost later ends no build: what is left is compiled here."""


@dataclass(frozen=True)
class WorkspaceSettings:
    """Where the temporary files of a build go."""

    dir: FilePath = None
    """The directory in which each build makes a workspace of its own and removes it at the end. It should be
    on a disk, not in memory. When it is not set: `/var/tmp`, or the user's cache where `/var/tmp` is no disk
    or has no room."""


@dataclass(frozen=True)
class ReportSettings:
    """What is written about a build once it has ended."""

    path: ReportPath = None
    """A file to write at the end of a build that compiles, also of one that fails: `.html`, a page to look at;
    `.json`, the record; `.trace.json`, a trace for Perfetto or chrome://tracing. A file that is already there is
    replaced; of directories that are not there, only the last is made. Frontends delete the directory of an
    unpacked sdist, so give an absolute path there."""


@dataclass(frozen=True)
class Settings:
    """All settings, with their values and where these came from."""

    cuda: CudaSettings = CudaSettings()
    torch: TorchSettings = TorchSettings()
    jobs: JobsSettings = JobsSettings()
    farm: FarmSettings = FarmSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    report: ReportSettings = ReportSettings()

    backend: BackendName = None
    """The PEP 517 backend that runs inside the supervised builder, written as `build-backend` is:
    `scikit_build_core.build`, `mesonpy`. Every `-C` key that is no setting of ours goes to it. When it is not
    set: `setuptools.build_meta`."""

    backend_path: TextList = None
    """Where a backend that is part of the project lies, written as `backend-path` of `[build-system]` is:
    directories inside the project; a list of strings means the same as the strings with `;` between them."""

    build_dir: BuildDir = None
    """The directory where compiled objects are kept for the next build. When it is not set: setuptools'
    `build/`, or the user's cache where the project's own directory does not last (an unpacked sdist).
    `{project}`, `{python}`, `{torch}` and `{cuda}` in it stand for the project's name and for the versions
    that the build uses, `{fingerprint}` for all that its objects depend on: with it, what another torch or
    compiler has built is kept as well, where otherwise it is built anew at each change."""

    require_cuda: Flag = False
    """Whether the result must have code for GPUs. With `true`, a build ends before it compiles anything where
    torch is no CUDA build or there is no CUDA compiler, and fails where its wheel has no device code or lacks a
    module that the setup script declares."""

    launcher: Literal["auto", "none", "ccache", "sccache"] = "auto"
    """The compiler cache that compiles go through. `auto`: the one that is installed and that you have configured
    or used (a variable of its own in the environment, its configuration file, a cache that it has filled); of two,
    ccache; and one that CC or CMake puts before a compiler. `none`: no cache, not even such a one.
    With `TORCH_NO_COMPILER_WRAPPER` in the environment, `auto` uses no other than such a one."""

    check: Flag = True
    """Whether the extension modules of a finished build are read and loaded, with the torch that they were built
    against. A module with undefined symbols fails the build. It takes some seconds, and the memory of one
    `import torch`."""

    on_running: Literal["wait", "replace", "fail"] = "wait"
    """What a build does while another build of the same project runs (of the same directory; or of the same sdist,
    for the same torch and compilers). `wait`: it says which one, and begins when that has ended, in whatever way.
    `replace`: it ends the other one first, completely. `fail`: it ends with an error."""

    progress: Literal["auto", "tty", "lines", "off"] = "auto"
    """How it is shown how far a build is. `auto`: a bar in the last row of the terminal, where the backend's
    output goes to one; else, as in a log, a line for each object and one each minute. `tty`: also a bar on the
    terminal that pip or uv runs in, which keeps the backend's output to itself. `lines`: lines, never a bar.
    `off`: neither."""

    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def inner_backend(self) -> str:
        """The backend that runs inside ours."""
        return self.backend or SETUPTOOLS

    @property
    def inner_path(self) -> tuple[str, ...]:
        """The directories of an in-tree backend, relative to the project."""
        return tuple(filter(None, (self.backend_path or "").split(";")))

    @property
    def uses_setuptools(self) -> bool:
        """Whether that is setuptools; its legacy form, `setuptools.build_meta:__legacy__`, included."""
        return self.inner_backend.partition(":")[0] == SETUPTOOLS

    def source(self, name: str) -> str:
        """Where the value of a setting (`jobs.max`) came from, in words; "default" when nobody set it."""
        schema()[name]  # a misspelt name is our mistake, not a default
        return self.sources.get(name, "default")


@dataclass(frozen=True)
class Setting:
    """One setting of the schema: its dotted name, and what the reader and the documentation need of it."""

    name: str
    kind: Kind
    default: object
    also: Also

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it; the first that is not empty wins."""
        return (PREFIX + self.name.replace(".", "_").replace("-", "_").upper(), *self.also.variables)


def _walk(cls: type, table: str) -> Iterator[Setting]:
    hints = get_type_hints(cls, include_extras=True)
    for item in dataclasses.fields(cls):
        name, hint = table + item.name.replace("_", "-"), hints[item.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, f"{name}.")
        elif get_origin(hint) is Literal:
            yield Setting(name, _choice(get_args(hint)), item.default, Also())
        elif get_origin(hint) is Annotated:
            kind, *also = hint.__metadata__
            yield Setting(name, kind, item.default, also[0] if also else Also())


@functools.lru_cache(maxsize=1)
def schema() -> dict[str, Setting]:
    """Every setting by its dotted name, in the order in which the dataclasses state them."""
    return {setting.name: setting for setting in _walk(Settings, "")}


def _settings_of(values: Mapping[str, object], sources: Mapping[str, str]) -> Settings:
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        table, _, key = name.rpartition(".")
        tables.setdefault(table, {})[key.replace("-", "_")] = value
    top: dict[str, Any] = {**tables.pop("", {}), "sources": sources}
    for table, keys in tables.items():
        top[table] = dataclasses.replace(getattr(Settings, table), **keys)
    return Settings(**top)


# --- reading ---


@dataclass(frozen=True)
class _Given:
    """A value as it was written; `spelling` is how one writes a setting there, `others` what else exists."""

    name: str
    value: object
    source: str
    spelling: str
    others: tuple[str, ...] = ()

    def spelled(self, setting: Setting) -> str:
        value = self.value if isinstance(self.value, str) else _shown(self.value)
        words = {"name": setting.name, "variable": setting.variables[0]}
        return self.spelling.format(**words, value=value, toml=_shown(self.value)).removesuffix("=")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flattened(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = prefix + (f'"{key}"' if "." in key else key)
        if isinstance(value, dict) and value:
            yield from _flattened(value, f"{name}.")
        elif value != {} or not _settings_in(name):
            yield name, value


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        hint = f"{path} has to be a file that you may read, in UTF-8."
        raise SettingsError(f"{path.name} cannot be read: {error}", code="SEB-1001", hint=hint) from error
    except tomllib.TOMLDecodeError as error:
        hint = f"Correct {path} there: text is written in quotes, a list in [ ]."
        raise SettingsError(f"{path.name} is not valid TOML: {error}", code="SEB-1002", hint=hint) from error


def _table(value: object, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        message = f"{name} in {path.name} is {_shown(value)}, but it must be a table"
        hint = (
            f"Write [tool.{TABLE}] on a line of its own, and below it a line `setting = value` for each setting."
        )
        raise SettingsError(message, code="SEB-1003", hint=hint)
    return value


def _file_values(path: Path) -> Iterator[_Given]:
    tools = _table(_parsed(path).get("tool", {}), "tool", path)
    for name in tools:
        if name != TABLE and name.lower().replace("_", "-") == TABLE:
            message = f"[tool.{name}] in {path.name}: there is no such table"
            raise SettingsError(message, code="SEB-1004", hint=f"did you mean [tool.{TABLE}]?")
    for name, value in _flattened(_table(tools.get(TABLE, {}), f"tool.{TABLE}", path)):
        yield _Given(name, value, f"[tool.{TABLE}] {name} in {path.name}", "{name} = {toml}")


def _is_forwarded(key: str, any_key: bool) -> bool:
    """Whether a `-C` key is for the inner backend. `any_key`: we do not know what it reads."""
    return key in SETUPTOOLS_OPTIONS or ((any_key or key.startswith("--")) and _plain(key) not in _aliases())


def _option_values(config_settings: Mapping[str, object], any_key: bool) -> Iterator[_Given]:
    for key, value in config_settings.items():
        if not _is_forwarded(key, any_key):
            last = value[-1] if isinstance(value, list) and value else value
            yield _Given(key, last, f"-C {key}", "-C {name}={value}", SETUPTOOLS_OPTIONS)


def _environment_values(environ: Mapping[str, str]) -> Iterator[_Given]:
    known: set[str] = set()
    for setting in schema().values():
        known.update(setting.variables)
        for variable in reversed(setting.variables):  # what is read last wins
            source = environ.get(written_variable(variable)) or f"{variable} in the environment"
            yield _Given(setting.name, environ.get(variable, ""), source, "{variable}={value}")
    for variable in sorted(environ):
        internal = any(fnmatchcase(variable, pattern) for pattern in INTERNAL_VARIABLES)
        if variable.startswith(PREFIX) and variable not in known and not internal:
            name = variable.removeprefix(PREFIX).lower()
            yield _Given(name, environ[variable], f"{variable} in the environment", "{variable}={value}")


def written_variable(variable: str) -> str:
    """Where a command of ours that sets a variable says what the user has written instead."""
    return f"{PREFIX}WRITTEN_{variable.removeprefix(PREFIX)}"


def _is_empty(value: object) -> bool:
    """Whether nothing was said: CI templates set variables to "" where nobody gave a value."""
    return value is None or (isinstance(value, str) and not value.strip())


def _checked(given: _Given) -> object:
    setting = schema().get(given.name)
    if setting is None:
        raise _unknown(given)
    try:
        return setting.kind.read(given.value)
    except ValueError:
        message = f"{given.source} is {_shown(given.value)}, but it must be {setting.kind.allowed}"
        hint = setting.also.hint or f"Write another value there, or leave {setting.name} out for its default."
        raise SettingsError(message, code="SEB-1005", hint=hint) from None


def load(
    project: Path, config_settings: Mapping[str, object] | None, environ: Mapping[str, str]
) -> tuple[Settings, dict[str, object]]:
    """The settings for the project in the directory `project`, and the `-C` settings that are for setuptools.

    Every value is checked, also those that another source overrides. Raises SettingsError.
    """
    options = config_settings or {}
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    in_file, in_environment = [*_file_values(project / "pyproject.toml")], [*_environment_values(environ)]
    if environ.get(FOREIGN):
        in_file = [given for given in in_file if given.name not in PLACES]
    any_key = _names_other_backend([*in_file, *in_environment], options)
    for given in (*in_file, *_option_values(options, any_key), *in_environment):
        if given.name in schema() and _is_empty(given.value):
            continue
        value = _checked(given)
        values[given.name] = project.absolute() / value if isinstance(value, Path) else value
        sources[given.name] = given.source
    return _settings_of(values, sources), {key: options[key] for key in options if _is_forwarded(key, any_key)}


def places(project: Path) -> list[str]:
    """The settings in a project's pyproject.toml that say where we write, in words. Raises SettingsError."""
    return [given.source for given in _file_values(project / "pyproject.toml") if given.name in PLACES]


def _names_other_backend(given: Iterable[_Given], options: Mapping[str, object]) -> bool:
    named = [options.get("backend"), *(one.value for one in given if one.name == "backend")]
    return any(not _is_empty(name) and str(name).partition(":")[0] != SETUPTOOLS for name in named)


# --- what to do about a name that does not exist ---

_NEAR = 0.75  # a slip in a name, or a part of it; below that, names have only a word in common


def _settings_in(table: str) -> list[Setting]:
    return [setting for setting in schema().values() if setting.name.startswith(f"{table}.")]


def _plain(name: str) -> str:
    return name.lower().strip('-"').replace("_", ".").replace("-", ".")


@functools.lru_cache(maxsize=1)
def _aliases() -> dict[str, Setting]:
    """What people may write when they mean a setting: its name, its table, its key, its variables."""
    aliases: dict[str, Setting] = {}
    for setting in schema().values():
        table, _, key = setting.name.rpartition(".")
        for alias in (setting.name, table, key, *setting.also.variables):
            aliases.setdefault(_plain(alias), setting)
    del aliases[""]  # the table of a setting that has none
    return aliases


def _closest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), "")


def _meant(given: _Given, setting: Setting) -> str:
    """The line as it may have been meant; without the value where that would be the next mistake."""
    line = given.spelled(setting)
    try:
        setting.kind.read(given.value)
    except ValueError:
        return f"did you mean {line.partition('=')[0].strip()}? It must be {setting.kind.allowed}."
    return f"did you mean {line}?"


def _unknown(given: _Given) -> SettingsError:
    inside = _settings_in(given.name)
    if inside:
        names = ", ".join(setting.name for setting in inside)
        message = f"{given.source} is {_shown(given.value)}, but {given.name} is a table of settings"
        return SettingsError(
            message, code="SEB-1007", hint=f"write {given.spelled(inside[0])} (the settings are: {names})"
        )
    setting = _aliases().get(_closest(_plain(given.name), _aliases(), _NEAR))
    other = _closest(given.name, given.others)
    hint = "the settings are: " + ", ".join(schema())
    if setting is not None:
        hint = _meant(given, setting)
    elif other:
        hint = f"did you mean {other}?"
    return SettingsError(f"{given.source}: there is no such setting", code="SEB-1006", hint=hint)
