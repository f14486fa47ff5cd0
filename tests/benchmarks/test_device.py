"""What is measured on a device, in Triton's interpreter and with another clock; and the estimate without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before it is imported

from benchmarks import device, estimate
from rollproof.impl import retained

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROOT = Path(__file__).parents[2]


def half_a_second(call):
    call()
    return 0.5


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(retained, "_accelerator", lambda tensors: HERE)


@pytest.mark.untraced
def test_hashing(everywhere):
    size = 128
    table = device.hash_table(HERE, (size,), half_a_second)
    assert table.rows == ((size, *[pytest.approx(2 * size / 1e9)] * 3, 1.0, 1.0),)
    assert "triton" in table.notes[0]


def test_a_hash_that_is_not_the_hosts_is_noticed(monkeypatch):
    answers = iter(("one", "other"))
    monkeypatch.setattr(device, "media_digest", lambda *_: next(answers))
    with pytest.raises(AssertionError, match="do not agree"):
        device.hash_table(HERE, (64,), half_a_second)


def test_gathering():
    table = device.gather_table(HERE, [(5, 3, 2, 2)], half_a_second)
    ((title, size, *rates),) = table.rows
    assert title == "5 fragments x 3 tokens x 2 layers x 2"
    assert size == (5 * 3 + 1) * 2 * 2 * 2
    assert rates == [*[pytest.approx(2 * size / 1e9)] * 3, 1.0, 1.0]


def test_a_row_that_is_not_torchs_is_noticed(monkeypatch):
    monkeypatch.setattr(device, "gathered_by_torch", lambda used, row: row - 1)
    with pytest.raises(AssertionError, match="do not agree"):
        device.gather_table(HERE, [(1, 3, 2, 2)], half_a_second)


# ── the estimate ────────────────────────────────────────────────────────────────────────────────────────────────────

SASS = """Function:_chunks
--:-:-:Y:1\tMOV R1, c[0x0][0x28];
LBB1:
--:-:-:Y:1\tIADD3 R1, R2, R3, RZ;
LBB0:
--:-:0:Y:1\t@!P0 LDG.E R32, [R2.64+0x18];
--:-:-:Y:1\tLOP3.LUT R3, R4, R5, RZ, 0x3c, !PT;
--:-:-:Y:1\tSHF.L.W.U32.HI R3, R3, 0x19, R3;
--:-:-:Y:1\tIMAD.IADD R3, R3, 0x1, R4;
--:-:-:Y:1\t@P2 BRA LBB0;
--:-:-:Y:1\tUIADD3 UR4, UR5, 0x1, URZ;
--:-:-:Y:1\t@!UP1 BRA LBB2;
LBB2:
--:-:-:Y:1\tEXIT;
"""


def test_instructions_of_the_longest_loop_are_counted():
    code = estimate.instructions(SASS)
    assert estimate.names(code) == ["MOV", "IADD3", "LDG", "LOP3", "SHF", "IMAD", "BRA", "UIADD3", "BRA", "EXIT"]
    assert estimate.longest_loop(code) == ["LDG", "LOP3", "SHF", "IMAD", "BRA"]
    assert estimate.Counted.of(estimate.longest_loop(code)) == estimate.Counted(alu=2, all=5)


def test_bounds():
    part = estimate.Part("", multiprocessors=10, clock_hz=1e9, bytes_per_s=1e12)
    cost = estimate.Hashing(estimate.Counted(60, 100), estimate.Counted(64, 100))
    by_alu, by_issue, by_memory = estimate.hash_bounds(cost, part)
    assert by_alu == pytest.approx(10 * 64)  # one integer instruction per byte
    assert by_issue == pytest.approx(10 * 128 * 1024 / 1700)
    assert by_memory == pytest.approx(1000 / 1.125)
    assert [estimate.gather_bound(size, part) for size in (0, 1, 2)] == pytest.approx([1000, 1000 / 1.5, 500])


COMPILE = """
from benchmarks.estimate import compiled, hashing
from rollproof.impl.kernels import blake3, gather
import triton.language as tl
cost = hashing()
print(cost.block.alu, cost.parent.alu)
numbers = dict.fromkeys(("shift", "first_chunk", "count", "last_chunk", "last_bytes", "longest"), "i32")
shifted = {"SHIFTED": True, "WIDTH": blake3.LANES}
assert compiled(blake3._chunks, {"data": "*u8", "values": "*i32"} | numbers, shifted)
fixed = {"FILLING": -1, "DTYPE": tl.int8, "WIDTH": gather.BLOCK}
assert compiled(gather._lay_out, {"table": "*i64", "out": "*i16"}, fixed)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux alone")
def test_every_kernel_compiles_for_a_device_and_is_counted():
    """Run in a process of its own: in this one the kernels are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for count in map(int, done.stdout.split()):
        # 56 quarter rounds of 4 exclusive ors and 4 rotations; of 4 additions each may run elsewhere
        assert 56 * 8 <= count <= 56 * 8 + 56 * 4 + 100
