"""Plan tables: rank 0's is everybody's, and corrects what the plan would pick."""

import pytest
import torch
import torch.distributed as dist

import smfar

COUNT = 40_000  # of float32: 160,000 bytes


def topology(group=None):
    """What a section for this group begins with, as `describe` says."""
    (line,) = (text for text in smfar.describe(group, "cpu").splitlines() if "topology" in text)
    return line[line.index("topology ") :]


def write(path, section, *rows):
    path.write_text("\n".join(["smfar plan table 1", section, *rows, ""]))


def taken(table, count=COUNT):
    """The path of one checked all-reduce in a group with that table."""
    group = dist.new_group(backend="smfar", pg_options=smfar.Options(plan_table=table))
    tensor = torch.full((count,), 1.0 + dist.get_rank())
    dist.all_reduce(tensor, group=group)
    ranks = dist.get_world_size()
    assert (tensor == ranks * (ranks + 1) / 2).all()
    (path,) = smfar.report(group, "cpu")
    told = smfar.explain(count, group=group, device="cpu"), smfar.describe(group, "cpu")
    dist.destroy_process_group(group)
    return path, *told


def use_tables(folder):
    dist.all_reduce(torch.ones(1))
    mine = folder / f"of_rank_{dist.get_rank()}"
    first = "all_reduce from=0 to=100000 algorithm=twoshot_peer"
    poor = [first, "all_reduce from=100001 to=end algorithm=twoshot_peer blocks=1 threads=32"]
    better = [first, "all_reduce from=100001 to=end algorithm=twoshot_mc blocks=2 threads=512"]
    write(mine, topology(), *(poor if dist.get_rank() == 0 else better))
    path, explained, described = taken(str(mine))
    assert (path.algorithm, path.blocks, path.threads) == ("twoshot_peer", 1, 32)
    assert path.reason == "line 4 of the plan table says so"
    assert "twoshot_peer, 1 block of 32 threads" in explained
    assert f"plan table: 2 rows of {folder}/of_rank_0; topology ranks=4" in described
    write(mine, topology(), *better)
    path, _, _ = taken(str(mine))
    assert (path.algorithm, path.blocks, path.threads) == ("twoshot_mc", 2, 512)
    path, _, described = taken("0")
    assert "plan table: none;" in described and "plan table" not in path.reason


def test_a_table_corrects_a_poor_choice(ranks, tmp_path):
    ranks.run(use_tables, tmp_path)


def refuse(folder):
    table = folder / "table"
    if dist.get_rank() == 0:
        write(table, topology(), "all_reduce from=0 to=end algorithm=push_peer")
    dist.barrier()
    for path, said in (
        (table, "table:3: push_peer takes at most 131072 bytes"),
        ("/no", "/no can"),
    ):
        group = dist.new_group(backend="smfar", pg_options=smfar.Options(plan_table=str(path)))
        with pytest.raises(smfar.ArgumentError, match=said):
            dist.all_reduce(torch.ones(1), group=group)


def test_a_wrong_table_is_refused_on_every_rank(ranks, tmp_path):
    ranks.run(refuse, tmp_path)


def test_the_option_is_kept():
    assert smfar.Options(plan_table="some/file").plan_table == "some/file"
    assert smfar.Options().plan_table == ""
