"""python -m smfar tune on GPUs: that it runs, what it says, and that what it writes is read."""

import os
import subprocess
import sys

POOR = "all_reduce from=0 to=end algorithm=twoshot_peer blocks=1 threads=32 chunk=4096"


def tune(table, out):
    command = [sys.executable, "-W", "ignore", "-m", "smfar", "tune", "--device", "cuda"]
    command += ["--ranks", "2", "--min", "1M", "--max", "1M", "--blocks", "1,8", "--repeats", "6"]
    ran = subprocess.run(
        [*command, "--out", str(out)],
        env=os.environ | {"SMFAR_PLAN_TABLE": str(table)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_poor_choice_is_corrected(tmp_path):
    said = tune("0", tmp_path / "first")
    assert "of 2 tried" in said or "of 4 tried" in said, said  # over peers, and by the switch
    lines = (tmp_path / "first").read_text().splitlines()
    assert lines[0] == "smfar plan table 1" and lines[1].startswith("topology ranks=2 ")
    (tmp_path / "poor").write_text("\n".join([*lines[:2], POOR, ""]))
    said = tune(tmp_path / "poor", tmp_path / "second")  # 256 launches a call
    assert "twoshot_peer 1x32" in said and "taken" in said, said
    assert POOR not in (tmp_path / "second").read_text()
