"""Faults in the floats of 8 bits: widening, narrowing, and what is too large."""

from mutation import mutation

FILE = "float8.ptxh"


def of_type(name, dtype, old, new="", **more):
    kernel = f"smfar_all_reduce_twoshot_peer_sum_f8_{dtype}"
    return mutation(f"f8_{dtype}: {name}", FILE, old, new, kernels=kernel, **more)


def of_switch(name, file, old, new):
    kernel = "smfar_all_reduce_twoshot_mc_sum_f8_e4m3"
    return mutation(f"f8_e4m3 in the switch: {name}", file, old, new, kernels=kernel)


FLOAT8 = [
    of_switch("summed as e5m2", FILE, "acc::f16.v4.e4m3x4", "acc::f16.v4.e5m2x4"),
    of_switch("the largest instead of a sum", FILE, "ACT_FLOAT.acc::f16.v4", "max.v4"),
    of_type(
        "a sum without its sign", "e4m3", "or.b32 element, %size, %sign;", "mov.b32 element, %size;"
    ),
    of_type("an input without its sign", "e4m3", "or.b32 x, x, %size;", "mov.b32 x, %size;"),
    of_type("subnormals are rounded like others", "e4m3", "max.u32 %power, %power, 0x38800000;"),
    of_type("what is too large wraps", "e4m3", "min.u32 %size, %size, MOST;"),
    of_type("what is too large wraps", "e5m2", "min.u32 %size, %size, MOST;"),
    of_type("too large is NaN", "e4m3", "MOST 0x3fe00000", "MOST 0x3ff00000"),
    of_type("the largest is the one before", "e4m3", "MOST 0x3fe00000", "MOST 0x3fd00000"),
    of_type("too large is the largest", "e5m2", "MOST 0x47800000", "MOST 0x47600000"),
    of_type(
        "infinity is NaN",
        "e5m2",
        "setp.gt.u32 %nan",
        "setp.ge.u32 %nan",
        equivalent="sums are finite in fp32",
    ),
    of_type("rounded to a bit more", "e4m3", "POWER_MORE 0x0a000000", "POWER_MORE 0x09800000"),
    of_type("rounded to a bit less", "e5m2", "POWER_MORE 0x0a800000", "POWER_MORE 0x0b000000"),
    of_type("a bit of fraction is one of exponent", "e5m2", "BITS_LESS 21", "BITS_LESS 20"),
    of_type("the third byte and the fourth change places", "e4m3", "0x3424", "0x2434"),
    of_type("pairs of results change places", "e5m2", "0x5410", "0x1054"),
    of_type(
        "a lone element is a lower byte",
        "e5m2",
        "shl.b32 %upper, element, 8;",
        "mov.b32 %upper, element;",
    ),
]
