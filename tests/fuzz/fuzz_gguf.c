/*
 * fuzz_gguf.c: any bytes as a GGUF file: it opens or is refused in one line. An opened one is then
 * asked for its configuration, as text and as tower, its tokenizer, and its tensors to their last
 * bytes.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/gguf_config.h"
#include "model/gguf_names.h"
#include "model/tokenizer_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned char sink;

static void must_say(int rc, const struct mt_err *e)
{
    if (rc < 0 && (e->code == 0 || e->text[0] == 0 || strchr(e->text, '\n')))
        abort();
}

static void read_config(const struct mt_gguf *g)
{
    static const int32_t ids[MT_GGUF_MARKS] = {-1, -1, -1};
    struct mt_err e = {0};
    const struct mt_gguf_arch *a = mt_gguf_arch(g, &e);

    must_say(a ? 0 : -1, &e);
    for (int tower = MT_TOWER_FILE; a && tower <= MT_TOWER_NONE; tower++) {
        struct mt_err why = {0};
        json_t *config;

        must_say(mt_gguf_config(&config, a, g, (enum mt_tower)tower, g, ids, &why), &why);
        json_decref(config);
    }
}

static void read_tokenizer(const struct mt_gguf *g)
{
    static const char *const marks[] = {"<|AUDIO|>"};
    struct mt_err e = {0};
    struct mt_tokenizer *t;
    int rc = mt_tokenizer_open_gguf(&t, g, marks, 1, &e);
    int32_t *ids;
    size_t n;

    must_say(rc, &e);
    if (rc == 0 && mt_tokenizer_encode(t, "ab <|AUDIO|>", 12, true, &ids, &n, NULL) == 0)
        free(ids);
    mt_tokenizer_free(&t);
}

static void read_tensors(struct mt_gguf *g)
{
    static const char *const names[] = {"model.embed_tokens.weight", "lm_head.weight",
                                        "model.layers.0.mlp.experts.1.up_proj.weight",
                                        "model.layers.0.self_attn.q_proj.weight"};
    static const int64_t dims[] = {1, 32};
    struct mt_weights *w;
    struct mt_bytes b;

    if (mt_weights_open_gguf(&w, g, NULL, 1, NULL) < 0)
        return;
    for (size_t i = 0; i < MT_COUNT(names); i++) {
        struct mt_err e = {0};
        int rc = mt_weights_get(w, names[i], 2, dims, &b, &e);

        must_say(rc, &e);
        if (rc == 0) {
            sink = ((const unsigned char *)b.data)[0];
            sink = ((const unsigned char *)b.data)[mt_dtype_row_bytes(b.type, b.cols) * b.rows - 1];
        }
    }
    mt_weights_close(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct mt_gguf *g;
    struct mt_err e = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC), rc;

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    rc = mt_gguf_open(&g, path, &e);
    must_say(rc, &e);
    if (rc == 0) {
        read_config(g);
        read_tokenizer(g);
        read_tensors(g); /* closes g */
    }
    close(fd);
    return 0;
}
