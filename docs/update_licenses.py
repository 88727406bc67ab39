"""Fills docs/licenses.md: the licenses of everything that an installation brings. Run it after a dependency changed."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).with_name("licenses.md")
EXTRAS = ("pyg", "tensorboard", "report")
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


def closure(root: str, extras: tuple[str, ...]) -> dict[str, str]:
    """Licenses by name of all that a distribution requires here, directly or not, as far as it is installed."""
    found: dict[str, str] = {}
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if name != root:
            found[key(name)] = license_of(distribution)
        for requirement in required(distribution, wanted):
            if key(requirement.name) not in found:
                waiting.append((requirement.name, tuple(requirement.extras)))
    return dict(sorted(found.items()))


def required(distribution: metadata.Distribution, extras: tuple[str, ...]) -> list[Requirement]:
    """What a distribution requires on this machine, with some of its extras."""
    requirements = map(Requirement, distribution.requires or [])
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def table() -> str:
    """The table of the page."""
    direct = {key(each.name) for each in required(metadata.distribution("partita"), EXTRAS)}
    rows = [
        f"| {f'**{name}**' if name in direct else name} | {stated} |"
        for name, stated in closure("partita", EXTRAS).items()
    ]
    return "\n".join(["| distribution | license |", "|---|---|", *rows])


def filled(page: str) -> str:
    """The page with its table up to date."""
    return _MARK.sub(lambda match: match[1] + table() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
