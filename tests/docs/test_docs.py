"""Every command in the documentation is run, every setting is read, and what is not says why."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import docs_recipes
import pytest
from docs_pages import COMMANDS, DATA, OUTPUT, PAGES, RECIPES, REPOSITORY, Block, all_blocks, inline_code, passages
from docs_scenes import REAL, SCENES, House, Place, cuda, make_house, new_place, project
from docs_shell import Command, commands_of, first_not_seen
from frontend_runs import on_cuda, why_no_cuda
from packaging.requirements import Requirement

from safe_ext_build import settings
from safe_ext_build.cli.main import parser

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest_plugins = ["frontend_fixtures"]
pytestmark = pytest.mark.frontend

BLOCKS = all_blocks()
PASSAGES = passages(BLOCKS)
# How many blocks at most say `not run`: who adds one, finds a way to run it, or raises this on purpose.
MOST_NOT_RUN = 9
PLAYERS = 3  # of passages at a time: much of a build is waiting
PROGRAMS = (
    *("pip", "python", "uv", "safe-ext-build", "tox", "cibuildwheel", "cmake", "ps", "git", "sh"),
    *("docker", "apt", "apt-get", "dnf", "conda"),
)
# Commands within the text that no block runs (patterns), and why that will do.
MENTIONED = {
    "docker *": "there is no Docker here",
    "apt install *": "it is for another machine",
    "dnf install *": "it is for another machine",
    "conda install *": "it is for another machine",
    "sh cuda_*": "it installs a toolkit",
    "git submodule *": "it is for another repository",
    "uv run": "a name",
    "pip -v": "a name",
    "pip wheel -v": "a name; with its arguments it is run",
    "pip install -e .": "with --no-build-isolation it is run",
    "pip install --no-cache-dir *": "it begins a command that is run",
    "python -m build --no-isolation": "with --wheel it is run",
    'python -m pip install ".[[]docs]" *': "the CI job runs it",
    "python -m safe_ext_build": "the tests of the command line run it so",
    "python tests/benchmarks/*": "they take hours; that the files exist is looked at",
    "pip config list": "it only shows",
    "cmake --fresh": "an option of CMake's",
    "ps -e": "it only shows",
}
TABLES = {"build-system", "project"}
TOOLS = {"safe-ext-build", "uv", "cibuildwheel", "scikit-build", "setuptools"}


# --- what there is ---


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_every_block_is_known_and_covered(block: Block) -> None:
    """A block that holds commands says how they are run, or why they are not."""
    assert block.language in (*COMMANDS, *RECIPES, *DATA, *OUTPUT), f"{block.place}: a new language?"
    if block.language in (*COMMANDS, *RECIPES):
        assert block.words or block.why_not, f"{block.place}: say above it how it is tested"
    if block.language in OUTPUT and not block.words:
        lines = [line for line in block.text.splitlines() if re.match(rf"(\$ |({'|'.join(PROGRAMS)}) )", line)]
        assert not lines, f"{block.place}: commands without a language: {lines}"
    unknown = [scene for scene in block.scenes if scene not in SCENES]
    assert not unknown, f"{block.place}: there are no scenes {unknown}"


def test_few_blocks_are_not_run() -> None:
    reasons = [(block.place, block.why_not) for block in BLOCKS if block.why_not]
    assert len(reasons) <= MOST_NOT_RUN, reasons
    assert all(len(why) > 10 for _, why in reasons), reasons


def test_a_passage_begins_with_a_scene() -> None:
    assert [passage[0].place for passage in PASSAGES if not passage[0].scenes and not passage[0].file] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_the_text_exist(page: Path) -> None:
    """What begins with our name parses, and what is written as a setting is one."""
    known = set(settings.schema())
    for number, text in inline_code(page):
        where = f"{page.name}:{number}: {text}"
        if text.startswith("safe-ext-build ") and "…" not in text and "..." not in text:
            # In the reference: what may be left out stands in brackets, and one of several is as good as another.
            plain = re.sub(r"\|\S+", "", re.sub(r"\[[^]]*\]", "", text))
            _parse(shlex.split(plain)[1:], where)
        for option in re.findall(r"(?<!\S)-C ([a-z-]+\.[a-z-]+|jobs|check)=", text):
            assert option in known or option.startswith(("cmake.", "editable")), where
        for name in re.findall(r"\bSAFE_EXT_BUILD_[A-Z_]+\b(?!\*)", text):
            _is_variable(name, known, where)


def test_commands_within_the_text_are_run_or_known() -> None:
    run = "\n".join(block.text for passage in PASSAGES for block in passage)
    seen = set()
    for page in PAGES:
        if page.read_text().startswith("<!-- Generated"):  # of texts that are tested where they stand
            continue
        for number, text in inline_code(page):
            words = text.split()
            if len(words) < 2 or words[0] not in PROGRAMS or words[0] == "safe-ext-build" or text in run:
                continue
            known = next((pattern for pattern in MENTIONED if fnmatchcase(text, pattern)), None)
            assert known, f"{page.name}:{number}: no block runs `{text}`"
            seen.add(known)
            if words[1].startswith("tests/"):
                assert Path(REPOSITORY, words[1]).exists(), text
    assert seen == set(MENTIONED), "what is not mentioned any more need not be known"


def test_the_reference_has_every_command_and_option() -> None:
    text = Path(REPOSITORY, "docs", "reference", "cli.md").read_text()
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        assert f"`safe-ext-build {name} " in text, name
        options = [option for action in command._actions for option in action.option_strings if option != "-h"]
        missing = [option for option in options if option != "--help" and option not in text]
        assert missing == [], name


def _parse(words: list[str], where: str) -> None:
    try:
        parser().parse_args(words)
    except SystemExit as end:
        assert end.code == 0 or words in ([name] for name in ("wheel", "run")), where


def _is_variable(name: str, known: set[str], where: str) -> None:
    plain = {key.replace(".", "_").replace("-", "_").upper() for key in known}
    rest = name.removeprefix(settings.PREFIX).rstrip("_")
    internal = {pattern.removeprefix(settings.PREFIX).rstrip("_*") for pattern in settings.INTERNAL_VARIABLES}
    assert rest in plain | internal, where


# --- data ---


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "toml"], ids=lambda block: block.place
)
def test_toml_is_what_its_readers_take(block: Block, tmp_path: Path) -> None:
    document = tomllib.loads(block.text)
    assert set(document) <= TABLES | {"tool"}, block.place
    assert set(document.get("tool", {})) <= TOOLS, block.place
    for requirement in document.get("build-system", {}).get("requires", ()):
        Requirement(requirement)
    (tmp_path / "pyproject.toml").write_text(block.text)
    settings.load(tmp_path, {}, {})
    if "uv" in document.get("tool", {}):
        _uv_takes(tmp_path)
    if "cibuildwheel" in document.get("tool", {}):
        _cibuildwheel_takes(tmp_path)


def _program(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts"), name))


def _uv_takes(directory: Path) -> None:
    """uv warns about what it does not know in its table."""
    done = subprocess.run(
        [_program("uv"), "pip", "list", "--offline"], cwd=directory, capture_output=True, text=True, check=False
    )
    assert "pyproject.toml" not in done.stderr, done.stderr


def _cibuildwheel_takes(directory: Path) -> None:
    """It reads all options before it says what it would build, and refuses those that it does not know."""
    (directory / "setup.py").touch()
    command = [_program("cibuildwheel"), "--platform", "linux", "--archs", "x86_64", "--print-build-identifiers"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "manylinux_x86_64" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block.place
)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


# --- commands ---


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> House:
    """Made with one build, whose traces `report` and `history` show."""
    root = tmp_path_factory.mktemp("docs")
    made = make_house(root, wheelhouse)
    with ExitStack() as cleanup:
        place = new_place(root / "first", made, wheelhouse, cleanup)
        cuda(place)
        kernels = project(place.work / "flash-attention", "standin", seconds=0.5, burn=1)
        subprocess.run(
            [str(place.python), "-m", "pip", "wheel", "-q", "--no-deps", "."],
            cwd=kernels,
            env=place.shell.environ,
            check=True,
        )
        (root / "first" / "cache").rename(made.cache)
    return made


def script_of(block: Block, place: Place) -> list[Command]:
    if block.language == "dockerfile":
        return [Command(docs_recipes.dockerfile(block.text, place.root / "image"))]
    if block.language == "yaml":
        return [Command(f"(\n{docs_recipes.workflow(block.text)}\n)")]
    return commands_of(block.language, block.text)


def play(block: Block, place: Place) -> None:
    """Write the file that a block is, or run its commands and compare what they print."""
    if block.file:
        place.shell.write(block.file, block.text)
    if block.file and block.language not in (*COMMANDS, *RECIPES):
        return
    wanted = block.number("status") or 0
    seconds = block.number("seconds")
    commands = script_of(block, place)
    ended = place.shell.run(commands, seconds)
    for one in ended:
        output = place.shell.as_on_the_page(one.output)
        where = f"{block.place}: {one.command.text}\n{output}"
        assert one.status == wanted or (seconds is not None and one.status in (124, 130)), where
        missing = first_not_seen(one.command.shown, output)
        assert missing is None, f"{where}\nhas no line like: {missing}"
    assert len(ended) == len(commands), f"{block.place}: the shell ended early"


def needs_cuda(passage: list[Block]) -> bool:
    return REAL in passage[0].scenes


def place_of(passage: list[Block]) -> str:
    return passage[0].place


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest, house: House, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The passages that were asked for, some at a time: each is a user who knows nothing of the others."""
    asked = [item for item in request.session.items if isinstance(item, pytest.Function)]
    passages = [
        cast("list[Block]", item.callspec.params["passage"]) for item in asked if "passage" in item.fixturenames
    ]
    able = [passage for passage in passages if not (needs_cuda(passage) and why_no_cuda())]
    with ThreadPoolExecutor(PLAYERS) as pool:
        yield {
            passage[0].place: pool.submit(
                play_passage, passage, house, wheelhouse, tmp_path_factory.mktemp("place")
            )
            for passage in sorted(able, key=needs_cuda, reverse=True)
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("passage", [one for one in PASSAGES if not needs_cuda(one)], ids=place_of)
def test_commands_run(passage: list[Block], played: dict[str, Future[None]]) -> None:
    played[passage[0].place].result()


@on_cuda
@pytest.mark.parametrize("passage", [one for one in PASSAGES if needs_cuda(one)], ids=place_of)
def test_commands_run_with_the_real_nvcc(passage: list[Block], played: dict[str, Future[None]]) -> None:
    played[passage[0].place].result()


def play_passage(passage: list[Block], house: House, wheelhouse: Path, root: Path) -> None:
    """Play the blocks of a passage, one after the other; nothing of theirs may be left."""
    with ExitStack() as cleanup:
        place = new_place(root / "place", house, wheelhouse, cleanup)
        if not needs_cuda(passage):
            cuda(place)
        for scene in passage[0].scenes:
            SCENES[scene](place)
        for block in passage:
            play(block, place)
        cleanup.close()
        assert list((root / "place" / "workspaces").glob("safe-ext-build-*/*/")) == []
