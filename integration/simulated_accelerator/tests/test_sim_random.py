"""Random numbers: reproducible, and not the host's."""

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator


def draw():
    """Draws in several ways, and returns all of it."""
    parts = [
        torch.rand(5, device="sim"),
        torch.randn(5, device="sim"),
        torch.bernoulli(torch.full((5,), 0.5, device="sim")),
        torch.nn.functional.dropout(torch.ones(5, device="sim"), 0.5),
        torch.randperm(5, device="sim").float(),
        torch.randint(0, 9, (5,), device="sim").float(),
        torch.empty(5, device="sim").uniform_(),
        torch.multinomial(torch.ones(5, device="sim"), 3).float(),
    ]
    return torch.cat(parts).cpu()


def test_seed_makes_numbers_again():
    torch.manual_seed(3)
    first = draw()
    second = draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)
    assert torch.sim.initial_seed() == 3


def test_state_makes_numbers_again():
    state = torch.sim.get_rng_state()
    first = draw()
    torch.sim.set_rng_state(state)
    assert torch.equal(draw(), first)
    states = torch.sim.get_rng_state_all()
    torch.sim.manual_seed_all(9)
    torch.sim.set_rng_state_all(states)
    assert torch.equal(torch.sim.get_rng_state(1), states[1])


def test_state_of_another_kind_is_refused():
    with pytest.raises(RuntimeError, match="a CPU tensor of 16 bytes, not one of 5056"):
        torch.sim.set_rng_state(torch.get_rng_state())


def test_numbers_are_not_the_hosts():
    before = torch.get_rng_state()
    draw()
    torch.sim.synchronize()
    assert torch.equal(torch.get_rng_state(), before)


def test_state_is_that_of_the_time_of_issue():
    torch.rand(5, device="sim")
    torch.sim.synchronize()
    before = torch.sim.get_rng_state()
    with control.delays(op_us=20_000):
        late = torch.rand(5, device="sim")
        after = torch.sim.get_rng_state()
        torch.sim.synchronize()
    assert torch.equal(torch.sim.get_rng_state(), after)
    torch.sim.set_rng_state(before)
    assert torch.equal(torch.rand(5, device="sim").cpu(), late.cpu())


def test_generator_of_a_caller_is_used():
    generators = [torch.Generator("sim").manual_seed(4) for _ in range(2)]
    before = torch.sim.get_rng_state()
    a, b = (torch.rand(5, device="sim", generator=g).cpu() for g in generators)
    assert torch.equal(a, b)
    assert torch.equal(torch.sim.get_rng_state(), before)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(5, device="sim", generator=torch.Generator())


def test_fork_rng_keeps_the_state():
    before = torch.sim.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="sim"):
        draw()
    assert torch.equal(torch.sim.get_rng_state(), before)


def test_devices_draw_alike_from_the_same_seed():
    torch.manual_seed(5)
    assert torch.equal(
        torch.rand(5, device="sim:0").cpu(), torch.rand(5, device="sim:1").cpu()
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_draws_the_same_dropout(reentrant):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)
    ).to("sim")
    x = torch.randn(4, 8, device="sim", requires_grad=True)
    gradients = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        x.grad = None
        run(x).sum().backward()
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)
