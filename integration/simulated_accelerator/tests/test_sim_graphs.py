"""Graphs: captured once, replayed."""

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator


@pytest.fixture
def x():
    return torch.arange(4.0, device="sim")


def double_plus_one(x):
    return x * 2 + 1


def test_replay_computes_from_what_the_input_is_then(x):
    double_plus_one(x)
    graph = torch.sim.Graph()
    with torch.sim.graph(graph):
        assert torch.sim.is_current_stream_capturing()
        y = double_plus_one(x)
    assert not torch.sim.is_current_stream_capturing()
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value + 1] * 4


def test_graph_of_torchs_general_kind_replays(x):
    if not hasattr(torch.accelerator, "Graph"):
        pytest.skip("torch has no accelerator.Graph before 2.12")
    double_plus_one(x)
    graph = torch.accelerator.Graph()
    with torch.sim.Stream(), graph:
        y = double_plus_one(x)
    x.fill_(1)
    graph.replay()
    assert y.tolist() == [3.0] * 4


def test_memory_of_a_graph_is_its_own_until_reset(x):
    double_plus_one(x)
    torch.sim.synchronize()
    before = torch.sim.memory_reserved()
    graph = torch.sim.Graph()
    with torch.sim.graph(graph):
        y = double_plus_one(x)
        del y
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() > 0
    others = [torch.zeros(4, device="sim") for _ in range(50)]
    graph.replay()
    torch.sim.synchronize()
    assert all(other.sum().item() == 0 for other in others)
    graph.reset()
    del others
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() <= before


def test_random_numbers_of_a_replay_are_new(x):
    torch.rand(4, device="sim")
    graph = torch.sim.Graph()
    with torch.sim.graph(graph):
        y = torch.rand(4, device="sim")
    graph.replay()
    first = y.tolist()
    graph.replay()
    assert y.tolist() != first


def test_capture_refuses_what_waits_or_is_not_known(x):
    double_plus_one(x)
    for forbidden, said in (
        (lambda: x.sum().item(), "while a graph is being captured|cannot be captured"),
        (lambda: x.reshape(2, 2) @ x.reshape(2, 2).t() @ x[:2], "cannot be captured"),
        (lambda: torch.sim.synchronize(), "while a graph is being captured"),
    ):
        graph = torch.sim.Graph()
        with pytest.raises(RuntimeError, match=said), torch.sim.graph(graph):
            forbidden()
        graph.reset()
    assert double_plus_one(x).tolist() == [1.0, 3.0, 5.0, 7.0]


def test_event_of_a_capture_is_the_graphs(x):
    double_plus_one(x)
    graph = torch.sim.Graph()
    with torch.sim.graph(graph):
        event = torch.sim.Event().record()
        double_plus_one(x)
        for wait in (event.query, event.synchronize):
            with pytest.raises(RuntimeError, match="part of the graph"):
                wait()
        with pytest.raises(RuntimeError, match="part of the graph"):
            torch.sim.default_stream().wait_event(event)
    graph.replay()
    torch.sim.synchronize()


def test_capture_on_the_default_stream_is_refused(x):
    with pytest.raises(RuntimeError, match="default stream"):
        torch.sim.Graph().capture_begin()
    with pytest.raises(RuntimeError, match="has not been captured"):
        torch.sim.Graph().replay()


def test_training_step_is_replayed():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(2, 4, device="sim")

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.sim.Stream()
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        for _ in range(3):
            step()
        side.synchronize()
        graph = torch.sim.Graph()
        graph.capture_begin()
        loss = step()
        graph.capture_end()
    losses = []
    for _ in range(3):
        graph.replay()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]
