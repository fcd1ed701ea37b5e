"""Files that hold commands, as scripts: the RUN lines of a Dockerfile and the steps of a workflow."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_FLAG = re.compile(r"^--(\w+)=\S+\s+")


def dockerfile(text: str, root: Path) -> str:
    """A script that does what RUN, ENV, WORKDIR and COPY say, with the image's file system below `root`.

    FROM and ENTRYPOINT are nothing to run. Raises ValueError for an instruction that is not known.
    """
    return "\n".join(["set -e", "context=$PWD", *(_instruction(*one, root) for one in _instructions(text))])


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def _instruction(name: str, rest: str, root: Path) -> str:
    if name == "RUN":
        while flag := _FLAG.match(rest):
            if flag[1] != "mount":
                raise ValueError(f"RUN --{flag[1]} is not known here")
            rest = rest[flag.end() :]
        return rest
    if name in ("ENV", "ARG"):
        return f"export {rest}" if "=" in rest else ":"
    if name == "WORKDIR":
        inside = shlex.quote(str(root / rest.lstrip("/")))
        return f"mkdir -p {inside} && cd {inside}"
    if name == "COPY":
        if rest.startswith("--from="):
            return ":"
        source, target = rest.split()
        return f'cp -r "$context"/{source} {target}'
    if name in ("FROM", "CMD", "ENTRYPOINT"):
        if name != "FROM":
            json.loads(rest)
        return ":"
    raise ValueError(f"{name} is not known here")


def workflow(text: str) -> str:
    """A script of the steps of a GitHub workflow with one job. Raises ValueError for what only GitHub can run."""
    document: dict[Any, Any] = yaml.safe_load(text)
    # YAML 1.1 reads the key `on` as true.
    if not {True, "jobs"} <= document.keys():
        raise ValueError("a workflow has `on` and `jobs`")
    (job,) = document["jobs"].values()
    lines = ["set -e"]
    for step in job["steps"]:
        environ = {**document.get("env", {}), **job.get("env", {}), **step.get("env", {})}
        if "run" not in step:
            if "@" not in step["uses"]:
                raise ValueError(f"{step['uses']} has no version")
            continue
        if "${{" in step["run"]:
            raise ValueError("a command with an expression of GitHub's cannot be run here")
        exports = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in environ.items())
        lines.append(f"(export {exports or ' _'}; {step['run'].rstrip()}\n)")
    return "\n".join(lines)
