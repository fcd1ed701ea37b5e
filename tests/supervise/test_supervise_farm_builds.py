"""Builds on a farm of real servers: what happens to one of them costs the build time, and never its outcome."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import farm_builds
import farm_harness
import psutil
import pytest
from farm_builds import FarmBuild, above, at_a_time, compiled_here, project_on, started, write
from farm_harness import Farm
from kill_harness import PROMISE, Project, number_of

pytestmark = pytest.mark.frontend

SECRET = "s3cr3t-of-the-environment"
LIMIT = 2  # compiles at a time on this machine, as the harness says by MAX_JOBS
BACK = "what the farm does not compile ("
SILENT = "the farm's scheduler does not answer any more: what is left is compiled here until it does"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return farm_builds.make_compiler(tmp_path_factory.mktemp("compiler"))


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """Of two servers with a CPU each: two compiles at a time."""
    with farm_harness.farm(tmp_path / "farm", servers=2, memory=256 << 20, cpus=1) as farm:
        yield farm


@pytest.fixture
def project(farm: Farm, tmp_path: Path, compiler: Path) -> Project:
    return project_on(farm, tmp_path / "user", compiler, FARM_TEST_TOKEN=SECRET)


def ours(text: str) -> list[str]:
    """What we said."""
    return re.findall(r"^safe-ext-build: (?!\[)(.*)$", text, re.MULTILINE)


def ended_well(build: FarmBuild, seconds: float = 90) -> list[str]:
    """Wait for the end of a build that goes on whatever has happened; returns what was said."""
    assert build.wait(seconds) == 0, build.text()
    build.mark("")
    assert build.seconds_to_clear() <= PROMISE, f"{build.names()}\n{build.text()}"
    assert build.leftovers() == []
    assert at_a_time(compiled_here(build.project)) <= LIMIT, compiled_here(build.project)
    return ours(build.text())


def names_here(project: Project) -> set[str]:
    return {name for name, _, _ in compiled_here(project)}


def test_a_build_is_compiled_by_the_farm_which_learns_no_secret(farm: Farm, project: Project) -> None:
    write(project, {f"s{number}": "seconds=1" for number in range(6)})
    with started(farm, project) as build:
        build.wait_until_away(2)
        found = [psutil.Process(pid).environ() for pid in build.compilers_away()]
        lines = ended_well(build)
    assert found and all(SECRET not in value for environ in found for value in environ.values())
    logs = "".join(path.read_text() for path in farm.place.glob("*.log"))
    assert logs.count(" updated state to Complete") >= 2
    assert SECRET not in logs and SECRET not in build.text()
    assert farm.client_token not in build.text()
    assert any("up to 2 compiles at a time on the farm of" in line for line in lines)
    assert not [line for line in lines if line.startswith(BACK)], lines
    assert len(names_here(project)) <= 4, "two and more were compiled there"


def test_what_fails_everywhere_is_said_once_and_what_fails_there_is_compiled_here(
    farm: Farm, project: Project
) -> None:
    write(project, {f"s{number}": "seconds=0.5 fail=2" for number in range(4)})
    with started(farm, project) as build:
        lines = ended_well(build)
    assert names_here(project) == {f"s{number}.cu" for number in range(4)}
    assert [line for line in lines if line.startswith(BACK)], "something was tried there"
    write(project, {f"w{number}": "seconds=0.5 fail=1" for number in range(4)})
    with started(farm, project) as build:
        assert build.wait() != 0
        text = build.text()
    said = re.findall(r"^/\S+/csrc/(\w+)\.cu:1:1: error: it is told to fail$", text, re.MULTILINE)
    assert said and len(said) == len(set(said)), text
    assert "SEB-6001" in text and "sccache: error" not in text


def kill(farm: Farm) -> None:
    farm.stop(0)


def scheduler_dies(farm: Farm) -> None:
    farm.scheduler_down()


def scheduler_comes_back(farm: Farm) -> None:
    farm.scheduler_down()
    farm.scheduler_up()
    farm.wait(servers=0)


@pytest.mark.parametrize("fault", [kill, scheduler_dies, scheduler_comes_back])
def test_who_dies_in_the_middle_costs_no_build(
    farm: Farm, project: Project, fault: Callable[[Farm], None]
) -> None:
    write(project, {f"s{number}": "seconds=3" for number in range(4)})
    with started(farm, project) as build:
        build.wait_until_away(2)
        fault(farm)
        lines = ended_well(build)
    assert len(names_here(project)) >= 3, "one more than what began here"
    assert len([line for line in lines if line.startswith(BACK)]) == 1, lines
    assert lines.count(SILENT) <= 1


def test_a_server_that_hangs_and_one_that_is_cut_off_cost_their_steps(tmp_path: Path, compiler: Path) -> None:
    with farm_harness.farm(tmp_path / "farm", servers=3, memory=256 << 20, cpus=1) as farm:
        project = project_on(farm, tmp_path / "user", compiler)
        write(project, {f"s{number}": "seconds=3" for number in range(4)})
        with started(farm, project) as build:
            build.wait_until_away(3)
            farm.stop(0, signal.SIGSTOP)
            farm.cut(1)
            lines = ended_well(build)
    lost = [line for line in lines if "does not answer any more" in line]
    assert lost and "the client of the compile farm is lost: a server of the farm, 198.18." in lost[0]


def test_memory_that_a_server_lacks_is_found_here(farm: Farm, project: Project) -> None:
    write(project, {f"s{number}": "seconds=1 mib=400" for number in range(4)})
    with started(farm, project) as build:
        lines = ended_well(build)
    assert farm.kernel_kills(0) + farm.kernel_kills(1) > 0
    assert all(server.runs for server in farm.servers)
    assert [line for line in lines if line.startswith(BACK)] == [
        f"{BACK}sccache: Compiler killed by signal 9) is compiled here"
    ]
    assert names_here(project) == {f"s{number}.cu" for number in range(4)}


def test_the_client_is_started_again(farm: Farm, project: Project) -> None:
    write(project, {f"s{number}": "seconds=2" for number in range(5)})
    with started(farm, project) as build:
        build.wait_until_away(2)
        farm_client(build).kill()
        build.wait_until(lambda: "it is started again" in build.text(), "the line")
        assert farm_client(build).is_running()
        lines = ended_well(build)
    lost = "the client of the compile farm is lost: it ended with signal 9; it is started again"
    assert lines.count(lost) == 1


def farm_client(build: FarmBuild) -> psutil.Process:
    """The one with the farm: of the two servers that the supervisor has, it is not told to forget it."""
    servers = [one for one in build.named("sccache") if above(one) == "seb-super"]
    (found,) = [one for one in servers if one.environ().get("SCCACHE_SERVER_UDS", "").endswith("/farm")]
    return found


def test_without_its_lookout_a_build_goes_on(farm: Farm, project: Project) -> None:
    write(project, {f"s{number}": "seconds=1" for number in range(5)})
    with started(farm, project) as build:
        build.wait_until_away(2)
        build.hit("seb-lookout", signal.SIGKILL)
        lines = ended_well(build)
    assert not [line for line in lines if line.startswith(BACK)], lines


@pytest.mark.parametrize(
    ("victim", "name"),
    [
        ("frontend", "KILL"),
        ("group", "INT"),
        ("seb-super", "KILL"),
        ("seb-job", "KILL"),
        ("frontend+hook+seb-super", "KILL"),
    ],
)
def test_whatever_is_hit_nothing_is_left_here_and_the_servers_go_on(
    farm: Farm, project: Project, victim: str, name: str
) -> None:
    write(project, {f"s{number}": "seconds=30" for number in range(4)})
    command = project.uv() if "frontend" in victim else project.hook()
    with started(farm, project, command) as build:
        build.wait_until_away(2)
        services = [server.process.pid for server in farm.servers if server.process]
        build.hit(victim, number_of(name))
        seconds = build.seconds_to_clear()
        assert seconds <= PROMISE, f"{seconds:.1f} s; still there: {build.names()}\n{build.text()}"
        build.wait()
        assert build.leftovers() == []
        assert list(project.root.rglob(".seb")) == []
    assert all(server.runs for server in farm.servers) and farm.scheduler.runs
    assert services == [server.process.pid for server in farm.servers if server.process]
    assert farm.status().servers == 2


def test_a_wrong_token_is_an_error_only_where_a_farm_is_required(
    farm: Farm, tmp_path: Path, compiler: Path
) -> None:
    project = project_on(farm, tmp_path / "user", compiler, "wrong")
    write(project, {"one": "seconds=0"})
    with started(farm, required(project)) as build:
        assert build.wait() != 0
        assert "error[SEB-9009]" in build.text(), build.text()
        assert build.leftovers() == []
    assert names_here(project) == set(), "before anything is compiled"
    with started(farm, project) as build:
        lines = ended_well(build)
    assert len([line for line in lines if line.startswith("the compile farm is not used: ")]) == 1, lines
    assert names_here(project) == {"one.cu"}


def test_a_scheduler_that_does_not_answer_costs_seconds(farm: Farm, project: Project) -> None:
    farm.scheduler.signal(signal.SIGSTOP)
    write(project, {"one": "seconds=0"})
    with started(farm, project) as build:
        lines = ended_well(build)
    (line,) = [line for line in lines if line.startswith("the compile farm is not used: ")]
    assert "says nothing within 3 s: it hangs" in line
    assert names_here(project) == {"one.cu"}


def required(project: Project) -> Project:
    return Project(
        project.root,
        project.compiler,
        project.scratch,
        {**project.variables, "SAFE_EXT_BUILD_FARM_REQUIRED": "true"},
    )
