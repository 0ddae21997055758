"""What tests of commands share: how a call ends, wherever it is refused."""

from drivetrain_cloud.cli import main
from drivetrain_core.commands import CommandParser, run_command

__all__ = ["ending", "run_one", "wrong_use"]


def ending(argv):
    """Returns the status of a call of `drivetrain-cloud`."""
    try:
        return main([str(one) for one in argv])
    except SystemExit as left:
        return left.code


def run_one(name, populate, argv):
    """Returns the status of a call of one command, by its own parser."""
    parser = CommandParser(prog=f"drivetrain-cloud {name}")
    populate(parser)
    try:
        arguments = parser.parse_args([str(one) for one in argv])
    except SystemExit as left:
        return left.code
    return run_command("drivetrain-cloud", arguments.run, arguments)


def wrong_use(status, out, err, says):
    """Checks that a call was refused as wrong use, in its last line."""
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("drivetrain-cloud ")
    assert ": error: " in last
    assert says in last, last
