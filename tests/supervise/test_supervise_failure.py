"""A compile that fails: what it costs, and what is printed last."""

from __future__ import annotations

from kill_harness import Project, started


def test_one_of_forty_sources_does_not_compile(project: Project) -> None:
    names = [f"s{number:02}" for number in range(40)]
    project.write_sources(dict.fromkeys(names, "seconds=0.3") | {"s00": "seconds=0.3 fail=2 say=boom"})
    with started(project, project.hook()) as build:
        # (A scan of all processes could be slower than this compile.)
        build.wait_until(lambda: any(project.objects.glob("s00.seb-*.o")), "the first source")
        before = len(list(project.objects.glob("*.o")))
        assert build.wait() == 1
        text = build.text()
        assert build.leftovers() == []
    source = project.root / "csrc" / "s00.cu"
    built = list(project.objects.glob("*.o"))
    assert "Traceback" not in text
    assert text.splitlines()[-1] == (
        f"safe-ext-build: error[SEB-6001]: {source} does not compile: {source}(1): error: boom"
    )
    said = [line for line in text.splitlines() if not line.startswith("safe-ext-build: ")]
    assert said[-1] == f"{source}(1): error: boom"
    assert text.count("error: boom") == 2
    # While it compiled, one other ended and was followed by one more; and those were let finish.
    assert len(built) <= before + 2, sorted(path.name for path in built)


def test_the_first_error_speaks_last(project: Project) -> None:
    """The other running compile fails later; it is shown, but the build ends with the first."""
    project.write_sources({"a": "seconds=0.2 fail=1 say=first", "b": "seconds=0.8 fail=1 say=second"})
    with started(project, project.hook()) as build:
        assert build.wait() == 1
        text = build.text()
    lines = [line for line in text.splitlines() if "error: " in line]
    assert [line.rpartition(" ")[2] for line in lines] == ["second", "first", "first"], text


def test_an_error_of_the_setup_script_keeps_its_traceback(project: Project) -> None:
    (project.root / "setup.py").write_text("import setuptools\n\nraise RuntimeError('of the project')\n")
    with started(project, project.hook()) as build:
        assert build.wait() == 1
        text = build.text()
    assert "Traceback" in text
    assert "RuntimeError: of the project" in text
    assert text.splitlines()[-2] == "safe-ext-build: error[SEB-6101]: RuntimeError: of the project", text
    assert text.splitlines()[-1] == "safe-ext-build: hint: `safe-ext-build explain SEB-6101` says what to do", text
