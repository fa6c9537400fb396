/*
 * fuzz_moshi.c: a config.json beside the tensors of a tiny Moshi. Whatever it says, the model opens
 * or is refused in one line that names the file; what opened must compute.
 */
#include "engine/engine.h"
#include "tests/unit/moshi_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ck ck;
static struct mt_backend *be;

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void remove_folder(void)
{
    mt_backend_close(&be);
    ck_free(&ck);
}

static void set_up(void)
{
    struct mt_err e = {0};

    ck_new(&ck);
    ckm_model(&ck);
    require(mt_backend_cpu(&be, MT_CPU_BASE, 1, &e) == 0);
    atexit(remove_folder);
}

static int text_row(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    (void)pos, (void)logprobs;
    *(int *)ctx += vocab;
    return 0;
}

static int code_row(void *ctx, int64_t pos, int k, const float *logprobs, int bins)
{
    (void)k;
    return text_row(ctx, pos, logprobs, bins);
}

/* Numbers may overflow with a silly period; memory and counts may not. */
static void use(struct mt_model *m)
{
    static const int64_t at[] = {0, 3};
    const struct mt_model_info *i = mt_model_info(m);
    int32_t frames[4 * (1 + CKM_BOOKS)] = {0};
    int n = 0;
    struct mt_teacher t = {.frames = frames,
                           .n = 4,
                           .at = at,
                           .n_at = 2,
                           .kv_type = MT_F32,
                           .block_tokens = 2,
                           .ctx = &n,
                           .row = text_row,
                           .code_row = code_row};

    require(i->codebooks <= CKM_BOOKS && i->codebooks_made <= CKM_MADE);
    require(mt_teacher_run(m, &t, NULL) == 0);
    require(n == 2 * (i->vocab + i->codebooks_made * i->code_bins));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mt_model_opts o = {.step_rows = 4, .want_rows = 4};
    struct mt_err e = {0};
    struct mt_model *m;

    if (!be)
        set_up();
    ck_write(&ck, "config.json", data, size);
    if (mt_model_open(&m, ck.dir, be, &o, &e) == 0) {
        use(m);
        mt_model_close(&m);
    } else {
        require(e.text[0] && !strchr(e.text, '\n') && strstr(e.text, ck.dir));
    }
    return 0;
}
