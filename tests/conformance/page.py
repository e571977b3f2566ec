"""What a run of PyTorch's tests gave: a page of Markdown, and a verdict."""

from exceptions import EXCEPTIONS

TEXT = {
    "gloo": (
        "`make conformance` runs `distributed_test.py` of the installed torch with gloo and",
        "with smfar on CPU tensors, {ranks} ranks ({many} where a test wants more),",
        "and writes this page. Tests that are for CUDA devices or name another backend are not",
        "applicable; what asks for gloo or for MPI by name is run with smfar all the same.",
        "`tests/conformance/run.py --device cuda` does so with NCCL on GPUs, one for each rank.",
    ),
    "nccl": (
        "`tests/conformance/run.py --device cuda` runs `distributed_test.py` of the installed",
        "torch with NCCL and with smfar on CUDA tensors, {ranks} ranks with a GPU each, and writes",
        "this page. Tests that NCCL does not run on so few GPUs are not applicable; what asks for",
        "NCCL by name is run with smfar all the same.",
    ),
}


def last_line(text):
    text = text.partition("To execute this test")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def table(peer, theirs, ours, ranks, many):
    """docs/conformance.md, or the same of what has been run so far."""
    count = {}
    rows = []
    for name in sorted(ours.keys() & theirs.keys()):
        their, our, why = theirs[name][0], ours[name][0], ours[name][1]
        if our == "failed":
            why = EXCEPTIONS[peer].get(name, last_line(why))
        if our == "skipped":
            our, why = "not applicable", last_line(why)
        their = "not applicable" if their == "skipped" else their
        count[their, our] = count.get((their, our), 0) + 1
        rows.append(f"| `{name}` | {their} | {our} | {why.replace('|', '/')} |")
    summary = [f"| {a} | {b} | {n} |" for (a, b), n in sorted(count.items())]
    return "\n".join(
        [
            "# PyTorch's own tests of process groups",
            "",
            *(line.format(ranks=ranks, many=many) for line in TEXT[peer]),
            "",
            f"| {peer} | smfar | tests |",
            "|---|---|---|",
            *summary,
            "",
            f"| test | {peer} | smfar | reason |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def verdict(peer, theirs, ours):
    """Faults: differences that are no exception, and exceptions that are none."""
    for name, (outcome, why) in ours.items():
        worse = outcome == "failed" and theirs.get(name, ("passed",))[0] == "passed"
        if worse and name not in EXCEPTIONS[peer]:
            yield f"{name} passes with {peer} and fails with smfar: {last_line(why)}"
        if outcome == "passed" and name in EXCEPTIONS[peer]:
            yield f"{name} passes; it is no exception any more"
