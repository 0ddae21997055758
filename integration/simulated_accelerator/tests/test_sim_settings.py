"""Settings of the device and their text form."""

import pytest
from drivetrain_simulated_accelerator import (
    Settings,
    SimulatedAcceleratorSettingsError,
)

pytestmark = pytest.mark.simulated_accelerator


@pytest.mark.parametrize("text", ["", "1", " 1 ", ",", "1,"])
def test_settings_text_without_parts_is_the_defaults(text):
    assert Settings.from_text(text) == Settings()


def test_settings_text_names_any_setting():
    text = "devices=4, memory=256MiB, bf16=no, streams=off, op_delay_us=20"
    assert Settings.from_text(text) == Settings(
        devices=4, memory_bytes=256 << 20, bf16=False, streams=False, op_delay_us=20
    )


def test_settings_text_makes_a_round_trip():
    settings = Settings(devices=3, graphs=False, poison=False, copy_delay_us=7)
    assert Settings.from_text(settings.to_text()) == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device=4", r"'device=4' is no setting.*devices, memory"),
        ("streams", r"'streams' is no setting"),
        ("devices=many", r"devices is a whole number, not 'many'"),
        ("devices=-1", r"devices is a whole number, not '-1'"),
        ("devices=0", r"devices is a whole number from 1 to 16, not 0"),
        ("memory=1GB", r"memory is a number of bytes or of KiB.*not '1GB'"),
        ("memory=5", r"memory_bytes is a whole number from 1048576"),
        ("bf16=maybe", r"bf16 is one of yes.*not 'maybe'"),
        ("poison=", r"poison is one of"),
        ("memory=1GiB,memory=2GiB", r"memory is given twice"),
    ],
)
def test_settings_text_that_is_wrong_is_told(text, said):
    with pytest.raises(SimulatedAcceleratorSettingsError, match=said):
        Settings.from_text(text)


@pytest.mark.parametrize("devices", [True, 2.0, "2", None, 17])
def test_settings_refuse_what_is_no_number_of_devices(devices):
    with pytest.raises(SimulatedAcceleratorSettingsError, match="devices is a whole"):
        Settings(devices=devices)
