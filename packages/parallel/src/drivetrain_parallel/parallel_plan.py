"""`ParallelPlan`, what each axis of a mesh does to a model, as plain data.

It is made and proven on one rank, from the model as written, and sent to the others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core import MeshShape
from drivetrain_parallel.context.context_plan import ContextPlan
from drivetrain_parallel.expert.expert_plan import ExpertPlan
from drivetrain_parallel.pipeline import PipelinePlan
from drivetrain_parallel.tensor import TensorPlan, explain_tensor_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: dict[str, Any] = {
    "tensor": TensorPlan,
    "pipeline": PipelinePlan,
    "context": ContextPlan,
    "expert": ExpertPlan,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelPlan:
    """What each axis of a mesh does to one model.

    Args:
        shape: The mesh.
        tensor: How matrices are shared; None where that axis has one rank.
        pipeline: Which blocks each stage has; None likewise.
        context: How the sequence is shared; None likewise.
        expert: How experts are shared; None likewise.
    """

    shape: MeshShape
    tensor: TensorPlan | None = None
    pipeline: PipelinePlan | None = None
    context: ContextPlan | None = None
    expert: ExpertPlan | None = None

    def explain(self) -> list[tuple[str, str]]:
        """Returns what each axis does to the model, in lines for people.

        Returns:
            The axis, or the stage, and what lies there.

        Example:
            >>> from drivetrain_core.mesh_shape import MeshShape
            >>> ParallelPlan(shape=MeshShape(replicate=4)).explain()
            [('mesh', 'replicate=4')]
        """
        found = [("mesh", str(self.shape))]
        if self.pipeline is not None:
            blocks = self.pipeline.container or "modules"
            first = self.pipeline.before
            for index, stage in enumerate(self.pipeline.stages):
                places = f"{first + stage.begin} to {first + stage.end - 1}"
                found.append((f"stage {index}", f"{blocks}, {places}"))
        if self.tensor is not None:
            found += [("tensor", line) for line in explain_tensor_plan(self.tensor)]
        if self.context is not None:
            found.append(("context", "attention exchanges heads for positions"))
        if self.expert is not None:
            found += [("expert", name) for name in self.expert.layers]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        plain: dict[str, Any] = {"shape": dict(self.shape.items())}
        for name in _KINDS:
            part = getattr(self, name)
            plain[name] = None if part is None else part.to_dict()
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ParallelPlan:
        """Returns the plan that `to_dict` wrote."""
        parts: dict[str, Any] = {}
        for name, kind in _KINDS.items():
            if data[name] is not None:
                parts[name] = kind.from_dict(data[name])
        return cls(shape=MeshShape(**data["shape"]), **parts)

    def fingerprint(self) -> str:
        """Returns a hash of all of it, which ranks compare."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
