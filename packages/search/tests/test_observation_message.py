"""An observation reaches the search as it was seen."""

import json

from drivetrain_core.numerics.observation import (
    Accounting,
    Observation,
    ParameterUsage,
)
from drivetrain_search.process.observation_message import (
    read_observation,
    write_observation,
)


def test_observation_survives_its_message():
    seen = Observation(
        losses=(2.0, 1.5),
        norms={"a": 1.0},
        samples={"a": (0.5, 0.25)},
        moved=frozenset({"a"}),
        swayed_updates={"a": (0.1,)},
        nudged=(2.0,),
        accounting=Accounting(rows=4, drawn=((1, 2), (3,))),
        liveness=ParameterUsage(
            ties=(("a", "b"),),
            apart=("c",),
            evaluating=frozenset({"d", ""}),
            rates=((0.1,), (0.05,)),
        ),
    )
    assert read_observation(json.loads(json.dumps(write_observation(seen)))) == seen
