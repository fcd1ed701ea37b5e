"""The errors a user is meant to read: what happened, where the value came from, what to do now."""

from __future__ import annotations


class SafeExtBuildError(Exception):
    """An expected failure. It is shown as one `safe-ext-build: error[SEB-…]:` line and a hint, without a
    traceback. `code` is its id in the catalogue, `status` the exit status of a command that ends with it."""

    status = 1

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class SettingsError(SafeExtBuildError):
    """A setting has a value that is not allowed, or a name that does not exist."""


class ToolkitError(SafeExtBuildError):
    """No CUDA toolkit fits the torch that the extension is built against."""


class TorchError(SafeExtBuildError):
    """torch is missing, or is not the one that the build needs."""


class PlaceError(SafeExtBuildError):
    """A directory cannot take what a build writes there."""


class SupervisionError(SafeExtBuildError):
    """The supervisor could not be started, or was lost."""


class BuildRunning(SafeExtBuildError):
    """Another build of the same project runs."""


class BuildFailed(SafeExtBuildError):
    """The project's own build failed; its output has already been shown."""


class CompileFailed(BuildFailed):
    """A source of the project does not compile."""


class HookMissing(SafeExtBuildError):
    """The inner backend does not have this hook."""


class FarmError(SafeExtBuildError):
    """The compile farm that is configured cannot be used, or cannot be set up as asked."""
