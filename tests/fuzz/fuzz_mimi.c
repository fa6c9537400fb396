/*
 * fuzz_mimi.c: a codec's config beside the tensors of a tiny one. Whatever it says, the codec opens
 * or is refused in one line that names the file; what opened must take a frame and give one.
 */
#include "model/codec.h"
#include "tests/unit/checkpoint.h"

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
    const char *tests = getenv("MT_TESTS");
    char path[600], *whole;
    struct mt_err e = {0};

    ck_new(&ck);
    snprintf(path, sizeof(path), "%s/golden/mimi-a/mimi.safetensors", tests ? tests : "tests");
    require((whole = realpath(path, NULL)) != NULL);
    require(symlink(whole, ck_path(&ck, "mimi.safetensors")) == 0);
    free(whole);
    ck_text(&ck, "config.json",
            "{\"mimi_name\":\"mimi.safetensors\",\"mimi_config_name\":\"mimi.json\"}");
    require(mt_backend_cpu(&be, MT_CPU_BASE, 1, &e) == 0);
    atexit(remove_folder);
}

static void use(struct mt_codec *c)
{
    const struct mt_codec_info *i = mt_codec_info(c);
    float *pcm = calloc((size_t)i->frame_samples, sizeof(*pcm));
    int32_t codes[64];

    require(i->codebooks >= 1 && i->codebooks <= 64 && i->bins == 40);
    for (int f = 0; f < 3; f++) {
        pcm[0] = 1;
        mt_codec_encode(c, pcm, codes);
        require(mt_codec_decode(c, codes, pcm) == 0);
    }
    codes[0] = i->bins;
    require(mt_codec_decode(c, codes, pcm) < 0);
    free(pcm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mt_err e = {0};
    struct mt_codec *c;

    if (!be)
        set_up();
    ck_write(&ck, "mimi.json", data, size);
    if (mt_codec_open(&c, ck.dir, be, 0, false, &e) == 0) {
        use(c);
        mt_codec_close(&c);
    } else {
        require(!c && e.code < 0 && strstr(e.text, ck.dir) && !strpbrk(e.text, "\n\r\033"));
    }
    return 0;
}
