"""What a job that was over before they came means to agents and masters.

A journal, with its masters, is one job. One that is kept from an earlier training says, as
ever, that its job has ended: to people that is an error, since nothing was trained. To a
supervisor that starts an agent again whose job has ended meanwhile, it is what the job has
ended with.
"""

from __future__ import annotations

from datetime import UTC, datetime

from drivetrain_elastic.decisions.ending import Ending


def describe_past_ending(ending: Ending, at_s: float) -> str:
    """Returns what people are told who start a master or an agent after the end.

    Args:
        ending: Of the job.
        at_s: When it was, in seconds since 1970; 0 if that is not known any more.

    Example:
        >>> describe_past_ending(Ending(0, "enough"), 0.0)
        'the job in this journal ended with 0: enough; use another journal to train again'
    """
    at = datetime.fromtimestamp(at_s, UTC).astimezone()
    when = f" at {at:%Y-%m-%d %H:%M:%S}" if at_s else ""
    return (
        f"the job in this journal ended{when} with {ending.exit_code}: {ending.reason}; "
        "use another journal to train again"
    )


def judge_past_ending(ending: Ending, at_s: float, *, on_ended: str) -> Ending:
    """Returns with what an agent ends whose job was over before it came.

    Args:
        ending: Of the job.
        at_s: When it was, in seconds since 1970.
        on_ended: "fail", or "succeed" where the job has.

    Example:
        >>> ending = Ending(0, "all workers have finished")
        >>> judge_past_ending(ending, 0.0, on_ended="fail").exit_code
        1
        >>> judge_past_ending(ending, 0.0, on_ended="succeed").exit_code
        0
    """
    is_success = ending.exit_code == 0 and on_ended == "succeed"
    code = 0 if is_success else ending.exit_code or 1
    return Ending(code, describe_past_ending(ending, at_s))
