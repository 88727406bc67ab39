"""Fills docs/licenses.md: the licenses of everything that an installation brings. Run it after a dependency changed."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).with_name("licenses.md")
PROJECT = PAGE.parents[1] / "pyproject.toml"
EXTRAS = ("pyg", "tensorboard", "report", "duckdb")
"""That are listed besides what is always installed."""
_MARK = re.compile(r"(<!-- licenses -->\n).*?(\n<!-- end -->)", re.DOTALL)
_SHORT = {
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def key(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def license_of(distribution: metadata.Distribution) -> str:
    """The license that a distribution states: an SPDX expression, a classifier, or its own words."""
    fields = distribution.metadata
    stated = [fields.get("License-Expression") or ""]
    stated += [text.rsplit(" :: ", 1)[-1] for text in fields.get_all("Classifier") or [] if text.startswith("License")]
    stated += [(fields.get("License") or "").strip().splitlines()[0] if fields.get("License") else ""]
    found = next((text for text in stated if text), "not stated")
    return _SHORT.get(found, found)


def direct() -> list[Requirement]:
    """What Partita requires on this machine. From `pyproject.toml`: what is installed may state an older one."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    stated = [*project["dependencies"], *(each for extra in EXTRAS for each in project["optional-dependencies"][extra])]
    return wanted_here(stated, ())


def closure() -> dict[str, str]:
    """Licenses by name of all that Partita requires here, directly or not, as far as it is installed."""
    found: dict[str, str] = {}
    waiting = direct()
    while waiting:
        requirement = waiting.pop()
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        found[key(requirement.name)] = license_of(distribution)
        needed = wanted_here(distribution.requires or [], tuple(requirement.extras))
        waiting += [each for each in needed if key(each.name) not in found]
    return dict(sorted(found.items()))


def wanted_here(requirements: list[str], extras: tuple[str, ...]) -> list[Requirement]:
    """Those of the requirements of a distribution, with some of its extras, that hold on this machine."""
    return [
        each
        for each in map(Requirement, requirements)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def table() -> str:
    """The table of the page."""
    own = {key(each.name) for each in direct()}
    rows = [f"| {f'**{name}**' if name in own else name} | {stated} |" for name, stated in closure().items()]
    return "\n".join(["| distribution | license |", "|---|---|", *rows])


def filled(page: str) -> str:
    """The page with its table up to date."""
    return _MARK.sub(lambda match: match[1] + table() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
