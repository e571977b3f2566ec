/* Units of driver/driver: a table is complete, shared and reference-counted, and a library that is
 * missing or is no driver is refused in words. */
#define _GNU_SOURCE
#include "../../csrc/driver/driver.h"

#include "unit.h"

static void check_refusals(void)
{
    struct driver *driver = NULL;
    setenv("SMFAR_SOFT_LIBRARY", "/nowhere/libsmfar_soft.so", 1);
    EXPECT_EQ(driver_open(SMFAR_DRIVER_SOFT, &driver), SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "/nowhere/libsmfar_soft.so");
    EXPECT_EQ(driver_open((enum smfar_driver)9, &driver), SMFAR_ERR_ARGUMENT);
    setenv("SMFAR_SOFT_LIBRARY", "libm.so.6", 1); /* a library, but no driver */
    EXPECT_EQ(driver_open(SMFAR_DRIVER_SOFT, &driver), SMFAR_ERR_UNSUPPORTED);
    EXPECT(driver == NULL, "an output was set in spite of the failure");
    unsetenv("SMFAR_SOFT_LIBRARY");
}

static void check_complete(const struct driver *driver)
{
#define REQUIRED(name, params) EXPECT(driver->name != NULL, "no " #name);
#define OPTIONAL(name, params) EXPECT(driver->name != NULL, "no " #name);
#include "../../csrc/driver/driver.def"
    EXPECT(driver->version >= 12020, "version %d", driver->version);
    EXPECT_HAS(driver->name, "software switch");
}

static void check_failures(struct driver *driver)
{
    int value = 0;
    CUresult result =
        driver->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 12345);
    EXPECT_EQ(result, CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(driver_failed_at("f.c", 1, driver, "cuDeviceGetAttribute", result), SMFAR_ERR_DRIVER);
    EXPECT_HAS(smfar_last_error(), "CUDA_ERROR_INVALID_DEVICE");
    EXPECT_HAS(smfar_last_error(), "cuDeviceGetAttribute");
    EXPECT_EQ(driver_failed_at("f.c", 1, driver, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY),
              SMFAR_ERR_MEMORY);
}

static void check_devices(const struct driver *driver)
{
    int count = 0, major = 0, multicast = 0;
    EXPECT_EQ(driver->cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_EQ(count, 8);
    driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    EXPECT_EQ(major, 9);
    driver->cuDeviceGetAttribute(&multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 7);
    EXPECT_EQ(multicast, 1);
}

int main(void)
{
    struct driver *driver, *again;
    unsetenv("SMFAR_SOFT_GPUS");
    check_refusals();
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &again) == SMFAR_OK, "%s", smfar_last_error());
    EXPECT(driver == again, "two tables of one driver");
    driver_close(again);
    check_complete(driver);
    check_failures(driver);
    check_devices(driver);
    driver_close(driver);
    return unit_end();
}
