"""python -m smfar kernels: what an assembler says of every kernel."""

import argparse
import pathlib
import re
import subprocess

import pytest

from smfar import kernels

ROWS = pathlib.Path(__file__).parents[2] / "csrc" / "kernels" / "kernels.def"
REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'smfar_finish_peer' for 'sm_90'
ptxas info    : Function properties for smfar_finish_peer
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers
ptxas info    : Compiling entry function 'smfar_barrier_peer' for 'sm_90'
ptxas info    : Function properties for smfar_barrier_peer
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 20 registers, used 1 barriers
"""


def entries():
    rows = re.findall(r"^(?:PLAIN|KERNEL)\((.*)\)", ROWS.read_text(), re.MULTILINE)
    return {"smfar_" + "_".join(name.strip() for name in row.split(",")) for row in rows}


def entries_of_blackwell():
    return {name for name in entries() if "_mc_" in name and "_f8_" in name}


def knows(arch):
    said = subprocess.run([kernels.find_ptxas(), "--help"], capture_output=True, text=True).stdout
    return f"'{arch}'" in said


def ask(*arguments):
    parser = argparse.ArgumentParser()
    kernels.add_arguments(parser)
    return kernels.run(parser.parse_args(arguments))


def test_the_report_is_read():
    assert kernels.read_report(REPORT) == [
        kernels.Kernel("smfar_finish_peer", 16, 0, 0),
        kernels.Kernel("smfar_barrier_peer", 20, 24, 20),
    ]


def test_the_library_carries_the_text_of_every_kernel():
    text = b"".join(map(kernels.text_of, kernels.MODULES)).decode()
    assert set(re.findall(r"\.entry (\w+)", text)) == entries()
    assert kernels.text_of("other") is None


def test_without_an_assembler_it_says_where_one_comes_from(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "find_ptxas", lambda: None)
    assert ask() == 77
    assert "pip install nvidia-cuda-nvcc" in capsys.readouterr().out


@pytest.mark.skipif(kernels.find_ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("arch", ["sm_90", "sm_100f"])
def test_every_kernel_is_listed_and_none_spills(capsys, arch):
    if not knows(arch):
        pytest.skip(f"ptxas has no {arch}")
    assert ask("--arch", arch) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line[0] == " "]
    left_out = entries_of_blackwell() if arch == "sm_90" else set()
    assert {line[0] for line in lines} == entries() - left_out
    for name, registers, _, spilled, code in lines:
        assert int(registers) <= 128 and int(spilled) == 0 and int(code) > 0, name


@pytest.mark.parametrize(
    "said, code",
    [
        ("fatal   : Unsupported .version 8.8; current version is '8.4'", 0),
        ("Arguments mismatch", 1),
    ],
)
def test_an_old_assembler_goes_on_without_8_bit_floats(monkeypatch, capsys, said, code):
    """And any other fault of that module ends it."""

    def assemble(ptxas, text, arch):
        if text == kernels.text_of("mc_f8"):
            raise subprocess.CalledProcessError(255, ptxas, stderr=said)
        return [kernels.Kernel("smfar_some", 16)]

    monkeypatch.setattr(kernels, "find_ptxas", lambda: "ptxas")
    monkeypatch.setattr(kernels, "assemble", assemble)
    assert ask("--arch", "sm_100") == code
    printed = capsys.readouterr().out
    assert said in printed and ("CUDA 12.9 or later takes it" in printed) == (code == 0)


@pytest.mark.skipif(kernels.find_ptxas() is None, reason="no ptxas")
def test_an_unknown_gpu_is_refused(capsys):
    assert ask("--arch", "sm_7") == 1
    assert "refused module peer for sm_7" in capsys.readouterr().out
