/* Units of base/env: numbers, fall-backs, and the four ways to switch multicast off. */
#define _GNU_SOURCE
#include "../../csrc/base/env.h"

#include "unit.h"

static void clear_all(void)
{
    for (int id = 0; id < ENV_COUNT; id++)
        unsetenv(env_variable((enum env_id)id));
}

static void check_text(void)
{
    clear_all();
    EXPECT(env_text(ENV_DEBUG) == NULL, "set though cleared");
    setenv("SMFAR_DEBUG", "", 1);
    EXPECT(env_text(ENV_DEBUG) == NULL, "empty is unset");
    setenv("SMFAR_DEBUG", "INFO", 1);
    REQUIRE(env_text(ENV_DEBUG) != NULL, "unset");
    EXPECT_HAS(env_text(ENV_DEBUG), "INFO");
}

static int64_t budget_from(const char *text)
{
    clear_all();
    setenv("SMFAR_SM_BUDGET", text, 1);
    return env_number(ENV_SM_BUDGET, 1, 42);
}

static void check_numbers(void)
{
    clear_all();
    EXPECT_EQ(env_number(ENV_SM_BUDGET, 1, 42), 42);
    EXPECT_EQ(budget_from("7"), 7);
    EXPECT_EQ(budget_from("1"), 1);
    EXPECT_EQ(budget_from("0"), 42);
    EXPECT_EQ(budget_from("-3"), 42);
    EXPECT_EQ(budget_from("4x"), 42);
    EXPECT_EQ(budget_from("many"), 42);
    EXPECT_EQ(budget_from("99999999999999999999"), 42);
    EXPECT_EQ(budget_from("9223372036854775807"), INT64_MAX);
}

static void expect_off(const char *name, const char *value, const char *said)
{
    clear_all();
    setenv(name, value, 1);
    const char *off = env_multicast_off();
    if (said == NULL) {
        EXPECT(off == NULL, "%s=%s switched it off", name, value);
        return;
    }
    REQUIRE(off != NULL, "%s=%s did not switch it off", name, value);
    EXPECT_HAS(off, said);
}

static void check_multicast(void)
{
    clear_all();
    EXPECT(env_multicast_off() == NULL, "off with nothing set");
    expect_off("SMFAR_MULTICAST", "0", "SMFAR_MULTICAST");
    expect_off("SMFAR_MULTICAST", "No", "SMFAR_MULTICAST=0");
    expect_off("SMFAR_MULTICAST", "never", "neither 0 nor 1");
    expect_off("SMFAR_MULTICAST", "1", NULL);
    expect_off("SMFAR_MULTICAST", "On", NULL);
    expect_off("NCCL_NVLS_ENABLE", "0", "NCCL_NVLS_ENABLE");
    expect_off("NCCL_NVLS_ENABLE", "2", NULL);
    expect_off("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST");
    expect_off("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0", NULL);
    expect_off("NVSHMEM_DISABLE_NVLS", "1", "NVSHMEM_DISABLE_NVLS");
    expect_off("NVSHMEM_DISABLE_NVLS", "0", NULL);
}

int main(void)
{
    check_text();
    check_numbers();
    check_multicast();
    return unit_end();
}
