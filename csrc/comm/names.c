/* See names.h. */
#include "names.h"

#include <string.h>

enum {
    WHOLE_RESULT = 1 << COLLECTIVE_ALL_REDUCE,
    ONE_RESULT = 1 << COLLECTIVE_REDUCE,
    PARTS = 1 << COLLECTIVE_REDUCE_SCATTER
};

const struct algorithm_row algorithm_rows[ALGORITHMS] = {
    [ALGORITHM_ANY] = {"any", 0, 0, 0, 0},
    [ALGORITHM_TWOSHOT_MC] = {"twoshot_mc", 1, 0, 1024, WHOLE_RESULT | ONE_RESULT},
    [ALGORITHM_SPLIT_MC] = {"split_mc", 1, 0, 1024, WHOLE_RESULT},
    [ALGORITHM_PUSH_MC] = {"push_mc", 1, 1, 640, WHOLE_RESULT},
    [ALGORITHM_ONESHOT_MC] = {"oneshot_mc", 1, 1, 1024, WHOLE_RESULT},
    [ALGORITHM_PUSH_PEER] = {"push_peer", 0, 1, 640, WHOLE_RESULT},
    [ALGORITHM_ONESHOT_PEER] = {"oneshot_peer", 0, 1, 512, WHOLE_RESULT},
    [ALGORITHM_TWOSHOT_PEER] = {"twoshot_peer", 0, 0, 512, WHOLE_RESULT | ONE_RESULT},
    [ALGORITHM_SPLIT_PEER] = {"split_peer", 0, 0, 512, WHOLE_RESULT},
    [ALGORITHM_PULL_MC] = {"pull_mc", 1, 0, 1024, ONE_RESULT | PARTS},
    [ALGORITHM_PULL_PEER] = {"pull_peer", 0, 0, 512, ONE_RESULT | PARTS},
};

enum algorithm algorithm_named(const char *name)
{
    int i = 0;
    while (i < ALGORITHMS && strcmp(algorithm_rows[i].name, name))
        i++;
    return (enum algorithm)i;
}

static const char *const collectives[COLLECTIVES] = {
    [COLLECTIVE_ALL_REDUCE] = "all_reduce",
    [COLLECTIVE_BROADCAST] = "broadcast",
    [COLLECTIVE_ALL_GATHER] = "all_gather",
    [COLLECTIVE_BARRIER] = "barrier",
    [COLLECTIVE_REDUCE] = "reduce",
    [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
    [COLLECTIVE_ALL_TO_ALL] = "all_to_all",
    [COLLECTIVE_GATHER] = "gather",
    [COLLECTIVE_SCATTER] = "scatter",
    [COLLECTIVE_ALL_TO_ALL_V] = "all_to_all_v",
    [COLLECTIVE_RMS_NORM] = "all_reduce_rms_norm",
};

static const struct {
    const char *name;
    size_t bytes;
} dtypes[SMFAR_DTYPES] = {
    [SMFAR_U8] = {"u8", 1},           [SMFAR_I8] = {"i8", 1},
    [SMFAR_I16] = {"i16", 2},         [SMFAR_I32] = {"i32", 4},
    [SMFAR_I64] = {"i64", 8},         [SMFAR_F16] = {"f16", 2},
    [SMFAR_BF16] = {"bf16", 2},       [SMFAR_F32] = {"f32", 4},
    [SMFAR_F64] = {"f64", 8},         [SMFAR_BOOL] = {"bool", 1},
    [SMFAR_C64] = {"complex64", 8},   [SMFAR_C128] = {"complex128", 16},
    [SMFAR_F8_E4M3] = {"f8_e4m3", 1}, [SMFAR_F8_E5M2] = {"f8_e5m2", 1},
};

static const char *const ops[SMFAR_OPS] = {
    [SMFAR_SUM] = "sum", [SMFAR_AVG] = "avg",   [SMFAR_PRODUCT] = "product",
    [SMFAR_MIN] = "min", [SMFAR_MAX] = "max",   [SMFAR_BAND] = "band",
    [SMFAR_BOR] = "bor", [SMFAR_BXOR] = "bxor", [SMFAR_PREMUL_SUM] = "premul_sum",
};

const char *name_collective(int collective)
{
    return collective >= 0 && collective < COLLECTIVES ? collectives[collective] : "unknown";
}

const char *name_dtype(int dtype)
{
    return dtype >= 0 && dtype < SMFAR_DTYPES ? dtypes[dtype].name : "unknown";
}

const char *name_op(int op) { return op >= 0 && op < SMFAR_OPS ? ops[op] : "none"; }

size_t dtype_bytes(int dtype)
{
    return dtype >= 0 && dtype < SMFAR_DTYPES ? dtypes[dtype].bytes : 0;
}

int dtype_is_float8(int dtype) { return dtype == SMFAR_F8_E4M3 || dtype == SMFAR_F8_E5M2; }
