"""Serves a borrowed torch to a build's Python and to all its child Pythons, then steps aside.

Python imports this file by itself, from the first directory on PYTHONPATH. Any Python may meet it, so the
syntax is that of 3.6; and each child pays for it, so nothing is imported that starting Python has not.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from importlib.metadata import Distribution
    from typing import Any, Iterable, Sequence  # noqa: UP035

_VARIABLE = "SAFE_EXT_BUILD_BORROW"


class _Lender:
    """A finder on sys.meta_path: some top-level modules, and the metadata of some distributions."""

    def __init__(self, config: str) -> None:
        self.config = config
        self.modules: dict[str, str] = {}
        self.namespaces: dict[str, list[str]] = {}
        self.metadata: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "object | None" = None
    ) -> "ModuleSpec | None":
        if path is not None:
            return None  # a submodule: its package knows the way
        if fullname in self.modules:
            from importlib.machinery import PathFinder

            return PathFinder.find_spec(fullname, [self.modules[fullname]])
        if fullname in self.namespaces:
            return _merged(fullname, self.namespaces[fullname])
        return None

    def find_distributions(self, context: "Any" = None) -> "Iterable[Distribution]":
        # Never for a listing of all: the target's entry points are none of the build's business.
        name = getattr(context, "name", None)
        directory = self.metadata.get(_normalised(name)) if name else None
        if directory is None:
            return iter(())
        from importlib.metadata import Distribution

        return iter([Distribution.at(directory)])


def _normalised(name: str) -> str:
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)


def _merged(fullname: str, locations: "list[str]") -> "ModuleSpec | None":
    """A namespace package over what is isolated, first, and what is borrowed."""
    from importlib.machinery import ModuleSpec, PathFinder

    ours = PathFinder.find_spec(fullname)
    if ours is not None and ours.loader is not None:
        return None  # the isolated one is a regular package, and wins
    isolated = list(ours.submodule_search_locations or ()) if ours is not None else []
    spec = ModuleSpec(fullname, None, is_package=True)
    spec.submodule_search_locations = isolated + [place for place in locations if place not in isolated]
    return spec


def _read(config: str) -> "list[_Lender]":
    """The finder to put first and the one to put last; none where this Python cannot use the torch."""
    import _imp

    with open(config, "rb") as file:
        fields = [os.fsdecode(field) for field in file.read().split(b"\0")[:-1]]
    if not fields or fields[0] != _imp.extension_suffixes()[0]:
        return []
    first, last = _Lender(config), _Lender(config)
    for kind, name, place in zip(fields[1::3], fields[2::3], fields[3::3]):  # noqa: B905
        if kind == "torch":
            first.modules[name] = place
        elif kind == "module":
            last.modules.setdefault(name, place)
        elif kind == "namespace":
            first.namespaces.setdefault(name, []).append(os.path.join(place, name))  # noqa: PTH118
        else:
            (first if kind == "torch-metadata" else last).metadata[name] = place
    return [first, last]


def _borrowed() -> "list[_Lender]":
    config = os.environ.get(_VARIABLE)
    if not config:
        return []
    try:
        return _read(config)
    except Exception as error:
        sys.stderr.write(f"safe-ext-build: error[SEB-3008]: cannot borrow torch: {error}\n")
        return []


def _chain() -> None:
    """Run the sitecustomize that Python would have found without this one: pip's, or the user's."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(__file__)  # noqa: PTH120
    after = sys.path[sys.path.index(here) + 1 :] if here in sys.path else []
    spec = PathFinder.find_spec("sitecustomize", after)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _run() -> None:
    lenders = _borrowed()
    try:
        _chain()
    finally:
        # After the chained one: it may add finders of what is isolated, which come before our last.
        # It may be this very module, too: in a build that runs inside another.
        if lenders and not any(getattr(finder, "config", None) == lenders[0].config for finder in sys.meta_path):
            sys.meta_path.insert(0, lenders[0])
            sys.meta_path.append(lenders[1])


_run()
