/*
 * util.h: what tests with files share: a folder of their own under /tmp, files in it, where tests/
 * is, and what the models' tests compute on. For files that include cmocka.h before it.
 */
#ifndef MT_TEST_UTIL_H
#define MT_TEST_UTIL_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/kernels.h"

/* A new folder; its name goes to dir. 0, or -1. */
static inline int util_dir_make(char dir[32])
{
    snprintf(dir, 32, "/tmp/mt-test-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int util_remove_one(const char *path, const struct stat *st, int flag,
                                  struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* The folder with all that is in it. 0, or -1. */
static inline int util_dir_remove(const char *dir)
{
    return nftw(dir, util_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void util_put(const char *dir, const char *name, const void *data, size_t n)
{
    char path[200];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The folder tests/. */
static inline const char *util_tests(void)
{
    const char *dir = getenv("MT_TESTS");

    return dir ? dir : "tests";
}

/* MT_TEST_BACKEND, a name as --backend takes it; else the CPU. As mt_backend_open. */
static inline int util_backend(struct mt_backend **be, int threads, struct mt_err *e)
{
    const char *name = getenv("MT_TEST_BACKEND");

    return mt_backend_open(be, name && *name ? name : "cpu", threads, e);
}

#endif
