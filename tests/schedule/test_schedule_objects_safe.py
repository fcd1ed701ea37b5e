"""What is distrusted is removed: never a file that ninja does not make, nor one outside of the project."""

from __future__ import annotations

from pathlib import Path

from safe_ext_build.schedule.ninjafile import edges
from safe_ext_build.schedule.objects import Trust


def test_only_what_ninja_makes_in_the_project_is_removed(tmp_path: Path) -> None:
    """CMake's build.ninja names its own modules, and the project's CMakeLists.txt, as outputs of a phony edge."""
    project, system = tmp_path / "project", tmp_path / "system"
    objects = project / "build"
    names = [project / "CMakeLists.txt", system / "Module.cmake", system / "shared.o", objects / "a.o"]
    for path in names:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    text = (
        f"build {objects}/a.o: compile a.cu\n"
        f"build {system}/shared.o: compile a.cu\n"
        f"build {project}/CMakeLists.txt {system}/Module.cmake: phony\n"
    )
    Trust(str(objects), str(project), "new", may_touch=False).establish(edges(text), {})
    assert [path.name for path in names if path.exists()] == ["CMakeLists.txt", "Module.cmake", "shared.o"]
