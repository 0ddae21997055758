"""How the programs of this folder are called, call each other, and report."""

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path

from workload import Place

from drivetrain_testing import surroundings


def parser_of(text):
    """A parser of a program's arguments, which are not abbreviated."""
    return argparse.ArgumentParser(description=text, allow_abbrev=False)


def add_place(parser):
    """Adds the arguments by which a child learns where it measures."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("runtime", type=Path)


def place_of(given):
    """Where a child measures."""
    return Place(given.folder, given.runtime)


def command_of(script, *arguments):
    """The command that runs a program of this folder."""
    return [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]


def answer(done, silence="no word"):
    """What a child has answered: the JSON in its last line, since libraries print too.

    Raises:
        RuntimeError: It failed, with what it said last.
    """
    if done.returncode:
        raise RuntimeError(last_words(done.stderr, silence))
    return json.loads(done.stdout.splitlines()[-1])


def last_words(errors, silence="no word"):
    """The last line of what a child wrote to its standard error output."""
    return (errors.strip().splitlines() or [silence])[-1]


def ask(place, script, *arguments, timeout_s=None):
    """Runs a program in a place, and returns what it answers."""
    done = subprocess.run(
        command_of(script, *arguments),
        env=place.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    return answer(done)


@contextlib.contextmanager
def node(method, place):
    """Gives the processes that a way to save has on a node, and ends them."""
    beside = method.start_node(place)
    try:
        yield beside
    finally:
        for process in beside:
            process.kill()
            process.wait()


def write_report(file, report):
    """Writes figures with what they were measured on."""
    text = json.dumps({**report, **surroundings()}, indent=2)
    file.write_text(text + "\n")
