"""``rollproof doctor``: what it says is there is there, and what it says is skipped is skipped."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rollproof.properties.cli import main
from rollproof.properties.commands import doctor
from rollproof.properties.errors import EXTRAS, InputError


@pytest.fixture
def without(monkeypatch):
    """Return a function that hides modules from the doctor."""
    real = doctor.is_there

    def hide(*names):
        monkeypatch.setattr(doctor, "is_there", lambda module: module not in names and real(module))

    return hide


def test_the_doctor_shows_extras_implementations_and_what_is_skipped():
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert {"extras", "implementations", "programs"} <= set(lines)
    (spec,) = (line for line in lines if line.startswith("  spec "))
    assert spec.split()[1] == "ready"
    assert "torch 2" in next(line for line in lines if line.startswith("  torch "))


def test_an_extra_without_its_modules_says_how_to_install_it(without):
    without("torch", "tensordict")
    found = {one.name: one for one in doctor.extras()}
    assert found.keys() == EXTRAS.keys()
    assert not found["torch"].ready
    assert found["torch"].detail == "no tensordict, torch: pip install 'rollproof[torch]'"


def test_what_is_missing_is_named_with_what_it_costs(without, monkeypatch):
    monkeypatch.setattr(doctor, "has_device", lambda: True)
    without()
    whole = list(doctor.skips())
    without("torch", "nemo_gym", "crosshair", "transfer_queue")
    lines = list(doctor.skips())
    assert len(lines) > len(whole)
    assert "rewards held by torch, in areas rollout and group: torch is not installed" in lines
    assert "histories captured by nemo-gym, in areas lineage and rollout: nemo-gym is not installed" in lines
    assert "prove: CrossHair is not installed" in lines


def test_an_implementation_that_cannot_be_loaded_says_why(monkeypatch):
    def load(name):
        if name == "spec":
            raise InputError("spec: needs torch: pip install 'rollproof[torch]'")
        return real(name)

    real = doctor.load_implementation
    monkeypatch.setattr(doctor, "load_implementation", load)
    monkeypatch.setattr(doctor, "known_names", lambda: ["spec"])
    (found,) = doctor.implementations()
    assert (found.ready, found.detail) == (False, "needs torch: pip install 'rollproof[torch]'")
