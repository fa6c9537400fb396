/*
 * replay.c: a main for a fuzz target: give it every file of a folder, as libFuzzer would. `make
 * check` replays the committed seeds with it, so that the targets can't rot on machines without
 * clang.
 */
#include "base/base.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of exactly the file's size, so that a sanitizer sees a read past the end. */
static int replay(const char *dir, const char *name)
{
    char path[4096];
    FILE *f;
    uint8_t *data;
    long size;

    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path) ||
        !(f = fopen(path, "rb")))
        return -1;
    if (fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET)) {
        fclose(f);
        return -1;
    }
    data = malloc((size_t)size);
    if (size > 0 && (!data || fread(data, 1, (size_t)size, f) != (size_t)size)) {
        free(data);
        fclose(f);
        return -1;
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    struct dirent *d;
    int n = 0;
    DIR *dir;

    if (argc != 2 || !(dir = opendir(argv[1]))) {
        fprintf(stderr, "%s: give it the folder that holds the inputs\n", argv[0]);
        return MT_EXIT_USAGE;
    }
    while ((d = readdir(dir))) {
        if (d->d_name[0] == '.')
            continue;
        if (replay(argv[1], d->d_name) < 0) {
            fprintf(stderr, "%s: %s/%s can't be read\n", argv[0], argv[1], d->d_name);
            closedir(dir);
            return MT_EXIT_FAILED;
        }
        n++;
    }
    closedir(dir);
    printf("%d inputs replayed\n", n);
    return n ? MT_EXIT_OK : MT_EXIT_FAILED;
}
