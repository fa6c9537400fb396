/*
 * fuzz_call.c: any bytes as a saved call: as a file, whose head must refuse all but its own, and
 * behind a true head, as the state of a session, and as that of the sound on its way there. What is
 * refused says why on one line; what is taken can be saved again, and goes on.
 */
#include "tests/fuzz/fuzz.h"

#include "wire/callfile.h"
#include "wire/intake.h"

static struct mt_backend *be;
static struct mt_model *m;
static struct mt_engine *eng;
static struct mt_clock the_clock;

static void begin(void)
{
    const struct mt_model_opts mo = {.step_rows = 32, .want_rows = 2};
    struct mt_engine_opts o;

    fuzz_engine_options(&o);
    the_clock = mt_clock_virtual(INT64_C(1) << 40);
    must(mt_backend_open(&be, "cpu", 1, NULL) == 0);
    must(mt_model_open(&m, "synth:qwen2.5-omni-tiny,layers=1", be, &mo, NULL) == 0);
    must(mt_engine_new(&eng, m, &o, &the_clock, NULL) == 0);
}

static void as_state(unsigned char *data, size_t n)
{
    struct mt_state_io io = {.load = true, .data = data, .n = n}, again = {0};
    const struct mt_load_opts lo = {0};
    const char *why = NULL;
    double retry;
    int64_t id;
    int rc = mt_engine_load(eng, &io, &lo, &id, &why, &retry);

    if (rc < 0) {
        must(rc != 0 && (why != NULL || io.err.code != 0));
        if (!why)
            one_line(&io.err);
        return;
    }
    must(mt_engine_save(eng, id, &again) == 0);
    free(again.data);
    mt_engine_end(eng, id, the_clock.virtual_ns);
    for (int i = 0; i < 10 && mt_engine_tick(eng); i++) {
    }
    mt_engine_close(eng, id, "gone");
}

/* All that is left to be heard, and whoever takes it is in no hurry. */
static int hear_out(struct mt_intake *it)
{
    static const unsigned char more[1000];
    struct mt_err e = {0};
    size_t at = 0, used;
    int rc = 0;

    for (int i = 0; i < 5000 && rc == 0; i++) {
        if (it->n_out > 0)
            mt_intake_taken(it, (it->n_out + 1) / 2);
        else if (it->flushed)
            return 0;
        else if (at == sizeof(more))
            rc = mt_intake_flush(it, &e);
        else if ((rc = mt_intake_bytes(it, more + at, sizeof(more) - at, &used, &e)) == 0)
            at += used;
    }
    return rc;
}

static void as_sound(unsigned char *data, size_t n)
{
    static const int rates[] = {16000, 8000, 48000, 44100};
    struct mt_state_io io = {.load = true, .data = data, .n = n}, again = {0};
    static struct mt_intake it;

    must(mt_intake_open(&it, MT_PCM_S16LE, rates[n % MT_COUNT(rates)], 16000, NULL) == 0);
    mt_intake_visit(&it, false, &io);
    if (io.err.code == 0) {
        mt_intake_visit(&it, false, &again);
        must(again.err.code == 0);
        free(again.data);
        hear_out(&it);
    } else {
        one_line(&io.err);
    }
    mt_intake_close(&it);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *copy = malloc(size + 8);
    struct mt_state_io io = {0};
    struct mt_err e = {0};

    if (!eng)
        begin();
    must(copy != NULL);
    memcpy(copy, data, size);
    if (mt_callfile_open(&io, copy, size, m, 1, &e) < 0)
        one_line(&e);
    else
        as_state(io.data + io.at, io.n - io.at);
    as_state(copy, size);
    memcpy(copy, data, size);
    as_sound(copy, size);
    free(copy);
    return 0;
}
