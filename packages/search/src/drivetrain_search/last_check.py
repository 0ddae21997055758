"""The thorough check of plans that may be chosen: what it said, and what it will take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drivetrain_core import Ok, Reject
from drivetrain_search.process.trial import Look
from drivetrain_search.time_budget import check_seconds
from drivetrain_search.verify import passes_of_check, structure_of, verify

if TYPE_CHECKING:
    from drivetrain_core import Choice, Measurement
    from drivetrain_core.numerics.observation import Observation
    from drivetrain_search.descent import Choices
    from drivetrain_search.report.record import TrialRecord
    from drivetrain_search.trials import Trials


class LastCheck:
    """Checks each plan once, and remembers what was found.

    Args:
        trials: The trials, with the observation that plans are compared with.
    """

    def __init__(self, trials: Trials) -> None:
        """Begins without verdicts."""
        self._trials = trials
        self._structures: dict[Choices, Ok | Reject] = {}
        self._verdicts: dict[Choices, Ok | Reject] = {}

    @property
    def has_passed(self) -> bool:
        """Whether any plan has passed it."""
        return any(isinstance(v, Ok) for v in self._verdicts.values())

    def passed(self, choices: Choices) -> bool:
        """Returns whether a plan was checked, and may be chosen."""
        return isinstance(self._verdicts.get(choices), Ok)

    def refused(self, choices: Choices) -> bool:
        """Returns whether a plan was checked, and must not be chosen."""
        return isinstance(self._verdicts.get(choices), Reject)

    def compiles_anew(self, choices: Choices) -> bool:
        """Returns whether a plan's check compiles what no trial of it compiled.

        That is the plan without its low precision, and takes longest of a check.
        """
        structure = self._unseen_structure(choices)
        return structure is not None and bool(_what_compiles(structure))

    def verdict(self, record: TrialRecord) -> Ok | Reject:
        """Returns what the check says of a plan, or has said.

        Raises:
            Failure: Its time was over.
        """
        known = self._verdicts.get(record.choices)
        if known is not None:
            return known
        trials = self._trials
        assert trials.reference is not None
        trials.announce("check", record.choices)
        found = self._verdicts[record.choices] = verify(
            trials.runner(record.choices),
            record.choices,
            trials.reference,
            deadline=trials.deadline,
            structures=self._structures,
            nudged=self._nudged,
        )
        return found

    def _nudged(self) -> Observation:
        """Returns the reference with what rounding alone does to the program as written.

        Raises:
            Failure: The program did not run a second time, or its time was over.
        """
        trials = self._trials
        reference = trials.reference
        assert reference is not None
        if not reference.nudged:
            written = trials.records[0].choices
            look = Look(steps=len(reference.losses), nudges=True)
            opened = trials.runner(written).open(
                written, look=look, deadline=trials.deadline
            )
            with opened as session:
                assert session.observation is not None
                nudged = session.observation.losses
            reference = trials.reference = replace(reference, nudged=nudged)
        return reference

    def seconds(self, base: Measurement, record: TrialRecord) -> float:
        """Returns what the check of a plan will take.

        Args:
            base: The program as written.
            record: The plan's trial.
        """
        assert record.measurement is not None
        if self.passed(record.choices):
            return 0.0
        structure = self._unseen_structure(record.choices)
        trials = self._trials
        assert trials.reference is not None
        passes = passes_of_check(
            trials.reference, structure_is_due=structure is not None
        )
        if structure is None:
            return check_seconds(base, record.measurement, None, passes)
        # The trial of the plan may have found its code compiled, by one much like it;
        # without low precision it is other code.
        compiled = _what_compiles(structure)
        setups = [
            other.measurement.setup_s
            for other in trials.records
            if compiled
            and other.measurement is not None
            and compiled <= set(other.choices)
        ]
        longest = max([base.setup_s, record.measurement.setup_s, *setups])
        return check_seconds(base, record.measurement, longest, passes)

    def _unseen_structure(self, choices: Choices) -> Choices | None:
        """Returns a plan without its low precision, if that is to be looked at yet."""
        structure = structure_of(choices, self._trials.runner(choices).world_size)
        if structure in ((), choices) or structure in self._structures:
            return None
        return structure


def _what_compiles(choices: Choices) -> set[Choice]:
    return {choice for choice in choices if choice.name == "compile"}
