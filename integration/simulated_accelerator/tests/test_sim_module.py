"""What torch asks of the module `torch.sim`, and what `torch.accelerator` finds."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.simulated_accelerator


def test_module_is_torchs_accelerator():
    assert torch.get_device_module("sim") is torch.sim
    assert torch.accelerator.current_accelerator(check_available=True).type == "sim"
    assert torch.accelerator.device_count() == torch.sim.device_count() == 2


def test_device_can_be_named_in_each_way():
    for name in ("sim:1", torch.device("sim", 1), 1):
        torch.sim.set_device(name)
        assert torch.sim.current_device() == 1
        torch.sim.set_device(0)
        with torch.sim.device(name):
            assert torch.empty(1, device="sim").device.index == 1
        assert torch.sim.current_device() == 0
    with torch.sim.device_of(torch.empty(1, device="sim:1")):
        assert torch.sim.current_device() == 1
    with torch.sim.device_of(torch.empty(1)), torch.sim.device(None):
        assert torch.sim.current_device() == 0


def test_device_that_is_not_there_is_told():
    for function in (torch.sim.set_device, torch.sim.synchronize):
        with pytest.raises(RuntimeError, match="no device sim:7: this process has 2"):
            function(7)
    with pytest.raises(RuntimeError, match="no device sim:7"):
        torch.empty(1, device="sim:7")
    with pytest.raises(ValueError, match="expected a device of type sim, not cpu"):
        torch.sim.set_device("cpu")


def test_properties_name_the_device():
    found = torch.sim.get_device_properties(0)
    assert found.name == torch.sim.get_device_name() == "simulated accelerator"
    assert found.total_memory == 1 << 30
    assert torch.sim.get_device_capability() == (1, 0)
    assert torch.sim.mem_get_info()[1] == 1 << 30


def test_capability_is_bf16_and_no_exotic_type():
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.bfloat16 in types
    assert torch.float8_e4m3fn not in types
    assert torch.sim.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert torch.sim.is_bf16_supported()


def test_methods_of_tensors_and_modules_are_there():
    tensor = torch.ones(2).sim()
    assert tensor.is_sim
    assert torch.nn.Linear(2, 2).sim().weight.is_sim
    assert not torch.ones(2).is_sim


def test_names_of_the_module_are_there():
    assert sorted(torch.sim.__all__, key=str.lower)
    missing = [name for name in torch.sim.__all__ if not hasattr(torch.sim, name)]
    assert not missing
    assert torch.sim._initialized is torch.sim.is_initialized()
    assert len(torch.sim.default_generators) == 2
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch.sim.nothing  # noqa: B018


def test_data_loader_pins_for_the_device():
    data = torch.utils.data.TensorDataset(torch.arange(8.0).view(4, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    assert [batch[0].is_pinned() for batch in loader] == [True, True]


def test_tensors_are_saved_and_loaded(tmp_path):
    tensor = torch.randn(3, device="sim:1")
    torch.save({"a": tensor}, tmp_path / "a.pt")
    again = torch.load(tmp_path / "a.pt")["a"]
    assert again.device == tensor.device
    assert torch.equal(again.cpu(), tensor.cpu())
    on_host = torch.load(tmp_path / "a.pt", map_location="cpu")["a"]
    assert torch.equal(on_host, tensor.cpu())
