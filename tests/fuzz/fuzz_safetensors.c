/*
 * fuzz_safetensors.c: any bytes as a safetensors file: it opens or is refused, and what it then
 * offers can be read to its last byte. Build: clang -fsanitize=fuzzer,address,undefined with the
 * library.
 */
#include "model/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned char sink;

static void read_all(const struct mt_weights *w, const char *name)
{
    struct mt_bytes b;
    int64_t dims[8];
    int n;

    if (mt_weights_find(w, name, &n, dims, &b) < 0)
        return;
    size_t bytes = (size_t)(b.rows * b.cols) * (b.type == MT_F32 ? 4 : 2);
    if (bytes) {
        sink = ((const unsigned char *)b.data)[0];
        sink = ((const unsigned char *)b.data)[bytes - 1];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct mt_weights *w;
    struct mt_err e = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (mt_weights_open_safetensors_file(&w, path, &e) == 0) {
        read_all(w, "x"); /* the names of the unit test's files, which are a good corpus */
        read_all(w, "a");
        mt_weights_close(&w);
    } else if (e.code == 0 || e.text[0] == 0 || strchr(e.text, '\n')) {
        abort(); /* a refusal says why, on one line */
    }
    close(fd);
    return 0;
}
