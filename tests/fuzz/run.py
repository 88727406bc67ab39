"""Damages inputs at random until the time is up: ``python tests/fuzz/run.py --minutes 10``, ``make fuzz MINUTES=10``.

``--kind "edges csv" --seed 123`` repeats one case and prints what came of it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from judge import GOOD, OUTCOMES, Finding, judging  # noqa: E402
from kinds import KINDS  # noqa: E402


def table(found: Counter[tuple[str, str]]) -> str:
    """Counts by kind and outcome."""
    used = [outcome for outcome in OUTCOMES if any(each == outcome for _, each in found)]
    rows = [["kind", *used, "all"]]
    for kind in KINDS:
        counts = [found[kind, outcome] for outcome in used]
        rows.append([kind, *map(str, counts), str(sum(counts))])
    totals = [sum(found[kind, outcome] for kind in KINDS) for outcome in used]
    rows.append(["all", *map(str, totals), str(sum(totals))])
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows[:1]] + ["|" + "---|" * len(rows[0])]
                     + ["| " + " | ".join(row) + " |" for row in rows[1:]])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cases", type=int, default=10**9, help="at most so many")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--first", type=int, default=random.SystemRandom().randrange(10**9), help="seed of the first case"
    )
    given = parser.parse_args()
    kinds = [given.kind] if given.kind else list(KINDS)
    found: Counter[tuple[str, str]] = Counter()
    failures: list[Finding] = []
    folder = Path(tempfile.mkdtemp(prefix="partita-fuzz-"))
    with judging(folder) as judge:
        if given.seed is not None:
            finding = judge.try_case(kinds[0], given.seed)
            print(finding.outcome, finding.what, finding.said, sep="\n")
            return int(finding.outcome not in GOOD)
        begun = said = time.monotonic()
        with suppress(KeyboardInterrupt):  # what was found so far is still said
            for number in range(given.cases):
                now = time.monotonic()
                if now - begun > 60 * given.minutes:
                    break
                kind = kinds[number % len(kinds)]
                finding = judge.try_case(kind, given.first + number)
                found[kind, finding.outcome] += 1
                if finding.outcome not in GOOD:
                    failures.append(finding)
                    print(f"{finding.outcome}: --kind '{kind}' --seed {finding.seed}\n  {finding.what}\n  "
                          f"{finding.said.strip()[-600:]}", flush=True)  # fmt: skip
                if now - said > 10:
                    said, rate = now, (number + 1) / (now - begun)
                    left = 60 * given.minutes - (now - begun)
                    print(f"{number + 1} cases, {rate:.1f} a second, {left:.0f} s left, {len(failures)} failures",
                          flush=True)  # fmt: skip
    print(table(found))
    if failures:
        (folder / "failures.json").write_text(json.dumps([vars(each) for each in failures], indent=1))
        print(f"{len(failures)} failures: see {folder}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
