"""Chooses the tests that changed files can reach, nearest first, for two minutes.

    python integration/selection/choose.py [--since COMMIT] [--seconds N] [FILE...]

Prints the files of tests, one a line, and says on standard error what was left out. Without
files, those that differ from a commit are looked at: by default the one where the branch
began, or the last one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from graph import distances, read_graph

__all__ = ["Choice", "choose", "describe", "sources_of"]

ROOT = Path(__file__).parents[2]
SECONDS = Path(__file__).with_name("seconds.json")
# Three files run side by side.
BUDGET_S = 240.0
# Of a file of tests that has not been timed yet.
_USUAL_S = 2.0
_RULES = "integration/rules"


class Choice(NamedTuple):
    """What is run, and what would be with more time, both nearest first."""

    run: list[str]
    left: list[str]


def choose(
    near: Mapping[str, int], seconds: Mapping[str, float], budget_s: float
) -> Choice:
    """Returns files of tests that fit a budget: the nearest, and the quick before the slow.

    Args:
        near: Over how many files each reaches what has changed.
        seconds: What each takes, where that is known.
        budget_s: For all of them. The first is run whatever it takes.
    """
    order = sorted(near, key=lambda f: (near[f], seconds.get(f, _USUAL_S), f))
    run: list[str] = []
    left: list[str] = []
    for file in order:
        took_s = seconds.get(file, _USUAL_S)
        if run and took_s > budget_s:
            left.append(file)
        else:
            run.append(file)
            budget_s -= took_s
    return Choice(run, left)


def sources_of(changed: str, root: Path) -> list[Path]:
    """Returns the Python files for which a changed file stands.

    Native sources stand for what calls them, and data for the modules beside it.

    Args:
        changed: Its path in the checkout.
        root: The checkout.
    """
    path = root / changed
    if path.suffix in {".py", ".pyi"}:
        return [path.with_suffix(".py")]
    parts = Path(changed).parts
    if parts[:1] == ("packages",) and len(parts) > 2:
        package = root / "packages" / parts[1]
        if parts[2] in {"csrc", "CMakeLists.txt", "pyproject.toml"}:
            return sorted(package.glob("src/*/**/_native*.py")) or sorted(
                package.glob("src/*/__init__.py")
            )
        if parts[2] in {"src", "tests"}:
            # Data often lie in folders of their own.
            own = [f for f in path.parents if f.is_relative_to(package / parts[2])]
            return next((there for f in own if (there := sorted(f.glob("*.py")))), [])
    return [root / "conftest.py"] if changed == "pyproject.toml" else []


def changed_files(root: Path, since: str | None) -> list[str]:
    """Returns what differs from a commit, and what git does not know yet."""
    if since is None:
        since = _git(root, "merge-base", "HEAD", "origin/main", check=False) or "HEAD"
    # A file that was renamed is gone from where it was; names may hold anything but zeros.
    found = _git(root, "diff", "--name-only", "--no-renames", "-z", since)
    others = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return [name for text in (found, others) for name in text.split("\0") if name]


def describe(root: Path) -> str:
    """Returns the commit of a checkout, and whether files differ from it."""
    return _git(root, "describe", "--always", "--dirty", "--abbrev=40", check=False)


def _git(root: Path, *arguments: str, check: bool = True) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, check=check, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def is_known(root: Path, file: str) -> bool:
    """Returns whether a file is there, or was in the last commit."""
    there = _git(root, "ls-tree", "--name-only", "HEAD", file, check=False)
    return (root / file).is_file() or bool(there)


def near_tests(root: Path, changed: Iterable[str]) -> dict[str, int]:
    """Returns the files of tests that changed files reach, and how near they are."""
    return reach(root, changed)[0]


def reach(root: Path, changed: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """Returns what `near_tests` does, and the files of packages that reach no test."""
    sources = {one: sources_of(one, root) for one in changed}
    every = [file for files in sources.values() for file in files]
    graph = read_graph(root, every)

    def tests(files: Iterable[Path]) -> dict[Path, int]:
        found = distances(graph, files)
        return {file: n for file, n in found.items() if _is_test(file, root)}

    near = {str(f.relative_to(root)): n for f, n in tests(every).items() if f.exists()}
    mine = {one: files for one, files in sources.items() if one.startswith("packages/")}
    return near, [one for one, files in mine.items() if not tests(files)]


def _is_test(file: Path, root: Path) -> bool:
    return file.name.startswith("test_") or (
        "src" in file.relative_to(root).parts and _has_examples(file)
    )


def _has_examples(file: Path) -> bool:
    return file.exists() and ">>>" in file.read_text("utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the choice."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--since", metavar="COMMIT", help="what files differ from")
    of_all = "what the chosen tests take together"
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help=of_all)
    parser.add_argument("files", nargs="*", metavar="FILE", help="what has changed")
    arguments = parser.parse_args(argv)
    unknown = [f for f in arguments.files if not is_known(ROOT, f)]
    if unknown:
        parser.error(f"there is no file {', '.join(unknown)} and there was none")
    verify = ("rev-parse", "--verify", "--quiet", f"{arguments.since}^{{commit}}")
    if arguments.since and not _git(ROOT, *verify, check=False):
        parser.error(f"--since: {arguments.since} is no commit")
    changed = arguments.files or changed_files(ROOT, arguments.since)
    seconds = json.loads(SECONDS.read_text("utf-8")) if SECONDS.exists() else {}
    near, alone = reach(ROOT, changed)
    if alone:
        print(f"no test reaches {', '.join(alone)}", file=sys.stderr)
    # The rules read all that there is.
    near = {file: steps for file, steps in near.items() if not file.startswith(_RULES)}
    choice = choose(near, seconds, arguments.seconds)
    for file in [*choice.run, *([_RULES] if changed else [])]:
        print(file)
    told = (
        f"changed files: {len(changed)}; files of tests that are run: "
        f"{len(choice.run)}, and the rules"
    )
    if choice.left:
        took_s = sum(seconds.get(file, _USUAL_S) for file in choice.left)
        told += f"; farther ones that are left out: {len(choice.left)} ({took_s:.0f} s)"
    print(told, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
