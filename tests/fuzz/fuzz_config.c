/*
 * fuzz_config.c: a config.json beside the tensors of tiny checkpoints. Whatever it says, the model
 * opens or is refused in one line that names the file; what opened must compute, text and a clip.
 */
#include "engine/engine.h"
#include "tests/unit/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ck ck, mini; /* both Qwen Omnis' tensors, MiniCPM-o's */
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
    ck_free(&mini);
}

static void set_up(void)
{
    struct ck_file f = {.header = json_object()};
    struct mt_err e = {0};

    ck_new(&ck);
    ck_text_model(&f, "thinker.", CK_HEAD);
    ck_tower(&f, "thinker.");
    ck_qwen3(&f, "thinker.");
    ck_save(&f, &ck, "model.safetensors");
    ck_new(&mini);
    ck_minicpm(&mini);
    require(mt_backend_cpu(&be, MT_CPU_BASE, 1, &e) == 0);
    atexit(remove_folder);
}

static int ignore(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    (void)pos, (void)logprobs;
    *(int *)ctx += vocab;
    return 0;
}

/* Numbers may overflow with a silly eps or theta; memory and counts may not. */
static void use(struct mt_model *m, bool is_mini)
{
    static const int32_t ids[] = {1, 2, 3, 2, 1};
    static const int64_t at[] = {4};
    static float pcm[17000];
    int n = 0;
    float *rows;
    int64_t n_rows;
    struct mt_teacher t = {.ids = ids,
                           .n = MT_COUNT(ids),
                           .at = at,
                           .n_at = 1,
                           .kv_type = MT_F32,
                           .block_tokens = 2,
                           .ctx = &n,
                           .row = ignore};

    require(mt_model_info(m)->vocab == CK_VOCAB);
    if (mt_model_info(m)->audio_id > 3)
        require(mt_teacher_run(m, &t, NULL) == 0 && n == CK_VOCAB);
    require(mt_model_embed_clip(m, pcm, is_mini ? MT_COUNT(pcm) : 700, &rows, &n_rows, NULL,
                                NULL) == 0);
    require(is_mini ? n_rows >= 1 : n_rows == 1);
    free(rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mt_model_opts o = {.step_rows = 4, .want_rows = 4};
    struct mt_err e = {0};
    struct mt_model *m;

    if (!be)
        set_up();
    bool is_mini = size > 0 && memmem(data, size, "minicpmo", 8);
    const struct ck *to = is_mini ? &mini : &ck;
    ck_write(to, "config.json", data, size);
    if (mt_model_open(&m, to->dir, be, &o, &e) == 0) {
        use(m, is_mini);
        mt_model_close(&m);
    } else {
        require(!m && e.code < 0 && strstr(e.text, to->dir) && !strpbrk(e.text, "\n\r\033"));
    }
    return 0;
}
