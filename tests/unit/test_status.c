/* Units of base/status: every code has its name, and the message belongs to the thread. */
#include "../../csrc/base/status.h"

#include <errno.h>
#include <pthread.h>

#include "unit.h"

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    FAIL(SMFAR_ERR_PEER, "another thread's");
    EXPECT_HAS(smfar_last_error(), "another thread's");
    return NULL;
}

static enum smfar_status propagate(enum smfar_status given, int *went_on)
{
    enum smfar_status status;
    TRY(given);
    *went_on = 1;
fail:
    return status;
}

static void check_names(void)
{
    for (int code = SMFAR_OK; code <= SMFAR_ERR_ABORTED; code++)
        EXPECT(strncmp(smfar_status_name((enum smfar_status)code), "SMFAR_", 6) == 0, "code %d",
               code);
    EXPECT_HAS(smfar_status_name(SMFAR_ERR_ABORTED), "SMFAR_ERR_ABORTED");
    EXPECT(smfar_status_name((enum smfar_status)999) != NULL, "no name");
    EXPECT(smfar_status_name((enum smfar_status) - 1) != NULL, "no name");
}

static void check_messages(void)
{
    pthread_t thread;
    EXPECT(smfar_last_error() != NULL, "NULL before any failure");
    EXPECT_EQ(FAIL(SMFAR_ERR_TIMEOUT, "rank %d", 5), SMFAR_ERR_TIMEOUT);
    EXPECT_HAS(smfar_last_error(), "rank 5");
    REQUIRE(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    EXPECT_HAS(smfar_last_error(), "rank 5");
    FAIL(SMFAR_ERR_PEER, "again: %s", smfar_last_error());
    EXPECT_HAS(smfar_last_error(), "again: rank 5");
    errno = ENOENT;
    EXPECT_EQ(FAIL_ERRNO("open"), SMFAR_ERR_SYSTEM);
    EXPECT_HAS(smfar_last_error(), "open: No such file");
}

static void check_long_message(void)
{
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    FAIL(SMFAR_ERR_ARGUMENT, "%s", text);
    EXPECT(strlen(smfar_last_error()) < sizeof text, "nothing was cut");
    EXPECT_HAS(smfar_last_error(), "xxxx");
}

static void check_try(void)
{
    int went_on = 0;
    EXPECT_EQ(propagate(SMFAR_ERR_MEMORY, &went_on), SMFAR_ERR_MEMORY);
    EXPECT_EQ(went_on, 0);
    EXPECT_EQ(propagate(SMFAR_OK, &went_on), SMFAR_OK);
    EXPECT_EQ(went_on, 1);
}

int main(void)
{
    check_names();
    check_messages();
    check_long_message();
    check_try();
    return unit_end();
}
