"""One fault to plant in the kernels: what stands in a file of ptx/, and what is put there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    kernels: str = ""  # a file of ptx/ to look at alone; "" looks at all
    equivalent: str = ""  # why nobody can see it


def mutation(name, file, old, new="", **more):
    return Mutation(name, file, old, new, **more)
