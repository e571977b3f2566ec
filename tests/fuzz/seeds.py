"""Writes what the fuzzers start from: every kernel as its own PTX module, and messages as ranks
send them, each also cut short.
"""

import argparse
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "kernels"))
import embed  # noqa: E402

MAGIC = 0x5F4D4653
RANKS = 3
VERDICT = 404  # bytes of one rank's verdict


def ptx_seeds(cc):
    for row in embed.rows():
        name = "_".join(part for part in row if part)
        yield name, (embed.head(embed.module_of(*row)) + embed.preprocess(cc, *row)).encode()


def header(sequence, status, size):
    return struct.pack("=4I", MAGIC, sequence, status, size)


def message_seeds():
    """Kinds 0 to 3 are what rank 0 hears, 4 to 7 what rank 1 hears."""
    payloads = [8, VERDICT, 0, 0]
    for kind in range(8):
        size = payloads[kind % 4] * (RANKS if kind >= 4 else 1)
        descriptors = [0, 0, 1, RANKS if kind >= 4 else 1][kind % 4]
        begin = bytes([kind, descriptors])
        verdict = header(2, 0, VERDICT * (RANKS if kind >= 4 else 1))
        good = begin + header(1, 0, size) + bytes(size) + verdict
        yield f"good{kind}", good + bytes(VERDICT * RANKS)
        yield f"failed{kind}", begin + header(1, 5, 9) + b"broken it"
        yield f"other{kind}", begin + header(7, 0, size) + bytes(size)
    yield "greeting", bytes([8, 0]) + struct.pack("=I2i64s", MAGIC, 1, RANKS, b"")
    yield "hello", bytes([9, 0, 0])


def write(folder, seeds):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds:
        (folder / name).write_bytes(data)
        (folder / f"{name}_cut").write_bytes(data[: len(data) * 2 // 3])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write(options.out / "fuzz_ptx", ptx_seeds(options.cc))
    write(options.out / "fuzz_exchange", message_seeds())


if __name__ == "__main__":
    main()
