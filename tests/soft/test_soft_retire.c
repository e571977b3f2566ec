/* Deferred freeing: nothing goes while a reader that may have seen it is there, and all goes when
 * the last such reader leaves. */
#include "../../csrc/soft/soft_internal.h"
#include "../unit/unit.h"

static void note(void *argument) { *(int *)argument += 1; }

static void test_no_reader(void)
{
    int gone = 0;
    retire(note, &gone);
    EXPECT_EQ(gone, 1);
}

static void test_readers(void)
{
    struct reader early, late;
    int first = 0, second = 0;
    reader_enter(&early);
    retire(note, &first);
    reader_enter(&late);
    retire(note, &second);
    EXPECT_EQ(first + second, 0);
    reader_leave(&early); /* what the late one never saw goes */
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 0);
    reader_leave(&late);
    EXPECT_EQ(second, 1);
}

static void test_leaving_out_of_order(void)
{
    struct reader readers[3];
    int gone = 0;
    for (int i = 0; i < 3; i++)
        reader_enter(&readers[i]);
    retire(note, &gone);
    reader_leave(&readers[1]);
    reader_leave(&readers[2]);
    EXPECT_EQ(gone, 0);
    reader_leave(&readers[0]);
    EXPECT_EQ(gone, 1);
}

int main(void)
{
    test_no_reader();
    test_readers();
    test_leaving_out_of_order();
    return unit_end();
}
