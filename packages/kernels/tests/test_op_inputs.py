"""Every op takes each kind of input with the formula's results, or refuses it in words."""

import pytest
from op_cases import CASES
from op_kinds import COMPILED, KINDS, cell, is_asked

from drivetrain_testing import run_ranks

ONE = [kind for kind in KINDS if kind not in {*COMPILED, "DTensor"}]
NO_SECOND = "call the op with impl='reference', which has every derivative"
NO_FUNC = "has no rule for torch.func"
NO_RULE = "torch has no rule for what it does"
ONE_DTENSOR = "is a DTensor and"

# What is refused, and a part of the reason. What is not here is right.
REFUSED = {
    ("rms_norm eager", "float16"): "computes in the dtype of x",
    ("rms_norm eager", "bfloat16"): "computes in the dtype of x",
    ("rms_norm eager", "autocast"): "computes in the dtype of x",
    ("rms_norm eager", "over 2^31"): "computes in the dtype of x",
    **{
        (name, "second derivative"): NO_SECOND
        for name in (
            "attention",
            "attention window",
            "linear_cross_entropy",
            "linear_cross_entropy none",
            "moe",
            "moe split",
            "parallel_block",
        )
    },
    **{("moe split", kind): NO_FUNC for kind in ("func.grad", "vmap", "vmap of grad")},
    ("moe split", "func.jvp"): "knows no forward-mode derivative",
    ("moe split", "dual tensors"): "knows no forward-mode derivative",
    ("moe split", "jacobians"): "knows no forward-mode derivative|has no rule",
    **{
        (name, kind): NO_RULE
        for name in ("moe", "moe reference")
        for kind in ("vmap", "vmap of grad")
    },
    ("moe reference", "over 2^31"): NO_RULE,
    ("clip_grad_norm_", "vmap"): NO_RULE,
}
ASKED = [
    pytest.param(
        name,
        kind,
        marks=[pytest.mark.slow] if kind in COMPILED else [],
        id=f"{name}-{kind}",
    )
    for name, case in CASES.items()
    for kind in (*ONE, *COMPILED)
    if is_asked(case, kind)
]


# Of torch: that vmap runs its fused attention in a loop.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("name", "kind"), ASKED)
def test_op_takes_a_kind_of_input_or_refuses_it_in_words(name, kind):
    found = cell(CASES[name], kind)
    rest = {label: text for label, text in found.items() if text != "right"}
    part = REFUSED.get((name, kind))
    if part is None:
        assert rest == {}
        return
    assert rest
    for text in rest.values():
        assert text.startswith("refused: ")
        assert any(one in text for one in part.split("|")), text


def of_this_rank():
    return {name: cell(case, "DTensor") for name, case in CASES.items()}


@pytest.mark.slow
def test_op_takes_distributed_tensors_or_refuses_them_in_words():
    found, other = run_ranks(of_this_rank, 2)
    assert found == other
    for name, outcomes in found.items():
        for label, text in outcomes.items():
            mixed = label.startswith(("only ", "all but "))
            assert text == "right" or text.startswith("refused: "), (name, label, text)
            if mixed:
                allowed = (ONE_DTENSOR, "all gradients or none", "routes tokens")
                assert any(part in text for part in allowed), (name, label, text)
        if not name.startswith("moe"):
            assert outcomes["replicated"] == "right"
            assert outcomes["sharded batch"] == "right"
