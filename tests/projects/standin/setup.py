"""A project that compiles as torch's helper does, without torch: it writes a build.ninja and runs ninja on it.

STANDIN_COMPILER is the program that stands for nvcc; every file of csrc/ is compiled with it, with STANDIN_FLAGS.
STANDIN_DEPENDENCIES are its options for a depfile, when they are not nvcc's. STANDIN_SLEEP is how many seconds
the script sleeps before it does anything, in every hook. Sources named 0_x, 1_y, 1_z ... are compiled in
stages, as if each stage wrote headers for the next.
"""

import os
import subprocess
import time
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

RULES = """ninja_required_version = 1.3
nvcc = {compiler}
cuda_cflags = {flags}

rule cuda_compile
  depfile = $out.d
  deps = gcc
  command = $nvcc {dependencies} $out.d $cuda_cflags -c $in -o $out

"""

NVCC_DEPENDENCIES = "--generate-dependencies-with-compile --dependency-output"

time.sleep(float(os.environ.get("STANDIN_SLEEP", "0")))


def stage(source):
    number = source.stem.partition("_")[0]
    return int(number) if number.isdigit() else 0


def escaped(path):
    """As torch escapes a path for ninja: spaces, and nothing else."""
    return str(path).replace(" ", "$ ")


class Compile(Command):
    user_options = []

    def initialize_options(self):
        self.build_base = None
        self.build_lib = None

    def finalize_options(self):
        self.set_undefined_options("build", ("build_base", "build_base"), ("build_lib", "build_lib"))

    def run(self):
        place = Path(self.build_base, "objects").absolute()
        place.mkdir(parents=True, exist_ok=True)
        sources = sorted(Path("csrc").absolute().glob("*.cu"))
        text = RULES.format(
            compiler=os.environ["STANDIN_COMPILER"],
            flags=os.environ.get("STANDIN_FLAGS", "-O2"),
            dependencies=os.environ.get("STANDIN_DEPENDENCIES", NVCC_DEPENDENCIES),
        )
        for source in sources:
            before = [other for other in sources if stage(other) < stage(source)]
            after = " || " + " ".join(escaped(place / f"{other.stem}.o") for other in before) if before else ""
            text += f"build {escaped(place / source.stem)}.o: cuda_compile {escaped(source)}{after}\n"
        (place / "build.ninja").write_text(text)
        command = ["ninja", "-v"]
        if os.environ.get("MAX_JOBS"):
            command += ["-j", os.environ["MAX_JOBS"]]
        subprocess.run(command, cwd=place, check=True)
        library = Path(self.build_lib, "standin")
        library.mkdir(parents=True, exist_ok=True)
        for source in sources:
            (library / f"{source.stem}.o").write_bytes((place / f"{source.stem}.o").read_bytes())


class Build(build):
    sub_commands = [*build.sub_commands, ("compile", None)]


setup(cmdclass={"build": Build, "compile": Compile}, packages=["standin"], package_dir={"standin": "standin"})
